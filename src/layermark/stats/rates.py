"""How fast: throughput, sustained rate and latency of blocks, with bootstrap intervals over the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from layermark.outcome import Block

Array = np.ndarray[Any, np.dtype[Any]]

CONFIDENCE = 0.95
RESAMPLES = 2000
SAMPLES_NEEDED = {"p50": 10, "p90": 50, "p99": 300}
"""How many latencies a percentile needs before it is given."""

_SEED = 20240229
_MIN_BLOCKS = 3


class Interval(NamedTuple):
    """A value and its 95 % interval, which one block alone cannot give."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """The longer arm of the interval as a share of the value."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.value, self.value - self.low) / self.value


def rates(blocks: Sequence[Block], items_per_batch: int) -> Array:
    """Items per second of every block."""
    items, seconds = _totals(blocks, items_per_batch)
    return np.asarray(items / seconds)


def throughput(blocks: Sequence[Block], items_per_batch: int) -> Interval | None:
    """One over the median time per item of the blocks; None without blocks."""
    timed = timed_blocks(blocks)
    if not timed:
        return None
    seconds_per_item = 1 / rates(timed, items_per_batch)
    resampled = np.median(seconds_per_item[_resamples(len(timed))], axis=1)
    return _interval(1 / float(np.median(seconds_per_item)), 1 / resampled, len(timed))


def sustained(blocks: Sequence[Block], items_per_batch: int) -> Interval | None:
    """All items over all timed seconds; None without blocks."""
    timed = timed_blocks(blocks)
    if not timed:
        return None
    items, seconds = _totals(timed, items_per_batch)
    chosen = _resamples(len(timed))
    resampled = items[chosen].sum(axis=1) / seconds[chosen].sum(axis=1)
    return _interval(float(items.sum() / seconds.sum()), resampled, len(timed))


def mean_rate(blocks: Sequence[Block], items_per_batch: int) -> float | None:
    """The seed documents' average: the mean of the blocks' rates without the first; None without two blocks."""
    timed = timed_blocks(blocks)
    return float(rates(timed[1:], items_per_batch).mean()) if len(timed) > 1 else None


def settled(blocks: Sequence[Block], items_per_batch: int, goal: float) -> bool:
    """The stop rule: whether the throughput's 95 % interval lies within +-goal of its value."""
    if len(timed_blocks(blocks)) < _MIN_BLOCKS:
        return False
    found = throughput(blocks, items_per_batch)
    return found is not None and found.half_width is not None and found.half_width <= goal


def latencies_ns(blocks: Sequence[Block]) -> list[int]:
    """Times of single batches: as the runtime told them, else the samples that ran one batch."""
    return [
        each for block in blocks for each in (block.latencies_ns or (block.samples_ns if block.batches == 1 else ()))
    ]


def latency_ms(blocks: Sequence[Block]) -> dict[str, float | None]:
    """Percentiles of the time of one batch; None where there are too few samples to know it."""
    times = latencies_ns(blocks)
    return {
        name: float(np.percentile(times, int(name[1:]))) / 1e6 if len(times) >= needed else None
        for name, needed in SAMPLES_NEEDED.items()
    }


def timed_blocks(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that hold at least one sample of measurable length."""
    return [block for block in blocks if sum(block.samples_ns) > 0]


def _totals(blocks: Sequence[Block], items_per_batch: int) -> tuple[Array, Array]:
    items = np.array([len(block.samples_ns) * block.batches * items_per_batch for block in blocks], dtype=float)
    seconds = np.array([sum(block.samples_ns) / 1e9 for block in blocks])
    return items, seconds


def _resamples(count: int) -> Array:
    """Row by row, which blocks a resample takes; the same for every call, so that results can be repeated."""
    return np.random.default_rng(_SEED).integers(0, count, (RESAMPLES, count))


def _interval(value: float, resampled: Array, count: int) -> Interval:
    if count < 2:
        return Interval(value)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value, min(float(low), value), max(float(high), value))
