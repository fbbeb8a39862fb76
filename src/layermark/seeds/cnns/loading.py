"""The input pipelines alone: `host_benchmark.py`, and `--dataset-benchmark` of the TensorFlow programs."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layermark.data.base import Array
from layermark.data.feed import opened, pipeline_of, used, worker_count
from layermark.data.loader import loader
from layermark.data.preprocess import Preprocess
from layermark.options import switch
from layermark.report.text import percent
from layermark.seeds.cnns.inference import IMAGES, normalised_by
from layermark.seeds.cnns.validation import checked, loading_of
from layermark.seeds.job import gathered
from layermark.seeds.printing import LONG_S, duration
from layermark.session.deadline import Deadline
from layermark.spec import Loading

PASSES = 2
"""The PyTorch program reads the training set twice."""
EPOCH_BATCHES = 512
"""The TensorFlow programs take so many batches an epoch."""
MADE_UP = 1_281_167
"""Pictures in one pass over made-up data: as many as ImageNet has for training."""
_EPOCHS = {"imagenet": 100.0, "efficientnet": 350.0, "cifar": 160.0}

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an input pipeline is asked for."""

    wanted: Preprocess
    batch: int
    loading: Loading | None = None
    """None for pictures that are made up."""
    copied: bool = True
    """Whether made-up pictures are copied for every batch, or stay where they are."""

    @contextmanager
    def batches(self) -> Iterator[tuple[Iterator[object], int]]:
        """Batches without end, and how many pictures one pass over them has."""
        if self.loading is None:
            yield made_up(self.wanted, self.batch, copied=self.copied), MADE_UP
            return
        loading, (source, _, _) = self.loading, opened(self.loading)
        ahead = {"workers": worker_count(loading), "prefetch": loading.prefetch, "chunk": loading.loader_chunk}
        part = loading.data_percentage
        with closing(loader(pipeline_of(source, loading, self.wanted, percentage=part), self.batch, **ahead)) as made:
            yield made, used(source, part)


def made_up(wanted: Preprocess, batch: int, *, copied: bool) -> Iterator[Array]:
    """The same random batch without end: copied every time, or not even that."""
    random = np.random.default_rng(0).integers(0, 255, (batch, wanted.channels, *wanted.size))
    made = random.astype(wanted.dtype)
    target = np.empty_like(made)

    def copies() -> Iterator[Array]:
        while True:
            np.copyto(target, made)
            yield target

    return copies() if copied else itertools.repeat(made)


def timed(stream: Iterator[object], batches: int, limit_s: float) -> tuple[int, float]:
    """Take batches, as many as asked for or as fit, at least one; return how many, and how long they took."""
    began, done = time.perf_counter(), 0
    while done < batches and (done == 0 or time.perf_counter() - began < limit_s):
        next(stream)
        done += 1
    return done, max(time.perf_counter() - began, 1e-9)


def host_benchmark(values: Values) -> int:
    """Read everything twice and print the rate of each pass; instances of a job read at once, and rates add up."""
    deadline, reading = Deadline(values["budget"]), host_reading(values)
    with gathered() as all_rates, reading.batches() as (stream, pictures):
        batches = math.ceil(pictures / reading.batch)
        for left in range(PASSES, 0, -1):
            done, seconds = timed(stream, batches, deadline.left() / left)
            short = "" if done == batches else f" (the budget ended the pass after {done} of {batches} batches)"
            if rates := all_rates(done * reading.batch / seconds):
                print(f"Throughput: {sum(rates):.1f} img/sec{short}", flush=True)
                if len(rates) > 1:
                    print(each_rate(rates), flush=True)
    return 0


