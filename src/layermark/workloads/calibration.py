"""One pass of the reference that finds scales and statistics with which every node's output varies by about one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from layermark import ops, reference
from layermark.graph import Graph, Node
from layermark.laws import Integers, Law, Normal, Shape, Uniform, random_generator
from layermark.workloads.weights import Seeded

POSITIONS = 196
"""A norm's statistics are taken over at least this many positions."""
PICTURES = 8
"""And over this many pictures: deep inside a network pictures differ more from each other than within."""
TILES = (1, 4, 16, 64)
"""They consist of squares of these sizes in turn."""

Array = np.ndarray[Any, Any]


def calibration(graph_of: Callable[[int], Graph], seed: int) -> dict[str, Array]:
    """What to change of the seeded parameters: a number scales a tensor, statistics take the place of what was drawn.

    Single precision will do, since whatever is found is what everybody computes with.
    """
    one = graph_of(1)
    areas = [math.prod(one.shapes[node.name][2:]) for node in one if isinstance(node.op, ops.Norm)]
    graph = graph_of(max(PICTURES, math.ceil(POSITIONS / min(areas, default=POSITIONS))))
    fed = {
        name: _pictures(op.law, random_generator(seed, "calibration", name), op.dims)
        for name, op in graph.inputs.items()
    }
    seen = _Seen()
    reference.evaluate(graph, Seeded(graph, seed).weights(), fed, apply=seen.apply)
    return seen.found


def _pictures(law: Law, rng: np.random.Generator, dims: Shape) -> Array:
    """Random pixels, as synthetic pictures have them; and tiles, most of them grey, under light of some colour.

    To a convolution photographs are nothing like random pixels: they are smooth, their channels alike, some are dark or
    red. A network that has seen only random pixels blows them up layer by layer, and every rounding with them:
    EfficientNet-B0 was off by 2.2 of the spread in float16 where it is now off by 0.02.
    """
    batch, channels, height, width = dims
    found: list[Array] = []
    for tile in itertools.islice(itertools.cycle(TILES), batch):
        area = -(-height // tile), -(-width // tile)
        values: Array = rng.standard_normal((channels, *area), dtype="float32")
        if tile > 1:
            grey, colour = rng.standard_normal((1, *area)), rng.standard_normal((channels, 1, 1))
            values = (values + 1.5 * grey) / 1.8 + colour + rng.standard_normal()
        found.append(values.repeat(tile, 1).repeat(tile, 2)[:, :height, :width])
    return _following(law, np.stack(found).astype("float32"))


def _following(law: Law, normal: Array) -> Array:
    """What a law has in place of normal values: as many below, as many above."""
    if isinstance(law, Normal):
        return normal * law.deviation + law.mean
    assert isinstance(law, Uniform | Integers)
    below = 0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (normal + 0.044715 * normal**3))
    values: Array = law.low + below * (law.high - law.low)
    return values.astype("int32").clip(max=law.high - 1) if isinstance(law, Integers) else values


@dataclass
class _Seen:
    """Evaluates nodes one by one and notes what to change so that the next one reads something sensible."""

    found: dict[str, Array] = field(default_factory=dict)

    def apply(self, node: Node, xp: Any, own: Mapping[str, Array], *inputs: Array) -> Array:
        """What the node gives after its parameters were changed."""
        if isinstance(node.op, ops.Conv2d | ops.Dense):
            return self._scaled(node, xp, own, *inputs)
        if isinstance(node.op, ops.Norm) and node.op.kind == "batch":
            own = {**own, **self._statistics(node, xp, *inputs)}
        made: Array = reference.value(node.op, xp, own, *inputs)
        return made

    def _scaled(self, node: Node, xp: Any, own: Mapping[str, Array], x: Array) -> Array:
        """A product of variance one, whatever its input; the bias comes on top.

        Over pictures the bias also takes out what all positions of a channel have in common, as a norm would.
        """
        assert isinstance(node.op, ops.Conv2d | ops.Dense)
        product: Array = reference.value(replace(node.op, bias=False), xp, own, x)
        common = xp.mean(product, axis=(0, 2, 3), keepdims=True) if node.op.bias and product.ndim == 4 else None
        if common is not None:
            product = product - common
        factor = xp.asarray(1 / max(float(xp.std(product)), 1e-6), dtype=product.dtype)
        self.found[f"{node.name}/weight"] = factor
        if common is not None:
            self.found[f"{node.name}/bias"] = (own["bias"] - common.reshape(-1) * factor).astype("float32")
        bias = own["bias"].reshape((1, -1) + (1,) * (product.ndim - 2)) if node.op.bias else 0
        scaled: Array = product * factor + bias
        return scaled

    def _statistics(self, node: Node, xp: Any, x: Array) -> dict[str, Array]:
        """The channels' own means; variances half way to the mean of all.

        A channel in which these few pictures happen to agree is not blown up where others differ.
        """
        axes = (0, *range(2, x.ndim))
        variance = xp.var(x, axis=axes)
        held = {"mean": xp.mean(x, axis=axes), "variance": (variance + xp.mean(variance)) / 2}
        narrow = {name: each.astype("float32") for name, each in held.items()}
        self.found |= {f"{node.name}/{name}": each for name, each in narrow.items()}
        return narrow
