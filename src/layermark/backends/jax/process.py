"""Switches of the whole process: full fp32, calls that run where they are made, the thread budget."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from functools import cache

import jax
from jax.extend.backend import get_backend

from layermark.errors import Unsupported


@cache
def start() -> Mapping[str, str]:
    """Set what must be set before the first operation, once; return the facts that matter."""
    # A call then runs in the thread that makes it: handing it to another costs up to 40 us, and one thread more.
    switches = {"jax_cpu_enable_async_dispatch": False, "jax_default_matmul_precision": "highest"}
    for name, value in switches.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    _require_device()
    threads = int(os.environ.get("PJRT_NPROC") or len(os.sched_getaffinity(0)))
    return {
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "platform": get_backend().platform,
        "threads": str(threads),
    }


def set_width(precision: str) -> None:
    """Let arrays have 64 bits where a precision asks for them; JAX makes them narrower otherwise."""
    jax.config.update("jax_enable_x64", precision.startswith("64"))  # type: ignore[no-untyped-call]


def _require_device() -> None:
    """Start the platform that was asked for; JAX raises where it is missing instead of falling back."""
    try:
        get_backend()
    except (AssertionError, RuntimeError) as error:  # the first where this build does not know the platform at all
        wanted = os.environ.get("JAX_PLATFORMS", "any device")
        reason = next(iter(str(error).splitlines()), "this build does not know it")
        raise Unsupported(f"jax has no device {wanted} here: {reason}") from error


@cache
def synchronous() -> bool:
    """Whether a call returns when its work is done; not so if XLA's client was started before `start`."""
    return get_backend().platform == "cpu" and not _client_dispatches()


def _client_dispatches() -> bool:
    import numpy as np

    # A product that takes milliseconds, asked about right after the call.
    square = jax.device_put(np.ones((1024, 1024), "float32"))
    product = jax.jit(lambda x: x @ x)
    product(square).block_until_ready()
    return not product(square).is_ready()
