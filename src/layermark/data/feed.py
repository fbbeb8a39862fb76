"""From the options of a measurement to the batches that a network is fed with."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from layermark.data.base import Array, BadData, Place, Source, Trouble
from layermark.data.cache import cache_for
from layermark.data.files import file_facts
from layermark.data.loader import Batch, Loader, loader
from layermark.data.opening import default_folder, open_source
from layermark.data.order import ALL, Order, Position, Shard
from layermark.data.pipeline import Pipeline, Tally
from layermark.data.preprocess import Preprocess
from layermark.errors import UserError
from layermark.graph import Graph
from layermark.laws import Integers, Uniform
from layermark.ops import Input, Normalise
from layermark.spec import Loading, Spec
from layermark.training.mixing import MIXED

_MOST_WORKERS = 32


def opened(loading: Loading) -> tuple[Source, Trouble, Path]:
    """The data set that these options name, what was bad about it, and where it is."""
    folder = Path(loading.data_dir) if loading.data_dir else default_folder()
    trouble = Trouble(skip=loading.skip_bad)
    return open_source(loading.source, Place(folder, loading.split, trouble)), trouble, folder


def worker_count(loading: Loading) -> int:
    """How many processes load."""
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0))) if loading.loader_workers < 0 else loading.loader_workers


def used(source: Source, percentage: int) -> int:
    """Return how many samples this part of a set has."""
    return max(1, len(source) * percentage // 100)


def pipeline_of(
    source: Source, loading: Loading, preprocess: Preprocess, seed: int = 0, *, percentage: int = 100
) -> Pipeline:
    """Return what fills rows of a batch; with `percentage` only so many of the samples are used."""
    order = Order(used(source, percentage), shuffle=loading.shuffle, seed=seed, of=len(source))
    cache = cache_for(source, loading.data_cache)
    return Pipeline(source, order, preprocess, skip_bad=loading.skip_bad, cache=cache)


def started(pipeline: Pipeline, batch_size: int, loading: Loading, *, shard: Shard = ALL, start: int = 0) -> Loader:
    """Return a loader at work, with the processes that the options ask for."""
    ahead = {"workers": worker_count(loading), "prefetch": loading.prefetch, "chunk": loading.loader_chunk}
    return loader(pipeline, batch_size, shard, start=start, **ahead)


def picture_input(graph: Graph) -> str:
    """The name of the input that takes pictures."""
    for name, op in graph.inputs.items():
        if op.role == "data" and len(op.dims) == 4 and op.dims[1] in (3, 4):
            return name
    raise UserError("--data real feeds pictures, and this network has no input for any; use --data generated")


def fingerprint(source: Source) -> str:
    """A short name of the files behind a source, as they are now."""
    digest = hashlib.sha256()
    for path in source.files:
        facts = file_facts(path)
        digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


class Pictures:
    """The stream of batches that a graph is fed with: pictures and labels from files, all else from its laws.

    Of several ranks, each takes its shard. `percentage` is the part of the set that is used.
    """

    def __init__(
        self,
        graph: Graph,
        spec: Spec,
        drawn: Callable[[int, Sequence[str]], dict[str, Array]],
        *,
        shard: Shard = ALL,
        percentage: int = 100,
        mixed: Callable[[dict[str, Array], int], dict[str, Array]] | None = None,
    ) -> None:
        self._mixed = mixed or (lambda fed, index: fed)
        self._graph, self._loading, self._seed, self._drawn = graph, spec.loading, spec.seed, drawn
        self._shard, self._percentage = shard, percentage
        self._ring, self._name = spec.ring, picture_input(graph)
        self._labels = _label_inputs(graph)
        self._source, self._trouble, self._folder = opened(spec.loading)
        if not self._source.labelled and self._labels:
            self._source.classes = min(self._labels.values())
        self._samples = used(self._source, percentage)
        self._rest: dict[int, dict[str, Array]] = {}
        self._loader: Loader | None = None
        self._from = 0
        self._handed: list[int] | None = None
        self.labels: Array = np.zeros(0, "int32")

    @property
    def batch_size(self) -> int:
        """Pictures in a batch."""
        return self._graph.inputs[self._name].dims[0]

    def preprocess(self, layout: str) -> Preprocess:
        """What the network expects of its pictures: bytes, or floats that somebody has normalised."""
        op = self._graph.inputs[self._name]
        return Preprocess(
            size=(op.dims[2], op.dims[3]),
            channels=op.dims[1],
            dtype="uint8" if op.item_bytes == 1 else "float32",
            layout=layout,
            normalise=host_normalisation(self._graph, self._name, self._loading.normalise),
            augment=self._loading.augment,
            whole=self._source.whole,
            seed=self._seed,
        )

    def batch(self, index: int) -> dict[str, Array]:
        """This rank's batch of this number, loaded here and now."""
        pipeline = self._pipeline("NCHW", replace(self._loading, data_cache=0.0))
        pictures, labels = pipeline.preprocess.empty(self.batch_size), np.zeros(self.batch_size, "int32")
        position = self._shard.position(index, self.batch_size)
        pipeline.fill(pictures, labels, position, Tally())
        return self._complete(Batch(pictures, labels), position // self.batch_size)

    def start(self, layout: str) -> None:
        """Begin to load ahead; copies of a program read one stream in turns."""
        if self._loader is not None:
            return
        pipeline = self._pipeline(layout, self._loading)
        self._loader = started(pipeline, self.batch_size, self._loading, shard=self._shard, start=self._from)

    def take(self) -> dict[str, Array]:
        """The next batch."""
        assert self._loader is not None, "the stream was not started"
        position = self._loader.position + self._shard.position(0, self.batch_size)
        loaded = next(self._loader)
        self.labels = loaded.labels
        if self._handed is not None:
            self._handed.append(time.perf_counter_ns())
        return self._complete(loaded, position // self.batch_size)

    def watch(self) -> list[int]:
        """A new list that grows by the moment at which each batch is handed over."""
        self._handed = []
        return self._handed

    @property
    def position(self) -> Position:
        """Where the stream is: what to `seek` to go on from here, in this process or another."""
        taken = self._from if self._loader is None else self._loader.position
        return Position(pictures=taken, samples=self._samples, seed=self._seed)

    def seek(self, position: Position) -> None:
        """Go on from a position; raise `UserError` if it is that of another stream."""
        self._go(position.check(samples=self._samples, seed=self._seed))

    def rewind(self) -> None:
        """Go back to the first batch."""
        self._go(0)

    def _go(self, pictures: int) -> None:
        self._from = pictures
        if self._loader is not None:
            self._loader.seek(pictures)

    def counters(self) -> Mapping[str, float]:
        """What loading has taken so far; samples that were bad already on opening count as well."""
        found = self._loader.counters() if self._loader else {}
        return {**found, "bad": found.get("bad", 0.0) + len(self._trouble.found)}

    def close(self) -> None:
        """End the loader's processes."""
        if self._loader is not None:
            self._loader.close()

    def _pipeline(self, layout: str, loading: Loading) -> Pipeline:
        return pipeline_of(self._source, loading, self.preprocess(layout), self._seed, percentage=self._percentage)

    def _complete(self, loaded: Batch, index: int) -> dict[str, Array]:
        """All inputs of the graph: labels go where class numbers are expected.

        The number is that in the stream of all ranks: masks and mixing must not depend on how many there are.
        """
        for name, classes in self._labels.items():
            if loaded.labels.max() >= classes:
                reason = f"wrong label {loaded.labels.max()}: input {name} of the network takes 0 to {classes - 1}"
                raise BadData(self._folder, reason)
        fed = {self._name: loaded.pictures, **dict.fromkeys(self._labels, loaded.labels)}
        return self._mixed({**fed, **self._others(set(fed), index)}, index)

    def _others(self, known: set[str], index: int) -> dict[str, Array]:
        """What is drawn: masks anew for every batch, all else with the ring."""
        rest = [name for name in self._graph.inputs if name not in known | MIXED]
        masks = [name for name in rest if self._graph.inputs[name].role == "mask"]
        place = index % self._ring
        if place not in self._rest:
            self._rest[place] = self._drawn(place, [name for name in rest if name not in masks])
        return {**self._rest[place], **self._drawn(index, masks)}


def host_normalisation(graph: Graph, name: str, asked: str) -> str:
    """What is left for the host to do, given what the network does to its pictures itself."""
    if any(name in node.inputs and isinstance(node.op, Normalise) for node in graph):
        return "scale" if graph.inputs[name].law == Uniform(0, 1) else "none"
    return "none" if graph.inputs[name].item_bytes == 1 else asked


def _label_inputs(graph: Graph) -> dict[str, int]:
    """The inputs that take one class number per picture, and how many classes each knows."""
    return {
        name: op.law.high for name, op in graph.inputs.items() if _takes_labels(op) and isinstance(op.law, Integers)
    }


def _takes_labels(op: Input) -> bool:
    return op.role == "target" and len(op.dims) == 1 and isinstance(op.law, Integers)
