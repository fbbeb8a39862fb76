"""Whole updates of the float64 reference: gradient descent, running statistics, and how far roundings carry.

What the reference can know about its own allowance is measured here: it descends once more while everything that it
reads and writes is off by some roundings, and the difference is what rounding may do to this network.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layermark import ops, reference
from layermark.backends.base import Arrays
from layermark.graph import Graph, Node
from layermark.training.regularisation import statistics_after
from layermark.training.update import Update

Array = np.ndarray[Any, Any]

UNITS: Mapping[str, float] = {"64": 2.0**-53, "32": 2.0**-24, "16": 2.0**-11, "bf16": 2.0**-8}
"""The largest relative error of one rounding to a type."""
ROUNDINGS: Mapping[str, float] = {"64": 32.0, "32": 32.0, "16": 2.0, "bf16": 2.0}
"""By how many of them a perturbed descent is off wherever it reads: a program rounds each sum on the way, not only what
it reads. In fp32 a change of sign is so rare that one rounding may well show none where a program meets one."""
SMOOTH, KINKED = 1e-3, 1e-5
"""How far one update moves the median tensor, relative to what it holds. Activations with kinks change sides when
weights move, and what an update got wrong decides which: with moves of 1e-3 two fp32 updates of ResNet-50 are off by
half of the move, with 1e-5 by a fifth. From `DEPTH` contractions on moves are smaller in proportion; were they
much smaller, the rounding of stored weights would hide them."""
DEPTH = 25
_STORED = 32
"""A move is at least this many roundings of the type that weights are stored in."""
_NOTHING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rates of a proof."""

    alone: float
    """One update moves every tensor by about as much as it holds: its gradient is read back as exactly as may be."""
    several: float
    """Several updates move every tensor a little."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Where descending from the same weights leads: by one update, and by several."""

    rates: Rates
    losses: list[float]
    """The loss of every batch, before its update."""
    alone: dict[str, Array]
    """How far each parameter, running statistic and array of the optimiser's state moves by one update."""
    several: dict[str, Array]
    """The same by all of them, at the smaller rate."""


class Blur:
    """Roundings as a relative error, drawn from a seed, of all that is read and all that is stored."""

    def __init__(self, read: float, stored: float, seed: int) -> None:
        self._read, self._stored, self._draw = read, stored, np.random.default_rng(seed)

    @classmethod
    def of(cls, precision: str, seed: int) -> Blur:
        """Return the roundings of a precision such as 16.32."""
        compute, store = precision.split(".")
        return cls(ROUNDINGS[compute] * UNITS[compute], UNITS[store], seed)

    def read(self, arrays: Arrays) -> dict[str, Array]:
        """Return arrays as a program sees them."""
        return {name: self._off(each, self._read) for name, each in arrays.items()}

    def stored(self, arrays: Arrays) -> dict[str, Array]:
        """Return weights as a program keeps them."""
        return {name: self._off(each, self._stored) for name, each in arrays.items()}

    def _off(self, values: Array, by: float) -> Array:
        if not by or values.dtype.kind != "f":
            return values
        return values * (1 + self._draw.uniform(-by, by, values.shape))


EXACT = Blur(0.0, 0.0, 0)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Where some updates lead: parameters, the optimiser's state, and the loss of every batch on the way."""

    weights: dict[str, Array]
    state: dict[str, Array]
    losses: tuple[float, ...] = ()

    @property
    def arrays(self) -> dict[str, Array]:
        """Everything that has moved."""
        return {**self.weights, **self.state}


