"""Wall time that may run out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Deadline:
    """A point in time, or never.

    >>> now = iter([0.0, 4.0])
    >>> Deadline(10.0, clock=lambda: next(now)).left()
    6.0
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._seconds = clock, seconds or 0.0
        self._end = self._typed = None if seconds is None else clock() + seconds

    def overrun(self) -> float:
        """Return how many seconds have passed since all the time that was given; 0 before that, or without a limit.

        >>> now = iter([0.0, 12.0])
        >>> Deadline(10.0, clock=lambda: next(now)).overrun()
        2.0
        """
        return 0.0 if self._typed is None else max(0.0, self._clock() - self._typed)

    def share(self, share: float) -> float:
        """Return so much of all the time that was given; infinite without a limit."""
        return float("inf") if self._typed is None else share * self._seconds

    def now(self) -> float:
        """Return the time of the clock that this deadline goes by."""
        return self._clock()

    def left(self) -> float:
        """Seconds that remain; infinite without a limit, never below zero."""
        return float("inf") if self._end is None else max(0.0, self._end - self._clock())

    def extend_to_leave(self, share: float, seconds: float) -> None:
        """Let no less than a share of all the time, or so many seconds, be left: what is short may still be done.

        >>> now = iter([0.0, 38.0, 38.0])
        >>> deadline = Deadline(40.0, clock=lambda: next(now))
        >>> deadline.extend_to_leave(0.1, 10.0)
        >>> deadline.left()
        10.0
        """
        if self._end is not None:
            self._end = max(self._end, self._clock() + max(seconds, share * self._seconds))

    @contextmanager
    def at_least(self, seconds: float) -> Iterator[None]:
        """Let no less than so many seconds be left, for what happens within: nothing could follow without it.

        >>> deadline = Deadline(10.0, clock=lambda: 0.0)
        >>> with deadline.at_least(60.0):
        ...     deadline.left()
        60.0
        >>> deadline.left()
        10.0
        """
        end = self._end
        self._end = None if end is None else max(end, self._clock() + seconds)
        try:
            yield
        finally:
            self._end = end

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let no more than so many seconds be left, for what happens within.

        >>> deadline = Deadline(10.0, clock=lambda: 0.0)
        >>> with deadline.within(3.0):
        ...     deadline.left()
        3.0
        >>> deadline.left()
        10.0
        """
        end, left = self._end, min(seconds, self.left())
        self._end = None if left == float("inf") else self._clock() + left
        try:
            yield
        finally:
            self._end = end

    def shared(self, count: int) -> Iterator[Deadline]:
        """Yield so many deadlines, one after the other, each with an equal part of what is left for it and the rest.

        >>> now = [0.0]
        >>> parts = Deadline(30.0, clock=lambda: now[0]).shared(3)
        >>> next(parts).left()
        10.0
        >>> now[0] = 4.0
        >>> next(parts).left(), next(parts).left()
        (13.0, 26.0)
        """
        for waiting in range(count, 0, -1):
            yield Deadline(None if self._end is None else self.left() / waiting, clock=self._clock)

    def timeout(self, seconds: float) -> float:
        """A time-out that also respects this deadline."""
        return max(0.001, min(seconds, self.left()))
