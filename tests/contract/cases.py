"""Every operation of the vocabulary: the cases that all runtimes are held to, and the graphs around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from layermark import ops
from layermark.graph import Builder, Graph
from layermark.laws import Integers, Normal, Uniform
from layermark.workloads.objective import Shares

PICTURES = (2, 6, 7, 9)
SEQUENCES = (4, 3, 5)
SINGLE = (4, 1, 5)
LONG = (19, 3, 5)
ROWS = (3, 8)
CELLS = ("rnn", "gru", "lstm")
FORMS = ("fused", "loop")
TARGET = {"role": "target"}
MASK = {"law": Integers(0, 2), "role": "mask"}
BOX = MASK | {"batch": -1}

TRAINS = ("torch", "tensorflow", "jax")
"""Backends that train, and so mix pictures."""

XLA = ("jax", "tensorflow")
"""Lowerings that write both forms of a recurrent layer as their own best loop."""
FUSED = ("torch", "onnxruntime", "openvino")
"""Lowerings with kernels for the fused form, beside loops of their own."""


@dataclass(frozen=True)
class Case:
    """One operation, the shapes it reads, and the facts of its inputs that are not the usual ones."""

    op: ops.Op
    shapes: tuple[tuple[int, ...], ...]
    facts: Mapping[int, Mapping[str, Any]]
    on: tuple[str, ...] = ()
    """The backends that it says something about; all of them if empty."""

    @property
    def name(self) -> str:
        """What pytest shows."""
        fields = ",".join(f"{name}={value}" for name, value in vars(self.op).items() if "law" not in name)
        return f"{type(self.op).__name__}({fields})"

    @property
    def graph(self) -> Graph:
        """The operation by itself."""
        build = Builder()
        return build.graph(build.add("b0/the-op", self.op, *self._inputs(build)))

    @property
    def trained(self) -> Graph:
        """The operation behind a dense layer wherever gradients can go through it, and before a squared error."""
        build, whole = Builder(), isinstance(self.facts.get(0, {}).get("law"), Integers)
        inputs = self._inputs(build)
        if not whole:
            inputs[0] = build.add("before", ops.Dense(self.shapes[0][-1]), inputs[0])
        if isinstance(self.op, ops.NegativeLogLikelihood):
            inputs[0] = build.add("softmax", ops.Softmax(2), inputs[0])
        y = build.add("b0/the-op", self.op, *inputs)
        if whole:
            y = build.add("after", ops.Dense(4), y)
        shape = build.graph(y).shapes[y]
        if shape == ():
            return build.graph(y)
        return build.graph(build.add("loss", ops.MeanSquaredError(), y, build.input("target", shape, role="target")))

    def _inputs(self, build: Builder) -> list[str]:
        return [build.input(f"in/{n}", shape, **self.facts.get(n, {})) for n, shape in enumerate(self.shapes)]


def case(op: ops.Op, *shapes: tuple[int, ...], on: tuple[str, ...] = (), **facts: Mapping[str, Any]) -> Case:
    """A case; a keyword such as `in1` gives the facts of input number 1."""
    return Case(op, shapes, {int(key[2:]): each for key, each in facts.items()}, on)


def labels(classes: int) -> dict[str, Any]:
    """The facts of an input of whole-number labels."""
    return {"law": Integers(0, classes), "role": "target", "item_bytes": 4}


GROUPED = [
    case(ops.Conv2d(6, (3, 2), (2, 1), (1, 1, 2, 2), (1, 2), groups=3, bias=True), PICTURES),
    case(ops.Conv2d(4, (3, 3), (2, 2), (0, 1, 0, 1), groups=2, bias=True), PICTURES),
    case(ops.Conv2d(6, (5, 5), (1, 1), (2, 2, 2, 2), groups=6), PICTURES),
    case(ops.Conv2d(6, (3, 3), (2, 2), (1, 0, 2, 1), groups=6), PICTURES),
    case(ops.Conv2d(6, (3, 2), (2, 3), (1, 0, 2, 1), (2, 1), groups=6, bias=True), PICTURES),
    case(ops.Conv2d(12, (3, 3), (3, 2), (0, 1, 0, 1), groups=6), PICTURES),
    case(ops.Conv2d(6, (1, 1), (2, 2), (3, 2, 1, 1), groups=6), PICTURES),
]
STRIDED = [
    case(ops.Conv2d(4, (4, 4), (2, 2), (3, 3, 3, 3), bias=True), PICTURES),
    case(ops.Conv2d(4, (7, 7), (2, 2), (3, 3, 3, 3)), PICTURES),
    case(ops.Conv2d(4, (3, 2), (2, 2), (0, 1, 0, 1)), PICTURES),
    case(ops.Conv2d(4, (5, 4), (3, 3), (1, 0, 2, 1), bias=True), PICTURES),
]
RECURRENT = [
    *(case(ops.Recurrent(cell, 6), SEQUENCES) for cell in CELLS),
    *(case(ops.Recurrent(cell, 6, bias=False), SINGLE, on=("tensorflow",)) for cell in CELLS),
    *(case(ops.Recurrent(cell, 6, "loop", bias=False), LONG, on=XLA) for cell in CELLS),
    *(case(ops.Recurrent("lstm", 6, bias=bias, forget_bias=1.0), LONG, on=XLA) for bias in (True, False)),
    *(case(ops.Recurrent("gru", 6, form, "before"), SEQUENCES, on=("jax",)) for form in FORMS),
    *(
        case(ops.Recurrent("gru", 6, form, "before"), shape, on=("tensorflow",))
        for form in FORMS
        for shape in (SINGLE, LONG)
    ),
    *(case(ops.Recurrent("lstm", 6, bias=bias, forget_bias=1.0), SINGLE, on=("tensorflow",)) for bias in (True, False)),
    *(case(ops.Recurrent(cell, 6, "loop"), SEQUENCES, on=FUSED) for cell in CELLS),
    *(case(ops.Recurrent(cell, 6, form, bias=False), SEQUENCES, on=FUSED) for cell in CELLS for form in FORMS),
    *(case(ops.Recurrent(cell, 6, "loop"), (17, 3, 5), on=FUSED) for cell in CELLS),
    case(ops.Recurrent("gru", 6, "loop", "before"), SEQUENCES, on=FUSED),
    case(ops.Recurrent("gru", 6, "loop", "before"), (17, 2, 5), on=FUSED),
    case(ops.Recurrent("gru", 6, "fused", "before"), SEQUENCES, on=FUSED[1:]),  # torch has no such kernel
    case(ops.Recurrent("lstm", 6, "loop"), (1, 3, 5), on=FUSED),
    *(
        case(ops.Recurrent("lstm", 6, form, bias=bias, forget_bias=1.0), SEQUENCES, on=FUSED)
        for form in FORMS
        for bias in (True, False)
    ),
]
CASES = [
    case(ops.Dense(5), ROWS),
    case(ops.Dense(5), (8,)),
    case(ops.Dense(5), SEQUENCES),
    case(ops.Dense(5), PICTURES),
    case(ops.Dense(5, bias=False), (2, 3, 8)),
    case(ops.Conv2d(4, (3, 3)), PICTURES),
    case(ops.Conv2d(4, (3, 3), (2, 1), (1, 0, 2, 1), bias=True), PICTURES),
    case(ops.Conv2d(4, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), bias=True), PICTURES),
    *GROUPED,
    *STRIDED,
    case(ops.Norm("batch"), PICTURES),
    case(ops.Norm("batch"), ROWS),
    case(ops.Norm("batch", training=True, epsilon=1e-3), PICTURES),
    case(ops.Norm("batch", training=True), ROWS),
    case(ops.Norm("batch", training=True), (3, 4, 5)),
    case(ops.Norm("group", groups=3), PICTURES),
    case(ops.Norm("group", groups=2), ROWS),
    case(ops.Norm("group", groups=3, strided=True), PICTURES),
    case(ops.Norm("group", groups=2, strided=True), ROWS),
    case(ops.Norm("none"), PICTURES),
    case(ops.Norm("proxy", groups=2, activation="swish"), PICTURES),
    *(
        case(ops.Norm("proxy", groups=2, activation=kind), PICTURES, on=FUSED)
        for kind in ("", *ops.ACTIVATIONS)
        if kind != "swish"
    ),
    case(ops.Norm("proxy", groups=2, strided=True, activation="relu"), PICTURES),
    case(ops.Norm("proxy", groups=2, strided=True, activation="relu", training=True), PICTURES),
    *(case(ops.Activation(kind), PICTURES, in0={"law": Normal(4.0)}) for kind in ops.ACTIVATIONS),
    case(ops.Pool("max", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("max", (3, 3), (2, 2), (0, 1, 0, 1)), PICTURES),
    case(ops.Pool("max", (3, 2), (1, 2), (2, 2, 1, 1)), PICTURES),
    case(ops.Pool("max", (3, 2), (1, 2), (2, 2, 1, 0)), PICTURES),
    case(ops.Pool("average", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("average", (3, 2), (2, 1), (0, 1, 1, 0)), PICTURES),
    case(ops.GlobalPool(), PICTURES),
    case(ops.Add(), PICTURES, PICTURES, PICTURES),
    case(ops.Add(), ROWS, ROWS),
    case(ops.Multiply(), PICTURES, PICTURES),
    case(ops.Multiply(), PICTURES, PICTURES[:2]),
    case(ops.Multiply(), PICTURES[:2], PICTURES),
    case(ops.Concat(1), PICTURES, (2, 3, 7, 9)),
    case(ops.Concat(2), PICTURES, (2, 6, 4, 9)),
    case(ops.Concat(0), ROWS, ROWS),
    case(ops.Pad((1, 0, 2, 3), (0, 2)), PICTURES),
    case(ops.Subsample((2, 3)), PICTURES),
    case(
        ops.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), (2, 3, 4, 5), in0={"law": Integers(0, 256), "item_bytes": 1}
    ),
    case(ops.MixPictures(1), PICTURES, (2,), PICTURES[2:], in1=MASK | {"law": Uniform(0, 1)}, in2=BOX, on=TRAINS),
    case(ops.Dropout(0.25), ROWS),
    case(ops.Dropout(0.25), ROWS, ROWS, in1=MASK),
    case(ops.StochasticDepth(0.8), PICTURES),
    case(ops.StochasticDepth(0.8), PICTURES, (2,), in1=MASK),
    *RECURRENT,
    case(ops.TakeLast(), SEQUENCES),
    case(ops.Softmax(1), ROWS),
    *(case(ops.Softmax(axis), PICTURES) for axis in (1, 2, 3)),
    case(ops.Flatten(), PICTURES),
    case(ops.MeanSquaredError(), ROWS, ROWS, in1=TARGET),
    case(ops.MeanSquaredError(), (5,), (5,), in1=TARGET),
    case(ops.MeanSquaredError(), PICTURES, PICTURES, in1=TARGET),
    case(ops.SumSquaredError(), SEQUENCES, SEQUENCES, in1=TARGET),
    case(ops.CrossEntropy(), ROWS, ROWS[:1], in1=labels(8)),
    case(ops.CrossEntropy(0.1), SEQUENCES, SEQUENCES[:-1], in1=labels(5)),
    case(ops.CrossEntropy(), SEQUENCES, SEQUENCES, in1=TARGET | {"law": Shares()}),
    case(ops.CrossEntropy(), PICTURES, PICTURES, in1=TARGET | {"law": Shares()}),
    # TensorFlow's kernel takes shares that add up to one.
    case(ops.CrossEntropy(), SEQUENCES, SEQUENCES, in1=TARGET | {"law": Uniform(0, 1)}, on=("jax", *FUSED)),
    case(ops.CrossEntropy(), PICTURES, PICTURES, in1=TARGET | {"law": Uniform(0, 1)}, on=("jax", *FUSED)),
    case(ops.Mean(), PICTURES),
    case(ops.NegativeLogLikelihood(), SEQUENCES, SEQUENCES[:-1], in0={"law": Uniform(0.01, 1)}, in1=labels(5)),
]


def cases_of(backend: str) -> list[Case]:
    """The cases that one backend is held to."""
    return [each for each in CASES if not each.on or backend in each.on]


EVERY_STRIDED = pytest.mark.parametrize("each", STRIDED, ids=[each.name for each in STRIDED])
EVERY_GROUPED = pytest.mark.parametrize("each", GROUPED, ids=[each.name for each in GROUPED])
