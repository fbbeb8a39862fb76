"""Training is proven by how far whole updates move weights and running statistics, through the entry that is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from layermark.backends.base import Arrays, Program
from layermark.graph import Graph
from layermark.ops import Norm
from layermark.spec import Spec
from layermark.worker import reference_updates
from layermark.worker.distance import Array, Comparison, error, l2_error
from layermark.worker.oracle import ALONE, SEVERAL
from layermark.workloads.base import Task

# A move may differ, in the L2 norm and as a share of itself, by MULTIPLE times what the reference's own move changes by
# when all that it reads is off by `reference_updates.ROUNDINGS`, and by the floor of the precision. Honest fp32
# programs were off by at most 2.2 times that change: one update of MobileNet at 224 pixels by 13 % on PyTorch, 9 % on
# TensorFlow, 4 % on JAX; of ResNet-50 by 5 % and 2 %. Half a gradient is off by 0.5. Running statistics are allowed ten
# times the error of an output besides, since programs round the long sums that they come from. A stale one is off by
# one.
MULTIPLE = 3.0
OF_STATISTICS = 4.0
_MOST_OF_SUMS = 0.3
FLOORS: Mapping[str, float] = {"64": 1e-8, "32": 1e-4, "16": 1e-2, "bf16": 1e-1}
LARGEST = 0.9
"""Whatever the reference says of itself, a move that was not made is off by one, and one elsewhere by 1.4."""
# A sum of n terms in float32 may be off by n roundings. Frameworks that add up the half million positions of a 1080p
# picture one after the other are (torch's bias gradient: 2.7 % of the spread); that is float32, not a mistake.
ROUNDOFF: Mapping[str, float] = {"64": 2.0**-53}
_FP32 = 2.0**-24
# Where a derivative jumps, which tensors a rare change of sign reaches is luck: what it does to the worst counts for
# all that are trained. After small updates the worst are those whose moves are lost in the rounding of the weights, so
# the median counts. Running statistics are of the forward pass, which has no jumps.
_LUCK: Mapping[str, float] = {ALONE: 1.0, SEVERAL: 0.5}
# A program may meet one change of sign more than the reference did, and one where that met none: at one unit of the
# smallest layer that has them. In ResNet-20 one moved a gradient by 2 over the root of their number (1 %), in ResNet-8
# by 0.5 %, and some units weigh more.
_ONE_UNIT, _MOST_OF_ONE = 5.0, 0.05
# A gradient this small beside the others of its layer is zero but for rounding: constants in front of norms have none.
# What a program finds there is judged by the scale of the layer.
_CANCELLED = 1e-9
_OF_DEVIATION = 0.1
_FLAT = 1e-3
"""Gradients of inputs that are all alike are what is left of large sums that cancel: fp32 itself loses 1.6 % of the
bias gradient of a 1080p convolution over zeros. They are judged as if they were at least this. Random values, on which
such a program is proven too, have no such floor."""


def check_training(program: Program, spec: Spec, task: Task, expected: Arrays, output: float) -> Iterator[Comparison]:
    """Compare updates with those of the reference: one in a call of its own, several in one call, several in as many.

    Parameters, running statistics, the optimiser's state and the loss are compared.
    `output` is the error allowed of a loss that is exactly known.
    """
    proof = _Proof(program, spec, task, expected, output)
    updates = int(expected["updates"])
    yield from proof.compared(ALONE, [1], "")
    yield from proof.compared(SEVERAL, [updates], f" after {updates} updates in one call")
    yield from proof.compared(SEVERAL, [1] * updates, f" after {updates} updates in single calls")


@dataclass(frozen=True)
class _Proof:
    program: Program
    spec: Spec
    task: Task
    expected: Arrays
    output: float

    def compared(self, part: str, calls: list[int], when: str) -> Iterator[Comparison]:
        """Make the updates from the weights of the task, and compare the last loss and all moves."""
        self.program.micro_batches = micro_batches = int(self.expected["micro_batches"])
        self.program.load(self.task.weights())
        before = self._held()
        self.program.learning_rate = float(self.expected[f"{part}:rate"])
        for updates in calls:
            self.program.run(updates * micro_batches)
        yield self._loss(sum(calls) * micro_batches - 1, when)
        after = self._held()
        for name, (scale, share) in self._allowed(part).items():
            moved = _moved(before.get(name), after.get(name))
            wanted = self.expected[f"{part}:move:{name}"]
            yield Comparison(self._named(name, part, when), l2_error(moved, wanted, scale), share, "move")

    def _held(self) -> dict[str, Array]:
        return {name: np.array(each) for name, each in {**self.program.weights(), **self.program.state()}.items()}

    def _loss(self, index: int, when: str) -> Comparison:
        wanted, change = self.expected["losses"][index], float(self.expected["loss_changes"][index])
        found = self.program.outputs().get(self.task.graph.outputs[-1], np.empty(0))
        allowed = self.output + MULTIPLE * change / max(abs(float(wanted)), 1e-30)
        return Comparison(f"loss{when}", error(np.asarray(found), np.asarray(wanted)), bounded(allowed), "size")

    def _named(self, name: str, part: str, when: str) -> str:
        facts = self.task.graph.parameters.get(name)
        return f"gradient of {name}" if part == ALONE and facts and facts.trainable else f"{name}{when}"

    def _allowed(self, part: str) -> dict[str, tuple[float, float]]:
        """The scale and the allowed share of it, of everything that moves."""
        parameters, update = self.task.graph.parameters, self.spec.update
        found = self._allowed_of(part, {name: name for name in parameters}, float(self.expected[f"{part}:rate"]))
        for slot in update.rule.slots:
            found |= self._allowed_of(part, {f"{name}/{slot}": name for name in update.trained(parameters)}, 1.0)
        return found

    def _allowed_of(self, part: str, owners: Mapping[str, str], rate: float) -> dict[str, tuple[float, float]]:
        """The same of arrays of one kind, each of which belongs to a parameter."""
        graph = self.task.graph
        moves = {owner: self.expected[f"{part}:move:{name}"] for name, owner in owners.items()}
        sizes = scales(graph, moves, self.task.weights(), self._flat(rate))
        shares = {owner: float(self.expected[f"{part}:change:{name}"]) / sizes[owner] for name, owner in owners.items()}
        trained = [share for name, share in shares.items() if graph.parameters[name].trainable]
        luck = sign_flip_tolerance(graph, float(np.quantile(trained, _LUCK[part])), self._unit)
        return {name: (sizes[owner], self._share(owner, shares[owner], luck)) for name, owner in owners.items()}

    def _share(self, name: str, own: float, luck: float) -> float:
        if not self.task.graph.parameters[name].trainable:
            return bounded(min(10 * self.output, _MOST_OF_SUMS) + OF_STATISTICS * own)
        # np.maximum passes a NaN on, whichever side it is on; max does not.
        return bounded(self._floor + float(np.maximum(MULTIPLE * own, luck)) + self._roundoff * terms(self.task, name))

    @property
    def _floor(self) -> float:
        return FLOORS[self.spec.precision.split(".")[0]] * (4 if self.spec.partials == "half" else 1)

    @property
    def _unit(self) -> float:
        return reference_updates.UNITS[self.spec.precision.split(".")[0]]

    @property
    def _roundoff(self) -> float:
        return ROUNDOFF.get(self.spec.precision.split(".")[0], _FP32)

    def _flat(self, rate: float) -> float:
        return 0.0 if self.spec.values == "random" else _FLAT * rate


def bounded(share: float) -> float:
    """Return an allowance that is at most `LARGEST`; one that is no number stays none, and so allows nothing."""
    return float(np.minimum(share, LARGEST))


def _moved(before: Array | None, after: Array | None) -> Array:
    if before is None or after is None or before.shape != after.shape:
        return np.empty(0)
    found: Array = after.astype("float64") - before
    return found


def sign_flip_tolerance(graph: Graph, seen: float, unit: float) -> float:
    """Return what changes of sign may do to any tensor, if the reference's own do this to most of them.

    `unit` is one rounding of the type; in float64 a change of sign is too rare to be met.
    """
    kinks = reference_updates.kinks(graph)
    if not kinks:
        return 0.0
    units = min(math.prod(graph.shapes[name]) for name in kinks)
    one = min(_MOST_OF_ONE, _ONE_UNIT / math.sqrt(units)) if unit >= _FP32 else 0.0
    return MULTIPLE * seen + one


def scales(graph: Graph, moves: Arrays, weights: Arrays, least: float = 0.0) -> dict[str, float]:
    """Return the length that an error of each move is measured by: its own, or that of its layer where it cancels.

    `least` is the least root of the mean square that counts.
    """
    sizes = {name: _rms(each) for name, each in moves.items()}
    trained = {name: size for name, size in sizes.items() if graph.parameters[name].trainable}
    layers: dict[str, float] = {}
    for name, size in trained.items():
        node = name.rpartition("/")[0]
        layers[node] = max(layers.get(node, _CANCELLED * max(trained.values())), size)
    found = {}
    for name, size in sizes.items():
        if name in trained:
            layer = layers[name.rpartition("/")[0]]
            kept = size if size > _CANCELLED * layer else layer
        else:
            kept = max(size, _least_of_statistic(graph, name, weights))
        found[name] = max(kept, least, 1e-30) * math.sqrt(moves[name].size)
    return found


def _least_of_statistic(graph: Graph, name: str, weights: Arrays) -> float:
    """A tenth of the way by which one batch would move a statistic if it were off by the deviation of the values.

    The mean behind a linear layer behind a norm is the same for every batch: calibrated means do not move at all.
    """
    node, _, statistic = name.rpartition("/")
    op = graph.by_name[node].op
    if not isinstance(op, Norm):
        return 0.0
    variance = weights[f"{node}/variance"]
    return _OF_DEVIATION * op.momentum * _rms(np.sqrt(np.abs(variance)) if statistic == "mean" else variance)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype="float64"))))


def terms(task: Task, name: str) -> int:
    """Return how many terms the gradient of one element of a parameter sums: batch x positions x time steps."""
    node = task.graph.by_name[name.rsplit("/", 1)[0]]
    shapes = task.graph.input_shapes(node)
    largest = max(each.count for each in node.op.parameters(*shapes).values())
    return node.op.macs(*shapes) // largest
