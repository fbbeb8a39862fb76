"""Proof that the timed program computes what it should: its own results against the oracle's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layermark.backends.base import Arrays, Program
from layermark.graph import Graph
from layermark.outcome import Verification
from layermark.spec import QUANTISED, Spec
from layermark.worker import oracle
from layermark.workloads.base import Task
from layermark.workloads.folding import folded, products

# The largest error allowed, as a share of the spread (standard deviation) of what is compared.
# Gradients are sums over many more terms than outputs, hence a column of their own.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "32.32": (1e-4, 1e-3),
    "16.32": (3e-2, 1e-1),
    "16.16": (3e-2, 1e-1),
    "bf16.32": (2.5e-1, 5e-1),
    "bf16.bf16": (2.5e-1, 5e-1),
}
# A sum of n terms in float32 may be off by n roundings. Frameworks that add up the half million positions of a 1080p
# picture one after the other are (torch's bias gradient: 2.7 % of the spread); that is float32, not a mistake.
ROUNDOFF = 2.0**-24
AGAINST = "float64 reference"

# Roundings of one contraction are passed on through all that follow: float32 itself is off by 2e-5 of the spread
# after the 50 of ResNet-50, and by 9e-5 after the 101 of ResNeXt-101. From this many on the allowance grows with them.
DEPTH = 25
HALF_PARTIALS = 4.0
"""What sums in 16 bits may add: on EfficientNet-B0 TensorFlow's are off by 0.27 of the spread, PyTorch's by 0.03."""
_LARGEST = 0.5
"""Whatever the depth, half of the spread is wrong."""

# Inputs that are all alike can give outputs without any spread, and gradients that are what is left of large sums that
# cancel (fp32 itself loses 1.6 % of the bias gradient of a 1080p convolution over zeros). Errors are then judged
# against at least this. Random values, on which such a program is proven too, have no such floor.
_FLOOR = 1e-3

# The shift of a norm that only convolutions with norms of their own read has no gradient at all: they take every
# constant out again. What a program finds there is what rounding leaves, and is judged beside the gradient of the
# scale.
_OF_SIBLINGS = 0.1

# Whole numbers round far more coarsely, and the roundings of layers that follow each other add up like the steps of a
# random walk: the root of the mean square was 0.004 to 0.053 of the spread times the root of the depth, over models of
# every family and both quantizers. No answer at all is off by one spread, the answer to something else by 1.4.
INT8 = 0.08
_LARGEST_INT8 = 0.9
# That leaves room for a layer of a deep network to be missing. So the weights that are multiplied are read back from
# the quantised model, and each must be what was quantised, up to its steps.
INT8_WEIGHTS = 0.25

Comparison = tuple[str, float, float]
"""What was compared, its error, and the error allowed."""


def verify(program: Program, spec: Spec, task: Task, path: Path) -> Verification:
    """Run the program on known inputs and compare; weights and ring are as new afterwards."""
    with np.load(path, allow_pickle=False) as file:
        expected = dict(file)
    weights = task.weights()
    program.load(weights)
    check = _check_training if spec.mode == "train" else _check_outputs
    found = list(check(program, spec, task, expected))
    program.learning_rate = spec.learning_rate
    program.load(weights)
    return judged(spec, found)


def _check_outputs(program: Program, spec: Spec, task: Task, expected: Arrays) -> Iterator[Comparison]:
    rows = oracle.rows_kept(spec, task.graph)
    allowed, _ = tolerances(spec.precision, task.graph, spec.partials)
    floor = 0.0 if spec.values == "random" else _FLOOR
    distance = typical_error if spec.quantised else error
    position = 0
    for index in oracle.checked_inputs(spec):
        program.run(index + 1 - position)
        position = index + 1
        for name, value in program.outputs().items():
            if rows is not None:
                value = np.take(value, rows, task.graph.batch_axes[name])
            flat = value.reshape(-1)[oracle.places(spec.seed, name, value.size)]
            yield f"{name} of input {index}", distance(flat, expected[f"{index}:{name}"], floor), allowed
    if spec.quantised:
        yield from _check_products(program, task)


def _check_products(program: Program, task: Task) -> Iterator[Comparison]:
    """Every weight that a quantised program multiplies with."""
    graph, weights = folded(task.graph, task.weights())
    found = program.products()
    for name in products(graph):
        yield name, error(found.get(name, np.empty(0)), weights[name], 1e-30), INT8_WEIGHTS


def _check_training(program: Program, spec: Spec, task: Task, expected: Arrays) -> Iterator[Comparison]:
    """One step at a rate that moves the weights; the gradients are read back from how far they moved."""
    output, gradient = tolerances(spec.precision, task.graph, spec.partials)
    rate = float(expected["rate"])
    before = {name: value.astype("float64") for name, value in program.weights().items()}
    program.learning_rate = rate
    program.run(1)
    yield "loss", error(np.asarray(program.outputs()["loss"]), expected["0:loss"]), output
    after = program.weights()
    names = [name for name, each in task.graph.parameters.items() if each.trainable]
    spreads = {name: _spread(expected[f"gradient:{name}"]) for name in names}
    floor = 1e-6 * max(spreads.values())
    floor = floor if spec.values == "random" else max(floor, _FLOOR)
    for name in names:
        moved = (before[name] - after[name]) / rate
        wanted = expected[f"gradient:{name}"]
        allowed = gradient + ROUNDOFF * terms(task, name)
        least = max(floor, _OF_SIBLINGS * max(spreads[each] for each in siblings(task.graph, name)))
        yield f"gradient of {name}", error(moved, wanted, least), allowed


def siblings(graph: Graph, name: str) -> list[str]:
    """The trainable parameters of the same node and shape, itself included."""
    node, shape = name.rpartition("/")[0], graph.parameters[name].shape
    return [
        each
        for each, facts in graph.parameters.items()
        if each.rpartition("/")[0] == node and facts.shape == shape and facts.trainable
    ]


def tolerances(precision: str, graph: Graph, partials: str = "full") -> tuple[float, float]:
    """The errors allowed of outputs and of gradients, by the type, its sums, and how deep the network is."""
    if precision in QUANTISED:
        return (min(INT8 * math.sqrt(max(1, graph.depth)), _LARGEST_INT8),) * 2
    factor = max(1.0, graph.depth / DEPTH)
    if partials == "half" and not precision.startswith("32"):
        factor *= HALF_PARTIALS
    output, gradient = TOLERANCES[precision]
    return max(output, min(output * factor, _LARGEST)), max(gradient, min(gradient * factor, _LARGEST))


def terms(task: Task, name: str) -> int:
    """How many contributions the gradient of one element of a parameter sums: batch x positions x time steps."""
    node = task.graph.by_name[name.rsplit("/", 1)[0]]
    shapes = task.graph.input_shapes(node)
    largest = max(each.count for each in node.op.parameters(*shapes).values())
    return node.op.macs(*shapes) // largest


def error(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], floor: float = 0.0) -> float:
    """The largest difference as a share of the expected values' spread; infinite where shapes or values are broken."""
    if actual.size != expected.size or not np.all(np.isfinite(actual)):
        return float("inf")
    difference = np.max(np.abs(actual.reshape(-1).astype("float64") - expected.reshape(-1)), initial=0.0)
    return float(difference / max(_spread(expected), floor, 1e-30))


