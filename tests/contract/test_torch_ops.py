"""Every operation of the vocabulary, lowered alone to torch, against the float64 reference: forward and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from layermark import ops, reference
from layermark.errors import Unsupported
from layermark.graph import Builder, Graph
from layermark.laws import Integers, Normal, Uniform
from layermark.workloads.base import Task

torch = pytest.importorskip("torch")
lowering = pytest.importorskip("layermark.backends.torch.lowering")

PICTURES = (2, 6, 7, 9)
SEQUENCES = (4, 3, 5)
ROWS = (3, 8)
BITS = Integers(0, 2)


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


def case(op: ops.Op, *shapes: tuple[int, ...], **laws: Any) -> Case:
    """A case; a keyword such as `law1` gives the law of input number 1."""
    return Case(op, shapes, {int(key[3:]): law for key, law in laws.items()})


CASES = [
    case(ops.Dense(5), ROWS),
    case(ops.Dense(5, bias=False), (2, 3, 8)),
    case(ops.Conv2d(4, (3, 3)), PICTURES),
    case(ops.Conv2d(6, (3, 2), (2, 1), (1, 1, 2, 2), (1, 2), groups=3, bias=True), PICTURES),
    case(ops.Conv2d(4, (3, 3), (2, 2), (0, 1, 0, 1), groups=2, bias=True), PICTURES),
    case(ops.Conv2d(6, (5, 5), (1, 1), (2, 2, 2, 2), groups=6), PICTURES),
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
    case(ops.Pool("max", (3, 3), (2, 2), (0, 1, 0, 1)), PICTURES),
    case(ops.Pool("max", (3, 2), (1, 2), (2, 2, 1, 1)), PICTURES),
    case(ops.Pool("average", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("average", (3, 2), (2, 1), (0, 1, 1, 0)), PICTURES),
    case(ops.GlobalPool(), PICTURES),
    case(ops.Add(), PICTURES, PICTURES, PICTURES),
    case(ops.Multiply(), PICTURES, PICTURES),
    case(ops.Multiply(), PICTURES, PICTURES[:2]),
    case(ops.Multiply(), PICTURES[:2], PICTURES),
    case(ops.Concat(1), PICTURES, (2, 3, 7, 9)),
    case(ops.Concat(0), ROWS, ROWS),
    case(ops.Pad((1, 0, 2, 3), (0, 2)), PICTURES),
    case(ops.Subsample((2, 3)), PICTURES),
    case(ops.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), (2, 3, 4, 5), law0=Integers(0, 256)),
    case(ops.Dropout(0.25), ROWS),
    case(ops.Dropout(0.25), ROWS, ROWS, law1=BITS),
    case(ops.StochasticDepth(0.8), PICTURES),
    case(ops.StochasticDepth(0.8), PICTURES, (2,), law1=BITS),
    *(case(ops.Recurrent(cell, 6), SEQUENCES) for cell in ("rnn", "gru", "lstm")),
    *(case(ops.Recurrent(cell, 6, bias=False), SEQUENCES) for cell in ("rnn", "gru", "lstm")),
    *(case(ops.Recurrent(cell, 6, "loop"), SEQUENCES) for cell in ("rnn", "gru", "lstm")),
    *(case(ops.Recurrent(cell, 6, "loop", bias=False), SEQUENCES) for cell in ("rnn", "gru", "lstm")),
    case(ops.Recurrent("gru", 6, "loop", reset="before"), SEQUENCES),
    *(case(ops.Recurrent("lstm", 6, form, forget_bias=1.0), SEQUENCES) for form in ("fused", "loop")),
    *(case(ops.Recurrent("lstm", 6, form, bias=False, forget_bias=1.0), SEQUENCES) for form in ("fused", "loop")),
    case(ops.TakeLast(), SEQUENCES),
    case(ops.Softmax(1), ROWS),
    case(ops.Softmax(1), PICTURES),
    case(ops.Flatten(), PICTURES),
    case(ops.MeanSquaredError(), ROWS, ROWS),
    case(ops.SumSquaredError(), SEQUENCES, SEQUENCES),
    case(ops.CrossEntropy(), ROWS, ROWS[:1], law1=Integers(0, 8)),
    case(ops.CrossEntropy(0.1), SEQUENCES, SEQUENCES[:-1], law1=Integers(0, 5)),
    case(ops.CrossEntropy(), SEQUENCES, SEQUENCES, law1=Uniform(0, 1)),
    case(ops.Mean(), PICTURES),
    case(ops.NegativeLogLikelihood(), SEQUENCES, SEQUENCES[:-1], law0=Uniform(0.01, 1), law1=Integers(0, 5)),
]


def feed(build: Builder, each: Case, shape: tuple[int, ...], index: int) -> str:
    """An input of the case."""
    return build.input(f"in/{index}", shape, law=each.laws.get(index, Normal()))


def alone(each: Case) -> Graph:
    """The operation by itself."""
    build = Builder()
    inputs = [feed(build, each, shape, index) for index, shape in enumerate(each.shapes)]
    return build.graph(build.add("b0/the-op", each.op, *inputs))


def trained(each: Case) -> Graph:
    """The operation behind a dense layer wherever gradients can go through it, and before a squared error."""
    build = Builder()
    inputs = [feed(build, each, shape, index) for index, shape in enumerate(each.shapes)]
    if not isinstance(each.laws.get(0, Normal()), Integers):
        inputs[0] = build.add("before", ops.Dense(each.shapes[0][-1]), inputs[0])
    if isinstance(each.op, ops.NegativeLogLikelihood):
        inputs[0] = build.add("softmax", ops.Softmax(2), inputs[0])
    y = build.add("b0/the-op", each.op, *inputs)
    shape = build.graph(y).shapes[y]
    if shape == ():
        return build.graph(y)
    if isinstance(each.laws.get(0, Normal()), Integers):
        y = build.add("after", ops.Dense(4), y)
        shape = (*shape[:-1], 4)
    return build.graph(build.add("loss", ops.MeanSquaredError(), y, build.input("target", shape, role="target")))


def double_module(graph: Graph, weights: Mapping[str, Any], training: bool = False) -> Any:
    """The lowered module in float64 with these weights."""
    lowered = lowering.lower(graph, training=training)
    lowered.module.double()
    for name, slot in lowered.slots.items():
        slot.write(torch.as_tensor(weights[name]).double())
    for part in lowered.module.modules():
        if hasattr(part, "pack") and not training:
            part.pack()
    return lowered


def doubles(batch: Mapping[str, Any]) -> list[Any]:
    """Inputs as the module takes them: float64, labels int64; bits may be floats."""
    arrays = [torch.as_tensor(each) for each in batch.values()]
    return [each.double() if each.is_floating_point() else each.long() for each in arrays]


def close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Equal up to a share of the expected values' spread; a bias before a norm has a gradient of zero."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert float(np.abs(actual - expected).max()) <= tolerance * float(np.abs(expected).max()) + 1e-14


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_forward(each: Case) -> None:
    graph = alone(each)
    task = Task(graph, 7, 1)
    batch = task.batch(0)
    expected = reference.evaluate(graph, reference.doubles(task.weights()), reference.doubles(batch))
    with torch.no_grad():
        actual = double_module(graph, task.weights()).module(*doubles(batch))
    close(actual.numpy(), expected["b0/the-op"], tolerance=1e-6 if isinstance(each.op, ops.Normalise) else 1e-9)


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_gradients(each: Case) -> None:
    graph = trained(each)
    task = Task(graph, 7, 1)
    loss, expected = reference.gradients(graph, task.weights(), task.batch(0), torch)
    lowered = double_module(graph, task.weights(), training=True)
    slots = {name: lowered.slots[name] for name in expected}
    found = lowered.module(*doubles(task.batch(0)))
    assert math.isclose(float(found.detach()), loss, rel_tol=1e-6)
    moved = torch.autograd.grad(found, [slot.leaf for slot in slots.values()])
    for slot, gradient, name in zip(slots.values(), moved, slots, strict=True):
        close((gradient if slot.rows is None else gradient[slot.rows]).numpy(), expected[name], 1e-6)


def test_every_operation_has_a_case() -> None:
    found = {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Op)}
    vocabulary = {kind for kind in found if not kind.__subclasses__()}
    assert vocabulary - {ops.Input} == {type(each.op) for each in CASES}


def test_fused_gru_that_resets_before_is_refused() -> None:
    graph = alone(case(ops.Recurrent("gru", 6, reset="before"), SEQUENCES))
    with pytest.raises(Unsupported, match="use --cell loop"):
        lowering.lower(graph)


def residual() -> Graph:
    """A small network with most kinds of calls: modules, functions, in-place activations, two outputs."""
    build = Builder()
    x = build.input("x", (2, 3, 8, 8), law=Integers(0, 256), item_bytes=1)
    x = build.add("normalise", ops.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), x)
    x = build.add("b0/conv", ops.Conv2d(8, (3, 3), (2, 2), (0, 1, 0, 1)), x)
    x = build.add("b0/relu", ops.Activation("relu"), build.add("b0/norm", ops.Norm("batch"), x))
    y = build.add("b1/conv", ops.Conv2d(8, (3, 3), (1, 1), (1, 1, 1, 1), groups=2), x)
    x = build.add("b1/relu", ops.Activation("relu"), build.add("b1", ops.Add(), y, x))
    pooled = build.add("pool", ops.GlobalPool(), x)
    return build.graph(build.add("for", ops.Dense(5), pooled), "b1/relu")


def test_names_are_stamped_into_the_module() -> None:
    names = {node.name for node in lowering.lower(residual()).module.graph.nodes}
    assert {"x", "b0_conv", "b0_norm", "b1_relu", "b1", "n_for"} <= names


def test_values_that_others_need_are_not_overwritten() -> None:
    module = lowering.lower(residual()).module
    in_place = {node.name for node in module.graph.nodes if node.kwargs.get("inplace")}
    assert in_place == {"b0_relu", "b1_relu"}


@pytest.mark.parametrize("way", ["export", "compile"])
def test_export_and_compile_accept_the_module(way: str) -> None:
    graph = residual()
    task = Task(graph, 7, 1)
    lowered = double_module(graph, task.weights())
    inputs = tuple(torch.as_tensor(each).to(torch.uint8) for each in task.batch(0).values())
    with torch.no_grad():
        expected = lowered.module(*inputs)
        if way == "export":
            made = torch.export.export(lowered.module, inputs).module()
        else:
            made = torch.compile(lowered.module, fullgraph=True, dynamic=False)
        for actual, wanted in zip(made(*inputs), expected, strict=True):
            close(actual.numpy(), wanted.numpy())
