"""Proof that the timed program computes what it should: its own results against the oracle's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from layermark.backends.base import Arrays, Program
from layermark.graph import Graph
from layermark.outcome import Verification
from layermark.spec import QUANTISED, Spec
from layermark.worker import oracle
from layermark.worker.distance import Array, Comparison, error, rms_error
from layermark.worker.training_proof import check_training
from layermark.workloads.base import Task
from layermark.workloads.folding import folded, products

# The largest error allowed of an output, as a share of the spread (standard deviation) of what is compared.
# What training may be off by stands in `training_proof`.
TOLERANCES: Mapping[str, float] = {
    "64.64": 1e-9,
    "32.32": 1e-4,
    "16.32": 3e-2,
    "16.16": 3e-2,
    "bf16.32": 2.5e-1,
    "bf16.bf16": 2.5e-1,
}
AGAINST = "float64 reference"

# Roundings of one contraction are passed on through all that follow: float32 itself is off by 2e-5 of the spread
# after the 50 of ResNet-50, and by 9e-5 after the 101 of ResNeXt-101. From this many on the allowance grows with them.
DEPTH = 25
HALF_PARTIALS = 4.0
"""What sums in 16 bits may add: on EfficientNet-B0 TensorFlow's are off by 0.27 of the spread, PyTorch's by 0.03."""
_LARGEST = 0.5
"""Whatever the depth, half of the spread is wrong."""

# Inputs that are all alike can give outputs without any spread. Errors are then judged against at least this. Random
# values, on which such a program is proven too, have no such floor.
_FLOOR = 1e-3

# Whole numbers round far more coarsely, and the roundings of layers that follow each other add up like the steps of a
# random walk: the root of the mean square was 0.004 to 0.053 of the spread times the root of the depth, over models of
# every family and both quantizers. No answer at all is off by one spread, the answer to something else by 1.4.
INT8 = 0.08
_LARGEST_INT8 = 0.9
# That leaves room for a layer of a deep network to be missing. So the weights that are multiplied are read back from
# the quantised model, and each must be what was quantised, up to its steps.
INT8_WEIGHTS = 0.25

MANY = 16
"""A call of the proof has no more batches than this, unless a program needs more of them in flight."""


class Call(NamedTuple):
    """A call of the proof, and the input of the ring whose outputs it must leave; None if nobody looks."""

    batches: int
    leaves: int | None


def verify(program: Program, spec: Spec, task: Task, path: Path, most: int = MANY) -> Verification:
    """Run the program on known inputs, at most so many a call, and compare; weights and ring are as new afterwards."""
    with np.load(path, allow_pickle=False) as file:
        expected = dict(file)
    weights = task.weights()
    program.load(weights)
    found = list(_compared(program, spec, task, expected, most))
    program.learning_rate, program.micro_batches = spec.learning_rate, spec.update.micro_batches
    program.load(weights)
    return judged(spec, found)


def _compared(program: Program, spec: Spec, task: Task, expected: Arrays, most: int) -> Iterator[Comparison]:
    if spec.mode == "train":
        return check_training(
            program, spec, task, expected, output_tolerance(spec.precision, task.graph, spec.partials)
        )
    return _check_outputs(program, spec, task, expected, most)


def calls(spec: Spec, least: int, *, live: bool, most: int = MANY) -> list[Call]:
    """Return the calls of a proof of outputs: first and last input as a batch alone and as the last of several.

    No call leaves the outputs that the one before has left, so that one which does nothing is found out. Several are as
    many as a timed call has, within reason, and at least as many as a program keeps in flight. Batches that are loaded
    come once: the ring is not walked twice, and no runtime loops over them by itself.
    """
    last = spec.ring - 1
    if live:
        return [Call(1, 0), Call(last, last)]
    several = max(2, least, min(spec.batches_per_step, most))
    walk = [
        Call(1, 0),
        Call(several + (last - several) % spec.ring, last),
        Call(several + (1 - several) % spec.ring, 0),
    ]
    between = [Call(last - 1, None)] if last > 1 else []
    return [*walk, *between, Call(1, last)]


def _check_outputs(program: Program, spec: Spec, task: Task, expected: Arrays, most: int) -> Iterator[Comparison]:
    rows = oracle.rows_kept(spec, task.graph)
    allowed = output_tolerance(spec.precision, task.graph, spec.partials)
    floor = 0.0 if spec.values == "random" else _FLOOR
    distance = rms_error if spec.quantised else error
    for batches, index in calls(spec, program.least_batches, live=task.stream is not None, most=most):
        program.run(batches)
        if index is None:
            continue
        for name, looked_at in _looked_at(program, spec, task, rows).items():
            what = f"{name} of input {index}" + (f", the last of {batches}" if batches > 1 else "")
            yield Comparison(what, distance(looked_at, expected[f"{index}:{name}"], floor), allowed)
    if spec.quantised:
        yield from _check_products(program, task)


def _looked_at(program: Program, spec: Spec, task: Task, rows: Sequence[int] | None) -> dict[str, Array]:
    """The elements of the outputs that are compared; whole outputs of many gigabytes do not outlive this."""
    outputs, found = program.outputs(), dict[str, Array]()
    for name in task.graph.outputs:
        value = outputs.get(name, np.empty(0))
        if rows is not None and value.size:
            value = np.take(value, rows, task.graph.batch_axes[name])
        found[name] = value.reshape(-1)[oracle.places(spec.seed, name, value.size)]
    return found


def _check_products(program: Program, task: Task) -> Iterator[Comparison]:
    """Every weight that a quantised program multiplies with."""
    graph, weights = folded(task.graph, task.weights())
    found = program.products()
    for name in products(graph):
        yield Comparison(name, error(found.get(name, np.empty(0)), weights[name], 1e-30), INT8_WEIGHTS)


def output_tolerance(precision: str, graph: Graph, partials: str = "full") -> float:
    """Return the error allowed of outputs, by the type, its sums, and how deep the network is."""
    if precision in QUANTISED:
        return min(INT8 * math.sqrt(max(1, graph.depth)), _LARGEST_INT8)
    factor = max(1.0, graph.depth / DEPTH)
    if partials == "half" and not precision.startswith("32"):
        factor *= HALF_PARTIALS
    allowed = TOLERANCES[precision]
    return max(allowed, min(allowed * factor, _LARGEST))


def judged(spec: Spec, found: list[Comparison]) -> Verification:
    """Return what the worst of the comparisons says; a reason says what it looks like."""
    worst = max(found, key=lambda each: each.excess)
    ok = worst.excess <= 1
    return Verification(
        ok=ok,
        max_error=worst.error if math.isfinite(worst.error) else 1e308,
        tolerance=worst.allowed if math.isfinite(worst.allowed) else 0.0,
        against=AGAINST,
        worst=worst.name,
        reason="" if ok else _reason(spec, found, worst),
    )


def _reason(spec: Spec, found: list[Comparison], worst: Comparison) -> str:
    if not math.isfinite(worst.excess):
        return f"wrong result: {worst.name} is not finite, or missing"
    coarser = _explained_by(spec, found)
    if coarser:
        error_is = f"the error of {worst.name} is {worst.error:.1e}"
        return f"computes in another type: {error_is}, as {coarser} gives, not {spec.precision}"
    off = f"{worst.name} is off by {worst.error:.1e} of its {worst.scale}, allowed is {worst.allowed:.0e}"
    if _adds_up_in_half(spec, found):
        return f"{off}, as if 16-bit products were added up in 16 bits; --partials half accepts such sums"
    return f"wrong result: {off}"


def _adds_up_in_half(spec: Spec, found: list[Comparison]) -> bool:
    """Whether sums in 16 bits would explain errors that were expected to come from products alone."""
    halves = not spec.quantised and not spec.precision.startswith(("32", "64")) and spec.partials != "half"
    return halves and all(each.excess <= HALF_PARTIALS for each in found)


def _explained_by(spec: Spec, found: list[Comparison]) -> str | None:
    """The half type whose rounding alone would explain the errors, if all of them are that small and no smaller."""
    if spec.precision != "32.32":
        return None
    excess = max(each.excess for each in found)
    return "float16" if excess <= 30 else "bfloat16" if excess <= 300 else None
