"""Wall time that may run out."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A point in time, or never.

    >>> now = iter([0.0, 4.0])
    >>> Deadline(10.0, clock=lambda: next(now)).left()
    6.0
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def left(self) -> float:
        """Seconds that remain; infinite without a limit, never below zero."""
        return float("inf") if self._end is None else max(0.0, self._end - self._clock())

    def at_most(self, seconds: float) -> float:
        """A time-out that also respects this deadline."""
        return max(0.001, min(seconds, self.left()))
