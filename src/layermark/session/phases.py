"""Where the wall time of a measurement goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PHASES = ("start", "import", "build", "trial", "reference", "proof", "warm_up", "quiet", "ceilings", "timed")


class Phases:
    """Seconds that the parent waited, by phase. What a phase within another takes is not the outer one's.

    A schedule may have phases besides those that all have.

    >>> now = iter([0.0, 1.0, 3.0, 3.5])
    >>> phases = Phases(clock=lambda: next(now))
    >>> with phases("proof"):
    ...     with phases("reference"):
    ...         pass
    >>> phases.seconds["proof"], phases.seconds["reference"]
    (1.5, 2.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._clock, self._since = clock, 0.0
        self._open: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Charge what happens within to a phase."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = self._clock()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def divide(self, name: str, stages: Mapping[str, float]) -> None:
        """Share out what a phase was charged among what was done in it, the last first; the rest was starting.

        A worker may have begun before anybody waited for it, so its first stages may have cost nobody anything.
        """
        self._charge()
        left, self.seconds[name] = self.seconds[name], 0.0
        for stage, seconds in stages.items():
            charged = min(left, max(0.0, seconds))
            self.seconds[stage] += charged
            left -= charged
        self.seconds["start"] += left


def slowest_build(prepared: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the timings of the rank that took longest to build its program."""
    timings: list[dict[str, float]] = [each["timings_s"] for each in prepared]
    return max(timings, key=lambda each: each["compile"])


def build_stages(timings_s: Mapping[str, float], trial_s: float) -> dict[str, float]:
    """Return what a worker did to build a program, the last stage first."""
    built = timings_s["data"] + timings_s["compile"]
    return {"trial": trial_s, "build": built - trial_s, "import": timings_s["import"]}
