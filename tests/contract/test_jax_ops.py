"""Every operation of the vocabulary, lowered alone to JAX, against the float64 reference: forward and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from layermark import ops, reference
from layermark.backends.base import backend
from layermark.graph import Builder, Graph
from layermark.laws import Integers, Normal, Uniform
from layermark.spec import Spec
from layermark.workloads.base import Task

jax = pytest.importorskip("jax")
backend("jax").load()
network = pytest.importorskip("layermark.backends.jax.network")
convolution = pytest.importorskip("layermark.backends.jax.convolution")

PICTURES = (2, 6, 7, 9)
SEQUENCES = (4, 3, 5)
LONG = (19, 3, 5)
ROWS = (3, 8)
BITS = Integers(0, 2)
CELLS = ("rnn", "gru", "lstm")


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
    case(ops.Conv2d(6, (3, 2), (2, 3), (1, 0, 2, 1), (2, 1), groups=6, bias=True), PICTURES),
    case(ops.Conv2d(12, (3, 3), (3, 2), (0, 1, 0, 1), groups=6), PICTURES),
    case(ops.Conv2d(6, (1, 1), (2, 2), (3, 2, 1, 1), groups=6), PICTURES),
]
CASES = [
    case(ops.Dense(5), ROWS),
    case(ops.Dense(5, bias=False), (2, 3, 8)),
    case(ops.Dense(5), PICTURES),
    case(ops.Conv2d(4, (3, 3)), PICTURES),
    case(ops.Conv2d(4, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), bias=True), PICTURES),
    *GROUPED,
    case(ops.Norm("batch"), PICTURES),
    case(ops.Norm("batch", training=True, epsilon=1e-3), PICTURES),
    case(ops.Norm("batch", training=True), ROWS),
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
    *(case(ops.Recurrent(cell, 6, "loop", bias=False), LONG) for cell in CELLS),
    *(case(ops.Recurrent("gru", 6, form, reset="before"), SEQUENCES) for form in ("fused", "loop")),
    *(case(ops.Recurrent("lstm", 6, bias=bias, forget_bias=1.0), LONG) for bias in (True, False)),
    case(ops.TakeLast(), SEQUENCES),
    case(ops.Softmax(1), ROWS),
    case(ops.Softmax(1), PICTURES),
    case(ops.Softmax(2), PICTURES),
    case(ops.Flatten(), PICTURES),
    case(ops.MeanSquaredError(), ROWS, ROWS),
    case(ops.MeanSquaredError(), PICTURES, PICTURES),
    case(ops.SumSquaredError(), SEQUENCES, SEQUENCES),
    case(ops.CrossEntropy(), ROWS, ROWS[:1], law1=Integers(0, 8)),
    case(ops.CrossEntropy(0.1), SEQUENCES, SEQUENCES[:-1], law1=Integers(0, 5)),
    case(ops.CrossEntropy(), SEQUENCES, SEQUENCES, law1=Uniform(0, 1)),
    case(ops.CrossEntropy(), PICTURES, PICTURES, law1=Uniform(0, 1)),
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


def lowered(graph: Graph, mode: str, formulation: str = "library") -> Any:
    """The network of a graph."""
    return network.Network(Spec(workload="none", backend="jax", mode=mode, formulation=formulation), graph)


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal up to a share of the expected values' size; a bias before a norm has a gradient of zero."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert float(np.abs(actual - expected).max()) <= tolerance * float(np.abs(expected).max()) + 1e-6


def check_forward(each: Case, formulation: str) -> None:
    """One pass against the reference."""
    graph = alone(each)
    task = Task(graph, 7, 1)
    expected = reference.evaluate(graph, reference.doubles(task.weights()), reference.doubles(task.batch(0)))
    net = lowered(graph, "infer", formulation)
    made = jax.jit(net.infer)(net.hold(task.weights()), *net.feed(task.batch(0)))
    close(net.results(made)["b0/the-op"], expected["b0/the-op"])


def check_gradients(each: Case, formulation: str) -> None:
    """One step at rate 1 against the reference's gradients."""
    torch = pytest.importorskip("torch")
    graph = trained(each)
    task = Task(graph, 7, 1)
    loss, expected = reference.gradients(graph, task.weights(), task.batch(0), torch)
    net = lowered(graph, "train", formulation)
    held = net.hold(task.weights())
    after, value = jax.jit(net.train)(held, np.float32(1), *net.feed(task.batch(0)))
    assert float(value) == pytest.approx(loss, rel=1e-5)
    moved = net.read(after)
    for name, gradient in expected.items():
        close(task.weights()[name] - moved[name], gradient, 1e-4)


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_forward(each: Case) -> None:
    check_forward(each, "library")


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_gradients(each: Case) -> None:
    check_gradients(each, "library")


@pytest.mark.parametrize("each", GROUPED, ids=lambda each: each.name)
def test_tuned_grouped_convolution(each: Case) -> None:
    assert convolution.tunable(each.op)
    check_forward(each, "tuned")
    check_gradients(each, "tuned")


def test_running_statistics_follow_the_batch() -> None:
    each = case(ops.Norm("batch", training=True, momentum=0.25), PICTURES)
    graph = trained(each)
    task = Task(graph, 7, 1)
    net = lowered(graph, "train")
    after, _ = jax.jit(net.train)(net.hold(task.weights()), np.float32(0), *net.feed(task.batch(0)))
    weights = reference.doubles(task.weights())
    seen = reference.evaluate(graph, weights, reference.doubles(task.batch(0)), every_node=True)["before"]
    found = net.read(after)
    mean, variance = seen.mean((0, 2, 3)), seen.var((0, 2, 3), ddof=1)
    close(found["b0/the-op/mean"], 0.75 * weights["b0/the-op/mean"] + 0.25 * mean)
    close(found["b0/the-op/variance"], 0.75 * weights["b0/the-op/variance"] + 0.25 * variance)


def test_every_operation_has_a_case() -> None:
    found = {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Op)}
    vocabulary = {kind for kind in found if not kind.__subclasses__()}
    assert vocabulary - {ops.Input} == {type(each.op) for each in CASES}


def test_names_are_stamped_into_the_compiled_program() -> None:
    graph = alone(case(ops.Dense(5), ROWS))
    task = Task(graph, 7, 1)
    net = lowered(graph, "infer")
    program = jax.jit(net.infer).lower(net.hold(task.weights()), *net.feed(task.batch(0))).compile()
    assert "b0/the-op" in program.as_text()
