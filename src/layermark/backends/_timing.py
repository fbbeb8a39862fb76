"""How backends time a few calls of their own: repetitions that last long enough, and trials that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

Step = Callable[[], object]
_SHORTEST_S = 1e-4
"""Repetitions are grouped until a group lasts this long, far above the cost of the clock."""


def seconds_of(step: Step, calls: int) -> float:
    """How long so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return time.perf_counter() - start


def calls_within(step: Step, seconds: float) -> int:
    """How many calls fit into this long, at least one; the first two are not counted on."""
    seconds_of(step, 2)
    return max(1, round(seconds / max(seconds_of(step, 1), 1e-7)))


@dataclass
class Kernel:
    """A call of a probe, and how much work it does."""

    work: int
    call: Step

    @cached_property
    def _calls(self) -> int:
        return calls_within(self.call, _SHORTEST_S)

    def rate(self) -> float:
        """Work per second of one group of calls."""
        return self.work * self._calls / seconds_of(self.call, self._calls)


def trial(steps: Sequence[Step], seconds: float = 0.03, rounds: int = 8) -> list[float]:
    """Calls per second of each step, the best of rounds that alternate."""
    counts = [calls_within(step, seconds) for step in steps]
    best = [0.0] * len(steps)
    for _ in range(rounds):
        for index, step in enumerate(steps):
            best[index] = max(best[index], counts[index] / seconds_of(step, counts[index]))
    return best
