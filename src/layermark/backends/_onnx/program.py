"""What the programs of both runtimes share: the ring of inputs, the clock, the weights inside of the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from layermark import ops
from layermark.backends._onnx import quantised
from layermark.backends._onnx.runners import Runner
from layermark.backends._onnx.writer import Array, compute_type, input_type, write
from layermark.backends.base import Arrays, Program, Timeline, live
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph
from layermark.spec import Spec, types_of
from layermark.workloads.base import Task
from layermark.workloads.folding import folded

UNROLLED_STEPS = 16
"""Loops up to this long are written out: 1.2 (ONNX Runtime) to 1.7 (OpenVINO) times as fast as the runtime's loop."""


class OnnxProgram(Program):
    """A model with its weights inside, behind a runner; other weights make another model.

    `written` is the precision that the model is written in, where a runtime takes the effective one as an option.
    """

    def __init__(self, spec: Spec, task: Task, written: str) -> None:
        if spec.quantised:
            quantised.refuse(spec, task.graph, spec.backend)
        self._spec, self._task, self._graph, self._written = spec, task, task.graph, written
        self._settings = describe(spec, task.graph)
        self.host = [feed(task.graph, task.batch(index), written) for index in range(spec.ring)]
        self._live = live(task, "NCHW", lambda batch: feed(task.graph, batch, written))
        self._evictor = np.zeros(cpu.evicted_bytes() // 4, "float32") if spec.cache == "cold" else None
        self._weights = task.weights()
        self._runner: Runner | None = self._build(self._weights)
        self._runner.run(3)
        self._rewind()

    def _model(self, weights: Arrays) -> ModelProto:
        """The model as it is written; what is to be quantised has its norms folded in."""
        graph, held = folded(self._graph, weights) if self._spec.quantised else (self._graph, weights)
        return write(graph, held, self._written, UNROLLED_STEPS)

    def _feeds(self, numbers: Iterable[int]) -> Iterator[dict[str, Array]]:
        """Batches by their numbers, under the names of the model's inputs."""
        for number in numbers:
            yield dict(zip(self._graph.inputs, feed(self._graph, self._task.batch(number), self._written), strict=True))

    def accuracy(self) -> Mapping[str, Any] | None:
        """Outputs for batches that nobody calibrated with, against those of the model that was quantised."""
        if not self._spec.quantised:
            return None
        full, narrow = self._full(), self._narrow()
        feeds = list(self._feeds(quantised.comparison(self._spec, self._graph)))
        outputs = [full(each) for each in feeds], [narrow(each) for each in feeds]
        return quantised.loss(*outputs, f"float32 outputs of {self._spec.backend}")

    @abstractmethod
    def _full(self) -> Callable[[Arrays], Array]:
        """Return a function of the inputs that gives the first output of the model in float32, whatever is measured."""

    @abstractmethod
    def _narrow(self) -> Callable[[Arrays], Array]:
        """Return a function of the inputs that gives the first output of the program that is measured."""

    @abstractmethod
    def _build(self, weights: Arrays) -> Runner:
        """A runner over a model with these weights; may add to the settings."""

    @abstractmethod
    def _results(self, place: int) -> Sequence[Array]:
        """The outputs of the batch at this place of the ring, in the order of the graph."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types."""
        return dict(self._settings)

    def run(self, batches: int) -> Timeline:
        """Run the next batches of the ring."""
        assert self._runner is not None, "the program was closed"
        return self._runner.run(batches)

    @property
    def seamless(self) -> bool:
        """Where batches run one by one."""
        return self._runner is not None and self._runner.seamless

    def outputs(self) -> Arrays:
        """The outputs of the last batch."""
        if self._runner is None or self._runner.last is None:
            raise RuntimeError("no batch has run since the weights were loaded")
        found = self._results(self._runner.last)
        return {name: np.array(each, "float32") for name, each in zip(self._graph.outputs, found, strict=True)}

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set the parameters; they are part of the compiled model, which is built again if they changed."""
        if self._runner is None or not _equal(self._weights, weights):
            if self._runner is not None:
                self._runner.close()
            self._runner = None
            self._weights = {name: np.array(values) for name, values in weights.items()}
            self._runner = self._build(self._weights)
        self._rewind()

    def _rewind(self) -> None:
        if self._runner is not None:
            self._runner.rewind()
        if self._live is not None:
            self._live.rewind()

    def weights(self) -> Arrays:
        """The parameters, rounded to the type that they are stored in."""
        stored = helper.tensor_dtype_to_np_dtype(compute_type(types_of(self._spec.precision)[1]))
        return {name: values.astype(stored).astype("float32") for name, values in self._weights.items()}

    @property
    def least_batches(self) -> int:
        """More than one where several are in flight."""
        return self._runner.least if self._runner else 1

    def close(self) -> None:
        """Let go of the model, inputs and outputs."""
        if self._runner is not None:
            self._runner.close()
        self._runner, self.host, self._evictor = None, [], None


def refuse(spec: Spec, runtime: str, executions: Sequence[str], devices: Sequence[str] = ("cpu",)) -> None:
    """Raise for what no ONNX runtime here can do."""
    if spec.execution not in executions:
        raise UserError(f"--execution {spec.execution}: {runtime} knows {', '.join(executions)}")
    if spec.mode == "train":
        raise Unsupported(f"{runtime} runs inference only")
    if spec.device not in devices:
        raise Unsupported(f"{runtime} runs on {' and '.join(devices)} here, not on {spec.device}")
    if spec.device != "cpu":
        _refuse_on_device(spec, runtime)
    if spec.formulation == "tuned":
        raise Unsupported(
            f"no tuned formulation of {spec.workload} on {runtime}, which picks layouts and kernels itself"
        )


def _refuse_on_device(spec: Spec, runtime: str) -> None:
    """What was thought out for CPUs only."""
    asked = {"int8": spec.quantised, "--execution throughput": spec.execution == "throughput"}
    asked |= {"--cache cold": spec.cache == "cold"}
    for name, wanted in asked.items():
        if wanted:
            raise Unsupported(f"{runtime} has {name} on cpu only here, not on {spec.device}")


def describe(spec: Spec, graph: Graph) -> dict[str, str]:
    """The settings that are known before anything is built."""
    settings = {"formulation": spec.formulation, "layout": "canonical outside, the runtime's choice inside"}
    loops = [node for node in graph if isinstance(node.op, ops.Recurrent) and node.op.form == "loop"]
    forms = {node.op.form for node in graph if isinstance(node.op, ops.Recurrent)}
    if forms:
        settings["cell"] = ",".join(sorted(forms))
    if loops:
        short = all(graph.shapes[node.name][0] <= UNROLLED_STEPS for node in loops)
        settings["loop"] = "written out" if short else "Scan"
    if spec.cache == "cold":
        settings["cache"] = cpu.cold_caches()
    return settings | {"allocator": spec.allocator}


def feed(graph: Graph, batch: Arrays, precision: str) -> tuple[Array, ...]:
    """One batch in the order and types that the model takes."""
    compute = compute_type(precision)
    kinds = [helper.tensor_dtype_to_np_dtype(input_type(op, compute)) for op in graph.inputs.values()]
    return tuple(np.asarray(batch[name], kind, order="C") for name, kind in zip(graph.inputs, kinds, strict=True))


def type_name(kind: int) -> str:
    """How settings call an ONNX element type."""
    names = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
    return names[kind]  # type: ignore[index]


def _equal(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(values, other[name]) for name, values in one.items())