def each_rate(rates: Sequence[float]) -> str:
    """Return the rate of every instance in one line, and how far the slowest stays behind the fastest.

    >>> each_rate([90.0, 100.0])
    '  each      90.0, 100.0 img/sec; instance 0 is the slowest, 10.0% behind the fastest'
    """
    slowest = min(range(len(rates)), key=lambda instance: rates[instance])
    behind = percent(1 - rates[slowest] / max(rates))
    shown = ", ".join(f"{rate:.1f}" for rate in rates)
    return f"  each      {shown} img/sec; instance {slowest} is the slowest, {behind} behind the fastest"


def host_reading(values: Values) -> Reading:
    """What `host_benchmark.py` is asked for."""
    wanted = Preprocess(
        values["image_size"],
        dtype="uint8" if values["eight_bit_io"] else "float32",
        normalise="full" if normalised_by(values) == "host" else "none",
        augment=values["data"] in ("imagenet", "cifar10"),
    )
    if values["data"] in ("synthetic", "generated"):
        return Reading(wanted=wanted, batch=values["batch_size"], copied=values["data"] == "generated")
    return Reading(wanted=wanted, batch=values["batch_size"], loading=_host_loading(values))


def _host_loading(values: Values) -> Loading:
    folder, pictures = values["imagenet_data_path"] or "", values["data"] == "real"
    if pictures and not folder:
        folder = next((each for each in IMAGES if Path(each).is_dir()), IMAGES[0])
    workers = Loading.loader_workers if values["dataloader_worker"] is None else values["dataloader_worker"]
    return Loading(
        data_dir=folder,
        source={"real": "images", "cifar10": "cifar"}.get(values["data"], "auto"),
        split="validation" if pictures else "train",
        loader_workers=0 if values["disable_async_loading"] else workers,
        loader_chunk=values["dataloader_rebatch_size"] or Loading.loader_chunk,
        data_cache=values["webdataset_memory_cache_ratio"],
        skip_bad=switch(values["skip_bad"]),
    )


def dataset_benchmark(typed: Values) -> int:
    """Take 512 batches an epoch from the input pipeline of a TensorFlow program and print the mean rate."""
    values = checked(typed)
    return benchmark(dataset_reading(values), values["epochs"] or _epochs(values), Deadline(typed["budget"]))


def benchmark(reading: Reading, epochs: float, deadline: Deadline) -> int:
    """Take 512 batches an epoch and print the mean rate."""
    epochs = math.ceil(epochs)
    with reading.batches() as (stream, _):
        rates = list(_rates(stream, epochs, reading.batch, deadline))
    print(f"Mean throughput over {len(rates)} epochs: {statistics.fmean(rates):.1f} imgs/sec", flush=True)
    return 0


def dataset_reading(values: Values) -> Reading:
    """What the input pipeline of a TensorFlow program is asked for."""
    small = values["dataset"] != "imagenet"
    size = 32 if small else values["image_size"] or 224
    host = values["hostside_norm"] and not values["eight_bit_io"]
    wanted = Preprocess(
        (size, size),
        dtype="uint8" if values["eight_bit_io"] else "float32",
        layout="NHWC",
        normalise=("full" if values["normalise_input"] else "mean") if host else "none",
        whole=small,
    )
    loading = loading_of(values) if values["data"] == "real" else None
    return Reading(wanted=wanted, batch=values["batch_size"], loading=loading, copied=values["data"] == "generated")


def _epochs(values: Values) -> float:
    """How long the programs train by default."""
    kind = "cifar" if values["dataset"] != "imagenet" else values["model"]
    return _EPOCHS.get(kind, _EPOCHS["imagenet"])


def _rates(stream: Iterator[object], epochs: int, batch: int, deadline: Deadline) -> Iterator[float]:
    for number in range(epochs):
        done, seconds = timed(stream, EPOCH_BATCHES, deadline.left())
        if number == 0 and seconds * epochs > LONG_S and deadline.left() == math.inf:
            taken = duration(seconds * epochs)
            print(f"This run will take about {taken}; --budget 2m would end it in time.", flush=True)
        yield done * batch / seconds
        if deadline.left() == 0:
            return
