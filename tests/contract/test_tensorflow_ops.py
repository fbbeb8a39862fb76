"""Every operation of the vocabulary, lowered alone to TensorFlow, against the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from layermark import ops, reference
from layermark.graph import Builder, Graph
from layermark.laws import Integers, Normal, Uniform
from layermark.spec import Spec
from layermark.workloads.base import Task
from layermark.workloads.objective import Shares

pytest.importorskip("tensorflow")
execution = pytest.importorskip("layermark.backends.tensorflow.execution")
network = pytest.importorskip("layermark.backends.tensorflow.network")

PICTURES = (2, 6, 7, 9)
SEQUENCES = (4, 3, 5)
SINGLE = (4, 1, 5)
LONG = (19, 3, 5)
ROWS = (3, 8)
BITS = Integers(0, 2)
CELLS = ("rnn", "gru", "lstm")
WAYS = pytest.mark.parametrize("xla", [False, True], ids=["function", "xla"])


@dataclass(frozen=True)
class Case:
    """One operation and the shapes it reads."""

    op: ops.Op
    shapes: tuple[tuple[int, ...], ...]
    laws: Mapping[int, Any]

    @property
    def name(self) -> str:
        """What pytest shows."""
        fields = ",".join(f"{name}={value}" for name, value in vars(self.op).items() if "law" not in name)
        return f"{type(self.op).__name__}({fields})"

    def law(self, index: int) -> Any:
        """The law of one input."""
        return self.laws.get(index, Normal())


def case(op: ops.Op, *shapes: tuple[int, ...], **laws: Any) -> Case:
    """A case; a keyword such as `law1` gives the law of input number 1."""
    return Case(op, shapes, {int(key[3:]): law for key, law in laws.items()})


GROUPED = [
    case(ops.Conv2d(6, (3, 2), (2, 1), (1, 1, 2, 2), (1, 2), groups=3, bias=True), PICTURES),
    case(ops.Conv2d(4, (3, 3), (2, 2), (0, 1, 0, 1), groups=2, bias=True), PICTURES),
    case(ops.Conv2d(6, (5, 5), (1, 1), (2, 2, 2, 2), groups=6), PICTURES),
    case(ops.Conv2d(6, (3, 3), (2, 2), (1, 0, 2, 1), groups=6), PICTURES),
    case(ops.Conv2d(6, (3, 2), (2, 3), (1, 0, 2, 1), (2, 1), groups=6, bias=True), PICTURES),
    case(ops.Conv2d(12, (3, 3), (3, 2), (0, 1, 0, 1), groups=6), PICTURES),
]
CASES = [
    case(ops.Dense(5), ROWS),
    case(ops.Dense(5, bias=False), (2, 3, 8)),
    case(ops.Dense(5), PICTURES),
    case(ops.Conv2d(4, (3, 3)), PICTURES),
    case(ops.Conv2d(4, (3, 3), (2, 1), (1, 0, 2, 1), bias=True), PICTURES),
    case(ops.Conv2d(4, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), bias=True), PICTURES),
    *GROUPED,
    case(ops.Norm("batch"), PICTURES),
    case(ops.Norm("batch"), ROWS),
    case(ops.Norm("batch", training=True, epsilon=1e-3), PICTURES),
    case(ops.Norm("batch", training=True), ROWS),
    case(ops.Norm("batch", training=True), (3, 4, 5)),
    case(ops.Norm("group", groups=3), PICTURES),
    case(ops.Norm("group", groups=3, strided=True), PICTURES),
    case(ops.Norm("group", groups=2, strided=True), ROWS),
    case(ops.Norm("none"), PICTURES),
    case(ops.Norm("proxy", groups=2, activation="swish"), PICTURES),
    case(ops.Norm("proxy", groups=2, strided=True, activation="relu", training=True), PICTURES),
    *(case(ops.Activation(kind), PICTURES) for kind in ops.ACTIVATIONS),
    case(ops.Pool("max", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("max", (3, 2), (1, 2), (2, 2, 1, 0)), PICTURES),
    case(ops.Pool("average", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("average", (3, 2), (2, 1), (0, 1, 1, 0)), PICTURES),
    case(ops.GlobalPool(), PICTURES),
    case(ops.Add(), PICTURES, PICTURES, PICTURES),
    case(ops.Multiply(), PICTURES, PICTURES),
    case(ops.Multiply(), PICTURES, PICTURES[:2]),
    case(ops.Multiply(), PICTURES[:2], PICTURES),
    case(ops.Concat(1), PICTURES, (2, 3, 7, 9)),
    case(ops.Concat(2), PICTURES, (2, 6, 4, 9)),
    case(ops.Concat(0), ROWS, ROWS),
    case(ops.Pad((1, 0, 2, 3), (0, 2)), PICTURES),
    case(ops.Subsample((2, 3)), PICTURES),
    case(ops.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), (2, 3, 4, 5), law0=Integers(0, 256)),
    case(ops.Dropout(0.25), ROWS),
    case(ops.Dropout(0.25), ROWS, ROWS, law1=BITS),
    case(ops.StochasticDepth(0.8), PICTURES),
    case(ops.StochasticDepth(0.8), PICTURES, (2,), law1=BITS),
    *(case(ops.Recurrent(cell, 6), SEQUENCES) for cell in CELLS),
    *(case(ops.Recurrent(cell, 6, bias=False), SINGLE) for cell in CELLS),
    *(case(ops.Recurrent(cell, 6, "loop", bias=False), LONG) for cell in CELLS),
    *(case(ops.Recurrent("gru", 6, form, "before"), shape) for form in ("fused", "loop") for shape in (SINGLE, LONG)),
    *(case(ops.Recurrent("lstm", 6, bias=bias, forget_bias=1.0), SINGLE) for bias in (True, False)),
    *(case(ops.Recurrent("lstm", 6, bias=bias, forget_bias=1.0), LONG) for bias in (True, False)),
    case(ops.TakeLast(), SEQUENCES),
    case(ops.Softmax(1), ROWS),
    case(ops.Softmax(1), PICTURES),
    case(ops.Softmax(2), PICTURES),
    case(ops.Softmax(3), PICTURES),
    case(ops.Flatten(), PICTURES),
    case(ops.MeanSquaredError(), ROWS, ROWS),
    case(ops.MeanSquaredError(), PICTURES, PICTURES),
    case(ops.SumSquaredError(), SEQUENCES, SEQUENCES),
    case(ops.CrossEntropy(), ROWS, ROWS[:1], law1=Integers(0, 8)),
    case(ops.CrossEntropy(0.1), SEQUENCES, SEQUENCES[:-1], law1=Integers(0, 5)),
    case(ops.CrossEntropy(), SEQUENCES, SEQUENCES, law1=Shares()),
    case(ops.CrossEntropy(), PICTURES, PICTURES, law1=Shares()),
    case(ops.Mean(), PICTURES),
    case(ops.NegativeLogLikelihood(), SEQUENCES, SEQUENCES[:-1], law0=Uniform(0.01, 1), law1=Integers(0, 5)),
]


def feed(build: Builder, each: Case, shape: tuple[int, ...], index: int) -> str:
    """An input of the case."""
    return build.input(f"in/{index}", shape, law=each.law(index))


def alone(each: Case) -> Graph:
    """The operation by itself."""
    build = Builder()
    inputs = [feed(build, each, shape, index) for index, shape in enumerate(each.shapes)]
    return build.graph(build.add("b0/the-op", each.op, *inputs))


def trained(each: Case) -> Graph:
    """The operation behind a dense layer wherever gradients can go through it, and before a squared error."""
    build, whole = Builder(), isinstance(each.law(0), Integers)
    inputs = [feed(build, each, shape, index) for index, shape in enumerate(each.shapes)]
    if not whole:
        inputs[0] = build.add("before", ops.Dense(each.shapes[0][-1]), inputs[0])
    if isinstance(each.op, ops.NegativeLogLikelihood):
        inputs[0] = build.add("softmax", ops.Softmax(2), inputs[0])
    y = build.add("b0/the-op", each.op, *inputs)
    if whole:
        y = build.add("after", ops.Dense(4), y)
    shape = build.graph(y).shapes[y]
    if shape == ():
        return build.graph(y)
    return build.graph(build.add("loss", ops.MeanSquaredError(), y, build.input("target", shape, role="target")))


def step(graph: Graph, *, xla: bool, rate: float = 0.0, **facts: Any) -> tuple[Any, Any, Any]:
    """One step on input 0: the network, what came out, and the parameters afterwards."""
    spec = Spec(workload="an op", backend="tensorflow", **facts)
    built, task = network.Network(spec, graph), Task(graph, 7, 1)
    inputs = built.feed(task.batch(0))
    compiled = execution.Compiled(built, built.stored(task.weights()), [inputs, inputs], xla=xla)
    rates = [np.array(rate, "float32")] if built.training else []
    outputs = compiled.call(*inputs, *rates)
    after = built.canonical(compiled.weights())
    compiled.close()
    return built.results(outputs), after, compiled.kernels


def expected(graph: Graph) -> Any:
    """The reference's outputs for input 0."""
    task = Task(graph, 7, 1)
    return reference.evaluate(graph, reference.doubles(task.weights()), reference.doubles(task.batch(0)))


