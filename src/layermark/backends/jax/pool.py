"""How XLA's pool is reached through JAX; `layermark.backends._xla` says why one of its workers is held."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from layermark.backends import _xla


@cache
def holder() -> _xla.Holder:
    """The one that keeps a worker of the pool waiting."""
    return _xla.Holder(_enter)


def _enter(handler: Any) -> _xla.Entry:
    jax.ffi.register_ffi_target(_xla.TARGET, _xla.capsule(handler), platform="cpu", api_version=1)
    call = jax.jit(jax.ffi.ffi_call(_xla.TARGET, jnp.zeros(()), has_side_effect=True))
    return lambda: call().block_until_ready()
