"""Laws that random arrays follow. Every array has a generator of its own: its values depend on seed and name only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]


class Law(Protocol):
    """Anything that can draw an array of a given shape."""

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """An array of this shape: float32, or int32 where the law is of whole numbers."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Uniform between two bounds."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """Values in [low, high)."""
        return (rng.random(shape, dtype="float32") * (self.high - self.low) + self.low).astype("float32")


@dataclass(frozen=True)
class Normal:
    """Normal with a mean and a deviation."""

    deviation: float = 1.0
    mean: float = 0.0

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """Values around the mean."""
        return (rng.standard_normal(shape, dtype="float32") * self.deviation + self.mean).astype("float32")


@dataclass(frozen=True)
class Integers:
    """Whole numbers from `low` up to, not including, `high`."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """int32 values."""
        return rng.integers(self.low, self.high, shape, dtype="int32")


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float = 0.0

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """float32 copies of the value."""
        import numpy

        return numpy.full(shape, self.value, "float32")


def random_generator(seed: int, *names: str | int) -> np.random.Generator:
    """The random generator of one named array."""
    import numpy

    return numpy.random.default_rng([seed, *(zlib.crc32(str(name).encode()) for name in names)])
