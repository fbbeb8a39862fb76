"""The loader measured alone: how many pictures it makes in a second, and what it spends its time on."""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from layermark.data.feed import opened, pipeline_of, started, worker_count
from layermark.data.loader import Loader
from layermark.data.pipeline import STAGES
from layermark.data.preprocess import Preprocess
from layermark.data.stream import TrainingStream
from layermark.options import integer, option, seconds, size
from layermark.spec import Loading

_BLOCKS = 8
_WARM_UP_BATCHES = 2
_SHARE = 0.9
"""Of a budget, for everything but starting and ending."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is timed."""

    batch_size: int = option(64, parse=integer(1), axis=False, help="pictures in a batch")
    image_size: tuple[int, int] = option((224, 224), parse=size(), axis=False, help="size of the finished pictures")
    dtype: str = option(
        "float32", choices=("float32", "float16", "uint8"), axis=False, help="type of the numbers; uint8 is 8-bit I/O"
    )
    layout: str = option("NCHW", choices=("NCHW", "NHWC"), axis=False, help="order of a batch in memory")
    seconds: float = option(5.0, parse=seconds, axis=False, help="how long to time")
    epochs: int = option(0, parse=integer(1), axis=False, help="read the data so many times instead, a block each")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What a stream delivered to somebody who does nothing else than take batches."""

    pictures: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        """Pictures per second."""
        return self.pictures / self.seconds


def loader_rate(stream: TrainingStream, batches: int, limit_s: float = math.inf) -> Rate:
    """Take so many batches, or those that fit into the limit (at least one), and return the rate of this rank.

    The processes come up before the first batch; take one beforehand to leave that out.
    """
    began, count = time.perf_counter(), 0
    while count < batches and (count == 0 or time.perf_counter() - began < limit_s):
        next(stream)
        count += 1
    return Rate(pictures=count * stream.batch_size, seconds=time.perf_counter() - began)


def bench(benchmark: Bench, loading: Loading, budget_s: float | None = None) -> dict[str, Any]:
    """Rates over blocks, with the lowest and the highest; shares of the loader's stages; what was bad.

    Within a budget there are fewer and shorter blocks, at least one of at least one batch.
    """
    end = time.perf_counter() + (math.inf if budget_s is None else _SHARE * budget_s)
    source, trouble, folder = opened(loading)
    normalise = "none" if benchmark.dtype == "uint8" else loading.normalise
    wanted = Preprocess(
        benchmark.image_size,
        dtype=benchmark.dtype,
        layout=benchmark.layout,
        normalise=normalise,
        augment=loading.augment,
        whole=source.whole,
    )
    pipeline = pipeline_of(source, loading, wanted)
    made = started(pipeline, benchmark.batch_size, loading)
    try:
        rates = _rates(made, benchmark, len(source), end)
    finally:
        made.close()
    tally = made.tally
    total = sum(getattr(tally, stage) for stage in STAGES)
    return {
        "images_per_s": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "blocks": len(rates),
        "shares": {stage: getattr(tally, stage) / total for stage in STAGES},
        "ms_per_image": total / tally.pictures / 1e6,
        "workers": worker_count(loading),
        "batch_size": benchmark.batch_size,
        "source": type(source).__name__,
        "samples": len(source),
        "folder": str(folder),
        "bad": trouble.found | tally.bad,
    }


def _rates(made: Loader, benchmark: Bench, samples: int, end: float) -> list[float]:
    """Images per second of every block, after the processes have come up and the first batches are gone."""
    for _ in range(_WARM_UP_BATCHES):
        next(made)
    if benchmark.epochs:
        batches, blocks, limit_s = -(-samples // benchmark.batch_size), benchmark.epochs, math.inf
    else:
        left_s = max(0.0, end - time.perf_counter())
        batches, blocks, limit_s = sys.maxsize, _BLOCKS, min(benchmark.seconds, left_s) / _BLOCKS
    rates: list[float] = []
    while len(rates) < blocks and (not rates or time.perf_counter() < end):
        rates.append(_rate(made, benchmark.batch_size, batches, min(limit_s, end - time.perf_counter())))
    return rates


def _rate(made: Loader, batch_size: int, batches: int, limit_s: float) -> float:
    began, count = time.perf_counter(), 0
    while count < batches and (count == 0 or time.perf_counter() - began < limit_s):
        next(made)
        count += 1
    return count * batch_size / (time.perf_counter() - began)