def typical_error(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], floor: float = 0.0) -> float:
    """The root of the mean square of the differences, as a share of the spread."""
    if actual.size != expected.size or not np.all(np.isfinite(actual)):
        return float("inf")
    square = np.mean(np.square(actual.reshape(-1).astype("float64") - expected.reshape(-1)))
    return math.sqrt(square) / max(_spread(expected), floor, 1e-30)


def _spread(values: np.ndarray[Any, Any]) -> float:
    """Standard deviation, or the size of the values where they hardly differ."""
    deviation, size = float(np.std(values)), float(np.sqrt(np.mean(np.square(values))))
    return deviation if deviation > 1e-3 * size else size


def judged(spec: Spec, found: list[Comparison]) -> Verification:
    """The worst of the comparisons decides; a reason says what it looks like."""
    name, worst, allowed = max(found, key=lambda each: each[1] / each[2])
    ok = worst <= allowed
    return Verification(
        ok=ok,
        max_error=worst if np.isfinite(worst) else 1e308,
        tolerance=allowed,
        against=AGAINST,
        worst=name,
        reason="" if ok else _reason(spec, found),
    )


def _reason(spec: Spec, found: list[Comparison]) -> str:
    name, worst, allowed = max(found, key=lambda each: each[1] / each[2])
    coarser = _explained_by(spec, found)
    if coarser:
        return f"computes in another type: the error of {name} is {worst:.1e}, as {coarser} gives, not {spec.precision}"
    off = f"{name} is off by {worst:.1e} of its spread, allowed is {allowed:.0e}"
    if _adds_up_in_half(spec, found):
        return f"{off}, as if 16-bit products were added up in 16 bits; --partials half accepts such sums"
    return f"wrong result: {off}"


def _adds_up_in_half(spec: Spec, found: list[Comparison]) -> bool:
    """Whether sums in 16 bits would explain errors that were expected to come from products alone."""
    halves = not spec.quantised and not spec.precision.startswith("32") and spec.partials != "half"
    return halves and all(each[1] <= each[2] * HALF_PARTIALS for each in found)


def _explained_by(spec: Spec, found: list[Comparison]) -> str | None:
    """The half type whose rounding alone would explain the errors, if all of them are that small and no smaller."""
    if spec.precision != "32.32":
        return None
    within: Callable[[float], bool] = lambda share: all(each[1] <= each[2] * share for each in found)  # noqa: E731
    return "float16" if within(30) else "bfloat16" if within(300) else None
