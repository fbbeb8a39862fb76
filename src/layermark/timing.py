"""How programs time a few calls of their own: repetitions that last long enough, and trials that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

Step = Callable[[], object]
Timer = Callable[[int], float]
"""Makes so many calls and returns how many seconds they took."""
Run = Callable[[int], object]
"""Runs so many batches, in one call or in several."""
_SHORTEST_S = 1e-4
"""Repetitions are grouped until a group lasts this long, far above the cost of the clock."""
_ENOUGH_S = 3.0
"""A trial that has lasted this long ends with its round."""


class Stopwatch:
    """Seconds spent inside its `with` blocks so far."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


TRIALS = Stopwatch()
"""What trials have taken in this process so far."""


def seconds_of(step: Step, calls: int) -> float:
    """How long so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return time.perf_counter() - start


def calls_within(timer: Timer, seconds: float) -> int:
    """How many calls fit into this long, at least one; the first is not counted on, nor is a short second."""
    timer(1)
    taken = timer(1)
    return 1 if taken > seconds else max(1, round(seconds / max(timer(1), 1e-7)))


@dataclass
class Kernel:
    """A call of a probe, and how much work it does."""

    work: int
    call: Step

    @cached_property
    def _calls(self) -> int:
        return calls_within(partial(seconds_of, self.call), _SHORTEST_S)

    def rate(self) -> float:
        """Work per second of one group of calls."""
        return self.work * self._calls / seconds_of(self.call, self._calls)


def trial(timers: Sequence[Timer], seconds: float = 0.03, rounds: int = 9) -> list[float]:
    """Calls per second of each, the upper quartile of rounds that alternate; of long calls there are fewer rounds."""
    began = time.perf_counter()
    found: list[list[float]] = [[] for _ in timers]
    with TRIALS:
        counts = [calls_within(timer, seconds) for timer in timers]
        for _ in range(rounds):
            for timer, calls, rates in zip(timers, counts, found, strict=True):
                rates.append(calls / timer(calls))
            if time.perf_counter() - began > _ENOUGH_S:
                break
    return [upper_quartile(rates) for rates in found]


def upper_quartile(rates: Sequence[float]) -> float:
    """What is reached undisturbed: neighbours only ever slow a program down, and a lucky round must not decide.

    Of two programs on a restless machine it told the difference twice as sharply as the median.
    """
    return statistics.quantiles(rates, n=4, method="inclusive")[-1] if len(rates) > 1 else rates[0]


def batch_trial(runs: Sequence[Run], most: int, least: int = 2, seconds: float = 0.03) -> list[float]:
    """Batches per second of each way to run several at a time: as many as fit into this long, within the limits.

    (A thousand batches of a way that is a hundred times slower than another would take minutes to lose.)
    """
    counts = [_fitting(run, most, min(least, most), seconds) for run in runs]
    rates = trial([partial(seconds_of, partial(run, count)) for run, count in zip(runs, counts, strict=True)], seconds)
    return [count * rate for count, rate in zip(counts, rates, strict=True)]


def _fitting(run: Run, most: int, least: int, seconds: float) -> int:
    run(least)
    taken = seconds_of(partial(run, least), 1)
    return max(least, min(most, round(least * seconds / max(taken, 1e-7))))
