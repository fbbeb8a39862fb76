"""What a workload is: its own options, and the graph that they describe."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from layermark import registry
from layermark.graph import Graph
from layermark.laws import random_generator
from layermark.ops import Input
from layermark.spec import MODES, Group, Spec
from layermark.timing import Stopwatch
from layermark.training.mixing import Mixing
from layermark.training.update import Update
from layermark.workloads.checkpoint import Loaded
from layermark.workloads.weights import Calibrated, InitialWeights, Seeded

if TYPE_CHECKING:
    import numpy as np


class InputStream(Protocol):
    """Batches that come from somewhere else, one after the other, without end."""

    def batch(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        """The batch of this number, whole and for keeps."""
        ...

    def start(self, layout: str) -> None:
        """Begin to make batches ahead; pictures in this order in memory (NCHW or NHWC), seen as NCHW."""
        ...

    def take(self) -> dict[str, np.ndarray[Any, Any]]:
        """The next batch; valid until the next one is taken."""
        ...

    def rewind(self) -> None:
        """Go back to the first batch."""
        ...

    def counters(self) -> Mapping[str, float]:
        """What loading has taken so far."""
        ...

    def watch(self) -> list[int]:
        """A list that grows by the moment (in nanoseconds of `perf_counter`) at which each batch is handed over."""
        ...

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """The classes of the pictures in the batch that was taken last."""
        ...

    def close(self) -> None:
        """Let go of processes and memory."""
        ...


@dataclass(frozen=True)
class Task:
    """A graph with everything a run needs besides it: the values it is fed with, and what counts as an item."""

    graph: Graph
    seed: int
    items: int
    """Items in one batch."""
    values: str = "random"
    update: Update = field(default_factory=Update)
    """How training moves the parameters."""
    initial_weights: InitialWeights | None = None
    """Where the parameters come from, if not from their laws alone."""
    mixing: Mixing = field(default_factory=Mixing)
    """How pictures are mixed with each other."""
    stream: InputStream | None = field(default=None, compare=False, repr=False)
    """Where inputs come from, if they are not drawn."""
    group: Group | None = field(default=None, compare=False)
    """The ranks that this one works with; None for a rank that works alone."""
    ring: int = 0
    """How many inputs are drawn, where the replicas of a group share them."""
    drawing: Stopwatch = field(default_factory=Stopwatch, compare=False, repr=False)
    """What drawing weights and inputs has taken: a program makes its ring while it is built, which is no compiling."""

    def flops(self, mode: str) -> int:
        """Exact scalar operations of one batch, its share of the update included."""
        return self.graph.flops(mode, self.update)

    def compulsory_bytes(self, mode: str, compute_bytes: int = 4, weight_bytes: int = 4) -> int:
        """Bytes that one batch must move at least."""
        return self.graph.compulsory_bytes(mode, compute_bytes, weight_bytes)

    def memory_bytes(self, mode: str, ring: int, weight_copies: float = 4) -> int:
        """A rough upper estimate of what a program holds: its ring, its weights and its activations."""
        fed = 4 * sum(math.prod(op.dims) for op in self.graph.inputs.values())
        return ring * fed + int(weight_copies * self.weight_bytes) + self.activation_bytes(mode)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters in float32."""
        return 4 * sum(each.count for each in self.graph.parameters.values())

    def activation_bytes(self, mode: str) -> int:
        """A rough upper estimate of the activations in float32."""
        return activation_bytes(self.graph, mode)

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """The initial parameters; the same on every backend, and made once."""
        return dict(self._made)

    def weights_of(self, names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Some of the initial parameters. Nobody keeps them, unless all were asked for before."""
        if "_made" in self.__dict__:
            return {name: each for name, each in self._made.items() if name in names}
        return self._first(names)

    @cached_property
    def _made(self) -> dict[str, np.ndarray[Any, Any]]:
        return self._first(None)

    def _first(self, names: Collection[str] | None) -> dict[str, np.ndarray[Any, Any]]:
        with self.drawing:
            drawn = (self.initial_weights or Seeded(self.graph, self.seed)).weights(names)
        return {name: each * 0 for name, each in drawn.items()} if self.values == "zeros" else drawn

    def batch(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs and targets number `index` of the ring; the same on every backend.

        Replicas of a group take them in turn, so that together they see what one process alone would see.
        """
        if self.stream is None and self.group is not None:
            return self.drawn((index * self.group.replicas + self.group.replica) % self.ring)
        if self.stream is None:
            return self.drawn(index)
        with self.drawing:
            return self.stream.batch(index)

    def drawn(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs and targets number `index`, all from their laws."""
        return self.mixed(self.drawn_of(index, self.graph.inputs), index)

    def drawn_of(self, index: int, names: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Some inputs of number `index` from their laws; those that mix pictures are not theirs alone to draw."""
        with self.drawing:
            drawn = {
                name: op.law.draw(random_generator(self.seed, "input", name, index), op.dims)
                for name, op in ((name, self.graph.inputs[name]) for name in names)
            }
        return {name: self._valued(self.graph.inputs[name], each, index) for name, each in drawn.items()}

    def mixed(self, fed: dict[str, np.ndarray[Any, Any]], index: int) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs number `index` with the coefficients that their pictures are mixed by."""
        if not self.mixing.active or self.graph.pictures is None:
            return fed
        return self.mixing.fed(fed, self.graph.pictures, seed=self.seed, index=index)

    def _valued(self, op: Input, drawn: np.ndarray[Any, Any], index: int) -> np.ndarray[Any, Any]:
        """What an input holds instead of what was drawn; distributions stay, since zeros do not add up to one."""
        if self.values == "random" or (op.role == "target" and self.values != "zeros") or op.role == "mask":
            return drawn
        if op.role == "target" and getattr(op.law, "sums_to_one", False):
            return drawn
        return drawn * 0 + (index if self.values == "counting" else 0)


class Workload(ABC):
    """A layer or model under a name. `Params` holds its own options and their defaults."""

    summary: str
    item: ClassVar[str]
    family: ClassVar[str] = ""
    """What workloads with the same options are called together."""
    default_batch_size: ClassVar[int] = 1
    modes: ClassVar[tuple[str, ...]] = MODES
    calibrated: ClassVar[bool] = False
    """Whether seeded parameters are brought to where every node's output has a variance near one."""
    Params: ClassVar[type]

    @abstractmethod
    def graph(self, params: Any, *, batch_size: int, mode: str, loss: str) -> Graph:
        """The network for these options; outputs are (y), (y, loss) or (loss) in infer, eval and train."""

    def items(self, params: Any, batch_size: int) -> int:
        """How many items one batch counts for."""
        return batch_size

    def task(self, spec: Spec, batch_size: int) -> Task:
        """What a spec of this workload asks for."""
        params = self.Params(**spec.params)
        graph = self.graph(params, batch_size=batch_size, mode=spec.mode, loss=spec.loss)
        graph = graph.smoothed(spec.update.label_smoothing).mixed(spec.mixing)
        return Task(
            graph,
            spec.seed,
            self.items(params, batch_size),
            spec.values,
            spec.update,
            self._initial_weights(spec, params, graph),
            mixing=spec.mixing,
        )

    def _initial_weights(self, spec: Spec, params: Any, graph: Graph) -> InitialWeights | None:
        if spec.weights:
            return Loaded(graph, spec.weights)

        def infers(batch_size: int) -> Graph:
            return self.graph(params, batch_size=batch_size, mode="infer", loss=spec.loss)

        identity = {"workload": spec.workload, "params": spec.to_json()["params"]}
        return Calibrated(infers, spec.seed, identity) if self.calibrated else None


def workload(name: str) -> Workload:
    """The workload of this name."""
    module = registry.find("workloads", name)
    found: Workload = module.WORKLOADS[name] if hasattr(module, "WORKLOADS") else module.WORKLOAD
    return found


def task(spec: Spec, batch_size: int | None = None) -> Task:
    """The task that a spec describes; another batch size gives the same network for fewer items."""
    return workload(spec.workload).task(spec, batch_size or spec.batch_size)


_BLOCK = 16
"""Floats of the widest vector register."""


def activation_bytes(graph: Graph, mode: str) -> int:
    """Return a rough upper estimate of a graph's activations in float32.

    A backward pass needs every one of them; without it a few times what is live at once, for workspaces.
    """
    kept = sum(math.prod(shape) for shape in graph.shapes.values()) if mode == "train" else graph.most_live
    return 4 * (3 * kept + _blocked_inputs(graph))


def _blocked_inputs(graph: Graph) -> int:
    """Elements of pictures as the CPU's convolutions read them: with as many channels as a vector register holds."""
    pictures = [op.dims for op in graph.inputs.values() if len(op.dims) == 4 and op.dims[1] < _BLOCK]
    return sum(math.prod(dims) // dims[1] * _BLOCK for dims in pictures)


def kept_bytes(graph: Graph) -> int:
    """Bytes in float32 of everything that the nodes of a graph give for one batch."""
    return 4 * sum(math.prod(shape) for shape in graph.shapes.values())


def block_bytes(graph: Graph) -> int:
    """The same while activations are computed again block by block: what blocks hand on, and the inside of one."""
    blocks = [[4 * math.prod(graph.shapes[node.name]) for node in block] for block in graph.blocks()]
    return sum(block[-1] for block in blocks) + max(map(sum, blocks))


def default_params(found: Workload) -> Mapping[str, Any]:
    """Every option of a workload with its default."""
    return dataclasses.asdict(found.Params())
