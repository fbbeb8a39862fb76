"""When a history changed: PELT over absolute deviations, which single outliers do not move.

Killick, Fearnhead and Eckley: Optimal detection of changepoints with a linear computational cost (2012).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layermark.stats.compare import START_SPREAD
from layermark.stats.rates import Array

MIN_SEGMENT = 3
"""Sessions on either side of a change: fewer could be one disturbed day."""

MIN_POINTS = 2 * MIN_SEGMENT + 2

# In units of the mean absolute deviation. Found by simulation: of 400 histories of 8 to 100 sessions without a change,
# normal or heavy-tailed, 2 % or fewer get one; a step of three standard deviations amid 20 sessions is found in 90 %.
_PENALTY = 4.0
_PENALTY_LOG = 1.6
_MEDIAN_TO_MEAN = 1.183  # of the absolute value of normal numbers


@dataclass(frozen=True, kw_only=True)
class Change:
    """A history stands at another level from `index` on: `before` and `after` are the medians of the two stretches."""

    index: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """The level after the change over that before it."""
        return self.after / self.before


def changes(values: Sequence[float], *, least: float = START_SPREAD) -> list[Change]:
    """Return the changes of level of positive values, oldest first; none up to `least` as a share is told.

    >>> [(each.index, each.after) for each in changes([10, 10.1, 9.9, 10, 10.1, 5, 5.1, 5, 4.9, 5])]
    [(5, 5.0)]
    """
    if len(values) < MIN_POINTS:
        return []
    logs = np.log(np.asarray(values, dtype=float))
    starts = pelt((logs / _deviation(logs)).tolist(), _PENALTY + _PENALTY_LOG * math.log(len(values)))
    edges = [0, *starts, len(values)]
    levels = [float(np.median(values[first:last])) for first, last in itertools.pairwise(edges)]
    found = [
        Change(index=start, before=before, after=after)
        for start, (before, after) in zip(starts, itertools.pairwise(levels), strict=True)
    ]
    return [each for each in found if abs(each.ratio - 1) > least]


def pelt(values: Sequence[float], penalty: float, min_segment: int = MIN_SEGMENT) -> list[int]:
    """Return where segments begin, after the first, in the split with the least cost.

    A segment costs the absolute deviations from its median, every split `penalty`. A start that is dearer than a split
    at `end` would be is not asked again once a segment that begins there is long enough, which keeps this exact.
    """
    best, previous = [-penalty], [0]
    segments: dict[int, _Segment] = {}
    for end in range(1, len(values) + 1):
        if math.isfinite(best[end - 1]):
            segments[end - 1] = _Segment(last=len(values))
        for segment in segments.values():
            segment.add(values[end - 1])
        costs = {start: best[start] + each.cost for start, each in segments.items() if end - start >= min_segment}
        previous.append(min(costs, key=lambda start: costs[start]) if costs else 0)
        best.append(costs[previous[end]] + penalty if costs else math.inf)
        for start, cost in costs.items():
            if cost > best[end]:
                segments[start].last = min(segments[start].last, end + min_segment - 1)
        segments = {start: each for start, each in segments.items() if each.last > end}
    return _path(previous)


class _Segment:
    """Values in order, and the sum of their distances from the median, kept up value by value."""

    def __init__(self, last: int) -> None:
        self.last = last
        """The end after which no split begins here."""
        self.cost = 0.0
        self._ordered: list[float] = []

    def add(self, value: float) -> None:
        """Take one more value: it costs its distance from the nearest median there was."""
        count = len(self._ordered)
        if count:
            low, high = self._ordered[(count - 1) // 2], self._ordered[count // 2]
            self.cost += max(low - value, value - high, 0.0)
        bisect.insort(self._ordered, value)


def _path(previous: Sequence[int]) -> list[int]:
    starts, end = [], len(previous) - 1
    while previous[end] > 0:
        end = previous[end]
        starts.append(end)
    return starts[::-1]


def _deviation(logs: Array) -> float:
    """The mean absolute deviation of a session, from neighbours, so that a change of level does not count."""
    seen = float(np.median(np.abs(np.diff(logs)))) * _MEDIAN_TO_MEAN / math.sqrt(2)
    # Sessions alike by chance must not make every wiggle a change.
    return max(seen, START_SPREAD / 4)