def assert_close(actual: Any, wanted: Any, share: float) -> None:
    """Equal up to a share of the expected values' size."""
    size = max(float(np.sqrt(np.mean(np.square(wanted)))), 1e-6)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=share * size)


@WAYS
@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_forward(each: Case, xla: bool) -> None:
    graph = alone(each)
    outputs, _, _ = step(graph, xla=xla)
    assert_close(outputs["b0/the-op"], expected(graph)["b0/the-op"], 1e-4)


@WAYS
@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_gradients(each: Case, xla: bool) -> None:
    torch = pytest.importorskip("torch")
    graph = trained(each)
    assert_gradients(graph, torch, xla=xla)


def assert_gradients(graph: Graph, torch: Any, **facts: Any) -> None:
    """The loss and what one step at rate one moves, against the reference."""
    task = Task(graph, 7, 1)
    loss, wanted = reference.gradients(graph, task.weights(), task.batch(0), torch)
    outputs, after, _ = step(graph, rate=1.0, mode="train", **facts)
    assert_close(outputs[graph.outputs[-1]], loss, 1e-4)
    floor = 1e-3 * max(float(np.abs(each).max()) for each in wanted.values())
    for name, gradient in wanted.items():
        moved = task.weights()[name].astype("float64") - after[name]
        size = max(float(np.sqrt(np.mean(np.square(gradient)))), floor)
        rounding = 1e-6 * float(np.abs(task.weights()[name]).max())
        np.testing.assert_allclose(moved, gradient, rtol=0, atol=2e-3 * size + rounding, err_msg=name)


