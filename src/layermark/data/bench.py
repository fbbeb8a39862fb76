"""The loader measured alone: how many pictures it makes in a second, and what it spends its time on."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from layermark.data.feed import opened, pipeline_of, worker_count
from layermark.data.loader import Loader, loader
from layermark.data.pipeline import STAGES
from layermark.data.preprocess import Preprocess
from layermark.options import integer, option, seconds, size
from layermark.spec import Loading

_BLOCKS = 8
_WARM_UP_BATCHES = 2


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


def bench(asked: Bench, loading: Loading) -> dict[str, Any]:
    """Rates over blocks, with the lowest and the highest; shares of the loader's stages; what was bad."""
    source, trouble, folder = opened(loading)
    normalise = "none" if asked.dtype == "uint8" else loading.normalise
    wanted = Preprocess(
        asked.image_size, dtype=asked.dtype, layout=asked.layout, normalise=normalise, augment=loading.augment
    )
    pipeline = pipeline_of(source, loading, wanted)
    workers = worker_count(loading)
    made = loader(pipeline, asked.batch_size, workers=workers, prefetch=loading.prefetch, chunk=loading.loader_chunk)
    try:
        rates = _rates(made, asked, len(source))
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
        "workers": workers,
        "batch_size": asked.batch_size,
        "source": type(source).__name__,
        "samples": len(source),
        "folder": str(folder),
        "bad": trouble.found | tally.bad,
    }


def _rates(made: Loader, asked: Bench, samples: int) -> list[float]:
    """Images per second of every block, after the processes have come up and the first batches are gone."""
    for _ in range(_WARM_UP_BATCHES):
        next(made)
    if asked.epochs:
        batches = -(-samples // asked.batch_size)
        return [_rate(made, asked.batch_size, batches=batches) for _ in range(asked.epochs)]
    return [_rate(made, asked.batch_size, seconds=asked.seconds / _BLOCKS) for _ in range(_BLOCKS)]


def _rate(made: Loader, batch_size: int, *, batches: int = 0, seconds: float = 0.0) -> float:
    began, count = time.perf_counter(), 0
    while count < batches or (seconds and time.perf_counter() - began < seconds):
        next(made)
        count += 1
    return count * batch_size / (time.perf_counter() - began)