@dataclass(frozen=True, kw_only=True)
class _Slopes:
    loss: float
    gradients: dict[str, Array]
    statistics: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A graph with weights and batches in float64, and the module that differentiates it."""

    graph: Graph
    weights: Arrays
    batches: Sequence[Arrays]
    torch: Any
    update: Update = field(default_factory=Update)

    def descend(self, precision: str, rates: Rates | None = None, blur: Blur = EXACT) -> Descent:
        """Return where updates with all batches lead; without rates the first update chooses them."""
        start, first = self._start(), self._seen(self.weights, 0, blur)
        rates = rates or self._rates(precision, start, first)
        alone = self._updated(start, first, rates.alone, blur)
        here = self._updated(start, first, rates.several, blur)
        for index in range(1, len(self.batches) // self.update.micro_batches):
            here = self._updated(here, self._seen(here.weights, index, blur), rates.several, blur)
        return Descent(rates=rates, losses=list(here.losses), alone=_moved(start, alone), several=_moved(start, here))

    def walk(self, rates: Sequence[float]) -> Walk:
        """Return where updates at these rates lead, one after the other."""
        here = self._start()
        for index, rate in enumerate(rates):
            here = self._updated(here, self._seen(here.weights, index, EXACT), rate, EXACT)
        return here

    def _start(self) -> Walk:
        return Walk(weights=dict(self.weights), state=self.update.state(self.weights, xp=np))

    def _rates(self, precision: str, start: Walk, first: Sequence[_Slopes]) -> Rates:
        """How far a first update goes is proportional to its rate, by every rule."""
        after = self._updated(start, first, 1.0, EXACT).weights
        steps = {name: start.weights[name] - after[name] for name in self.update.trained(self.weights)}
        return Rates(
            alone=proving_rate(self.weights, steps), several=small_rate(self.graph, precision, self.weights, steps)
        )

    def _seen(self, weights: Arrays, index: int, blur: Blur) -> list[_Slopes]:
        """What the micro-batches of one update say."""
        count = self.update.micro_batches
        return [self._slopes(weights, number, blur) for number in range(index * count, (index + 1) * count)]

    def _updated(self, here: Walk, seen: Sequence[_Slopes], rate: float, blur: Blur) -> Walk:
        scale = self.update.loss_scale(here.state)
        gradients = [{name: scale * each for name, each in slopes.gradients.items()} for slopes in seen]
        weights = {**here.weights, **self._statistics(here.weights, seen)}
        after, state = self.update.apply(weights, gradients, here.state, rate, xp=np)
        losses = here.losses + tuple(each.loss for each in seen)
        return Walk(weights=blur.stored(after), state=blur.stored(state), losses=losses)

    def _statistics(self, weights: Arrays, seen: Sequence[_Slopes]) -> dict[str, Array]:
        """The running statistics after an update."""
        found = {}
        for name in seen[0].statistics:
            op = self.graph.by_name[name.rpartition("/")[0]].op
            assert isinstance(op, ops.Norm)
            batches, together = [each.statistics[name] for each in seen], self.update.gathers_statistics
            found[name] = statistics_after(weights[name], batches, 1 - op.momentum, together=together)
        return found

    def _slopes(self, weights: Arrays, index: int, blur: Blur) -> _Slopes:
        """The loss, its gradients, and the statistics that batch norms see."""
        seen: dict[str, Array] = {}

        def watched(node: Node, xp: Any, own: Any, *inputs: Any) -> Any:
            if isinstance(node.op, ops.Norm) and node.op.kind == "batch" and node.op.training:
                seen.update(_seen_by_norm(node.name, inputs[0].detach()))
            return reference.value(node.op, xp, own, *inputs)

        used, fed = blur.read(weights), blur.read(self.batches[index])
        loss, gradients = reference.gradients(self.graph, used, fed, self.torch, watched)
        return _Slopes(loss=loss, gradients=gradients, statistics=seen)


def _seen_by_norm(name: str, x: Any) -> dict[str, Array]:
    """The mean and the unbiased variance of what a norm sees."""
    axes, count = (0, *range(2, x.ndim)), math.prod(x.shape) // x.shape[1]
    mean = x.mean(axes, keepdim=True)
    variance = ((x - mean) ** 2).sum(axes) / max(1, count - 1)
    return {f"{name}/mean": mean.reshape(-1).numpy(), f"{name}/variance": variance.numpy()}


def _moved(before: Walk, after: Walk) -> dict[str, Array]:
    return {name: after.arrays[name] - each for name, each in before.arrays.items()}


def changes(exact: Mapping[str, Array], others: Sequence[Mapping[str, Array]]) -> dict[str, float]:
    """Return by how much each array differs at most, in the L2 norm."""
    return {name: max(float(np.linalg.norm(other[name] - each)) for other in others) for name, each in exact.items()}


def kinks(graph: Graph) -> list[str]:
    """Return the nodes whose derivative jumps: rectified activations and pools that take the largest."""
    return [node.name for node in graph if _has_kink(node.op)]


def _has_kink(op: ops.Op) -> bool:
    if isinstance(op, ops.Activation | ops.Norm):
        kind = op.kind if isinstance(op, ops.Activation) else op.activation
        return kind.startswith(("relu", "hard"))
    return isinstance(op, ops.Pool) and op.kind == "max"


def proving_rate(weights: Arrays, gradients: Arrays) -> float:
    """Return a rate, a power of two, at which one step moves every tensor by about as much as it holds.

    A gradient read back as (before - after) / rate is then as exact as the type of the weights allows.
    """
    return 2.0 ** math.ceil(math.log2(max(_ratios(weights, gradients), default=1.0)))


def small_rate(graph: Graph, precision: str, weights: Arrays, gradients: Arrays) -> float:
    """Return a rate, a power of two, at which one step moves the median tensor by a small share of what it holds."""
    share = KINKED * min(1.0, DEPTH / max(1, graph.depth)) if kinks(graph) else SMOOTH
    share = max(share, _STORED * UNITS[precision.split(".")[1]])
    ratio = statistics.median(_ratios(weights, gradients) or [1.0])
    return 2.0 ** round(math.log2(share * ratio))


def _ratios(weights: Arrays, gradients: Arrays) -> list[float]:
    """What each tensor holds, over its gradient."""
    sizes = {name: _rms(each) for name, each in gradients.items()}
    # A gradient that is nothing but rounding (there are such, in front of norms) would ask for any rate at all.
    least = _NOTHING * max(sizes.values(), default=0.0)
    found = [_rms(weights[name]) / each for name, each in sizes.items() if each > least]
    return [each for each in found if each > 0]


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype="float64"))))