@pytest.mark.parametrize("each", GROUPED, ids=lambda each: each.name)
def test_tuned_grouped_convolutions_are_shifted_products_on_xla(each: Case) -> None:
    torch = pytest.importorskip("torch")
    graph = alone(each)
    outputs, _, kernels = step(graph, xla=True, formulation="tuned")
    assert kernels == {"b0/the-op": "taps"}
    assert_close(outputs["b0/the-op"], expected(graph)["b0/the-op"], 1e-4)
    assert_gradients(trained(each), torch, xla=True, formulation="tuned")


@pytest.mark.parametrize(
    ("op", "shape", "kernel"),
    [
        (ops.Recurrent("lstm", 6), SINGLE, "BlockLSTMV2"),
        (ops.Recurrent("lstm", 6), SEQUENCES, "unrolled"),
        (ops.Recurrent("lstm", 6, "loop"), SINGLE, "unrolled"),
        (ops.Recurrent("lstm", 6), LONG, "while loop"),
        (ops.Recurrent("gru", 6, reset="before"), SINGLE, "GRUBlockCell"),
        (ops.Recurrent("gru", 6, reset="after"), SINGLE, "unrolled"),
    ],
)
def test_cells_use_the_kernel_that_computes_their_function(op: ops.Op, shape: Any, kernel: str) -> None:
    _, _, kernels = step(alone(case(op, shape)), xla=False)
    assert kernels == {"b0/the-op": kernel}


def test_running_statistics_move_by_the_momentum() -> None:
    op = ops.Norm("batch", training=True, momentum=0.25)
    graph = trained(case(op, PICTURES))
    task = Task(graph, 7, 1)
    before = reference.doubles(task.weights())
    values = reference.evaluate(graph, before, reference.doubles(task.batch(0)), every_node=True)["before"]
    _, after, _ = step(graph, xla=False, mode="train")
    moved = {"mean": values.mean((0, 2, 3)), "variance": values.var((0, 2, 3), ddof=1)}
    for name, now in moved.items():
        assert_close(after[f"b0/the-op/{name}"], 0.75 * before[f"b0/the-op/{name}"] + 0.25 * now, 1e-4)


@pytest.mark.parametrize(("precision", "share"), [("bf16.bf16", 5e-2), ("16.16", 1e-2), ("bf16.32", 5e-2)])
@pytest.mark.parametrize(
    "each",
    [
        case(ops.Dense(5), ROWS),
        case(ops.Conv2d(4, (3, 3)), PICTURES),
        case(ops.Recurrent("lstm", 6), SEQUENCES),
        case(ops.Norm("batch"), PICTURES),
    ],
    ids=lambda each: each.name,
)
def test_lower_precisions_round_and_stay_close(each: Case, precision: str, share: float) -> None:
    graph = alone(each)
    outputs, _, _ = step(graph, xla=False, precision=precision)
    wanted = expected(graph)["b0/the-op"]
    assert_close(outputs["b0/the-op"], wanted, 3 * share)
    assert np.abs(outputs["b0/the-op"] - wanted).max() > 1e-5


def test_node_names_are_in_the_native_graph() -> None:
    graph = alone(case(ops.Conv2d(4, (3, 3)), PICTURES))
    spec = Spec(workload="an op", backend="tensorflow")
    built, task = network.Network(spec, graph), Task(graph, 7, 1)
    inputs = built.feed(task.batch(0))
    compiled = execution.Compiled(built, built.stored(task.weights()), [inputs, inputs], xla=False)
    assert any(op.name.startswith("b0/the-op/") for op in compiled.graph.get_operations())
