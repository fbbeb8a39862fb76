"""How far what a program gave is from what it should have given. Whatever is not finite is infinitely far."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_LEAST = 1e-30


class Comparison(NamedTuple):
    """What was compared, how far off it is, and how far off it may be, as a share of `scale`."""

    name: str
    error: float
    allowed: float
    scale: str = "spread"

    @property
    def excess(self) -> float:
        """The error in terms of what is allowed; infinite if either is no number, so that `max` finds it anywhere."""
        share = self.error / self.allowed if self.allowed else math.inf
        return share if math.isfinite(share) and math.isfinite(self.allowed) else math.inf


def error(actual: Array, expected: Array, floor: float = 0.0) -> float:
    """Return the largest difference as a share of the expected values' spread."""
    if not comparable(actual, expected):
        return math.inf
    return float(np.max(np.abs(_difference(actual, expected)), initial=0.0)) / max(spread(expected), floor, _LEAST)


def rms_error(actual: Array, expected: Array, floor: float = 0.0) -> float:
    """Return the root of the mean square of the differences, as a share of the spread."""
    if not comparable(actual, expected):
        return math.inf
    return math.sqrt(np.mean(np.square(_difference(actual, expected)))) / max(spread(expected), floor, _LEAST)


def l2_error(actual: Array, expected: Array, scale: float) -> float:
    """Return the L2 norm of the difference as a share of a length."""
    if not (comparable(actual, expected) and math.isfinite(scale)):
        return math.inf
    return float(np.linalg.norm(_difference(actual, expected))) / max(scale, _LEAST)


def comparable(actual: Array, expected: Array) -> bool:
    """Return whether there are as many values on both sides, all of them finite."""
    same = actual.size == expected.size
    return same and bool(np.all(np.isfinite(actual))) and bool(np.all(np.isfinite(expected)))


def spread(values: Array) -> float:
    """Return the standard deviation, or the size of the values where they hardly differ."""
    deviation, size = float(np.std(values)), float(np.sqrt(np.mean(np.square(values))))
    return deviation if deviation > 1e-3 * size else size


def _difference(actual: Array, expected: Array) -> Array:
    found: Array = actual.reshape(-1).astype("float64") - expected.reshape(-1)
    return found
