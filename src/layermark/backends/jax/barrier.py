"""Values that XLA must have in memory."""

from __future__ import annotations

from typing import TypeVar

from jax import lax

T = TypeVar("T")


def materialise(value: T) -> T:
    """The same value or tree of values, made whole before anything that reads it begins: no fusion goes across."""
    whole: T = lax.optimization_barrier(value)  # type: ignore[no-untyped-call]
    return whole
