"""From the options of a measurement to the batches that a network is fed with."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from layermark.data.base import Array, BadData, Place, Source, Trouble
from layermark.data.loader import Batch, Loader, loader
from layermark.data.opening import default_folder, open_source
from layermark.data.order import Order
from layermark.data.pipeline import Pipeline, Tally
from layermark.data.preprocess import Preprocess
from layermark.errors import UserError
from layermark.graph import Graph
from layermark.laws import Integers, Uniform
from layermark.ops import Input, Normalise
from layermark.spec import Loading, Spec

_MOST_WORKERS = 32


def opened(loading: Loading) -> tuple[Source, Trouble, Path]:
    """The data set that these options name, what was bad about it, and where it is."""
    folder = Path(loading.data_dir) if loading.data_dir else default_folder()
    trouble = Trouble(skip=loading.skip_bad)
    return open_source(loading.source, Place(folder, loading.split, trouble)), trouble, folder


def worker_count(loading: Loading) -> int:
    """How many processes load."""
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0))) if loading.loader_workers < 0 else loading.loader_workers


def pipeline_of(source: Source, loading: Loading, preprocess: Preprocess, seed: int = 0) -> Pipeline:
    """What fills rows of a batch."""
    order = Order(len(source), shuffle=loading.shuffle, seed=seed)
    return Pipeline(source, order, preprocess, skip_bad=loading.skip_bad, cache=loading.data_cache)


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
        facts = path.stat()
        digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


class Pictures:
    """The stream of batches that a graph is fed with: pictures and labels from files, all else from its laws."""

    def __init__(self, graph: Graph, spec: Spec, drawn: Callable[[int], dict[str, Array]]) -> None:
        self._graph, self._loading, self._seed, self._drawn = graph, spec.loading, spec.seed, drawn
        self._ring, self._name = spec.ring, picture_input(graph)
        self._labels = _label_inputs(graph)
        self._source, self._trouble, self._folder = opened(spec.loading)
        if not self._source.labelled and self._labels:
            self._source.classes = min(self._labels.values())
        self._rest: dict[int, dict[str, Array]] = {}
        self._loader: Loader | None = None
        self._next = 0
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
        """The batch of this number, loaded here and now."""
        pipeline = pipeline_of(self._source, self._loading, self.preprocess("NCHW"), self._seed)
        pictures, labels = pipeline.preprocess.empty(self.batch_size), np.zeros(self.batch_size, "int32")
        pipeline.fill(pictures, labels, index * self.batch_size, Tally())
        return self._complete(Batch(pictures, labels), index)

    def start(self, layout: str) -> None:
        """Begin to load ahead; copies of a program read one stream in turns."""
        if self._loader is not None:
            return
        pipeline = pipeline_of(self._source, self._loading, self.preprocess(layout), self._seed)
        self._loader = loader(
            pipeline,
            self.batch_size,
            workers=worker_count(self._loading),
            prefetch=self._loading.prefetch,
            chunk=self._loading.loader_chunk,
        )

    def take(self) -> dict[str, Array]:
        """The next batch."""
        assert self._loader is not None, "the stream was not started"
        self._next += 1
        loaded = next(self._loader)
        self.labels = loaded.labels
        if self._handed is not None:
            self._handed.append(time.perf_counter_ns())
        return self._complete(loaded, self._next - 1)

    def watch(self) -> list[int]:
        """A new list that grows by the moment at which each batch is handed over."""
        self._handed = []
        return self._handed

    def rewind(self) -> None:
        """Go back to the first batch."""
        self._next = 0
        if self._loader is not None:
            self._loader.restart()

    def counters(self) -> Mapping[str, float]:
        """What loading has taken so far; samples that were bad already on opening count as well."""
        found = self._loader.counters() if self._loader else {}
        return {**found, "bad": found.get("bad", 0.0) + len(self._trouble.found)}

    def close(self) -> None:
        """End the loader's processes."""
        if self._loader is not None:
            self._loader.close()

    def _complete(self, loaded: Batch, index: int) -> dict[str, Array]:
        """All inputs of the graph: labels go where class numbers are expected."""
        for name, classes in self._labels.items():
            if loaded.labels.max() >= classes:
                reason = f"wrong label {loaded.labels.max()}: input {name} of the network takes 0 to {classes - 1}"
                raise BadData(self._folder, reason)
        place = index % self._ring
        if place not in self._rest:
            known = {self._name, *self._labels}
            drawn = self._drawn(place) if known != set(self._graph.inputs) else {}
            self._rest[place] = {name: each for name, each in drawn.items() if name not in known}
        return {self._name: loaded.pictures, **dict.fromkeys(self._labels, loaded.labels), **self._rest[place]}


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
