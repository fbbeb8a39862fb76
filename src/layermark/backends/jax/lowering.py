"""A graph as jax.lax code: one small function per operation of the vocabulary. Pictures are channels-last inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce, singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from layermark import ops
from layermark.backends.jax import convolution, norms, recurrent
from layermark.errors import Unsupported
from layermark.graph import Graph, Node

Weights = Mapping[str, Array]
TO_INSIDE, TO_CANONICAL = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass
class Site:
    """One node as it is traced: its parameters, how to write it, and the state that it moves."""

    node: Node
    weights: Weights
    tuned: bool
    training: bool
    compute: str
    rank: int
    state: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphFunction:
    """How a graph is written: `tuned` takes the ways around slow layers; losses are computed in fp32."""

    graph: Graph
    tuned: bool = False
    training: bool = False
    compute: str = "float32"
    recompute: bool = False
    """Whether the activations inside blocks are computed again in the backward pass."""

    def settle(self, weights: Weights) -> dict[str, Array]:
        """What follows from the parameters alone, in the compute type; inference does it once, on loading."""
        settled: dict[str, Array] = {}
        for node in self.graph:
            own = {name: each.astype(self.compute) for name, each in _own(self.graph, node, weights).items()}
            settled |= {f"{node.name}/{name}": each for name, each in settle_op(node.op, own).items()}
        return settled

    def forward(self, settled: Weights, inputs: Mapping[str, Array]) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """The graph's outputs, and the state (running statistics) that the pass has moved."""
        if self.recompute:
            return self._forward_again(settled, inputs)
        values, state = dict(inputs), dict[str, Array]()
        self._run(self.graph.nodes, settled, values, state)
        return tuple(values[name] for name in self.graph.outputs), state

    def _run(self, nodes: Sequence[Node], settled: Weights, values: dict[str, Array], state: dict[str, Array]) -> None:
        """Add the values of nodes, and the state that they move."""
        for node in nodes:
            if node.name not in values:
                own, rank = _prefixed(node, settled), len(self.graph.shapes[node.name])
                site = Site(node, own, self.tuned, self.training, self.compute, rank)
                with jax.named_scope(node.name):
                    values[node.name] = apply_op(node.op, site, *(values[name] for name in node.inputs))
                state |= {f"{node.name}/{name}": each for name, each in site.state.items()}

    def _forward_again(
        self, settled: Weights, inputs: Mapping[str, Array]
    ) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """The same block by block; of all but the last only what it hands on is kept for the backward pass."""
        values, state = dict(inputs), dict[str, Array]()
        *blocks, rest = self.graph.blocks()
        for block in blocks:
            name = block[-1].name
            own = {f"{node.name}/{each}": held for node in block for each, held in _prefixed(node, settled).items()}
            values[name], moved = jax.checkpoint(partial(self._block, block))(own, values)
            state |= moved
            values = {each: values[each] for each in (*inputs, name)}
        self._run(rest, settled, values, state)
        return tuple(values[name] for name in self.graph.outputs), state

    def _block(self, block: Sequence[Node], settled: Weights, read: Weights) -> tuple[Array, dict[str, Array]]:
        values, state = dict(read), dict[str, Array]()
        self._run(block, settled, values, state)
        return values[block[-1].name], state


def _own(graph: Graph, node: Node, weights: Weights) -> dict[str, Array]:
    return {name: weights[f"{node.name}/{name}"] for name in node.op.parameters(*graph.input_shapes(node))}


def _prefixed(node: Node, settled: Weights) -> dict[str, Array]:
    start = f"{node.name}/"
    return {name.removeprefix(start): each for name, each in settled.items() if name.startswith(start)}


def inside(array: Array) -> Array:
    """A canonical picture in the layout that is used inside; anything else as it is."""
    return jnp.transpose(array, TO_INSIDE) if array.ndim == 4 else array


def canonical(array: Array) -> Array:
    """A picture of the inside in the canonical layout; anything else as it is."""
    return jnp.transpose(array, TO_CANONICAL) if array.ndim == 4 else array


@singledispatch
def native(op: ops.Op, name: str) -> tuple[int, ...] | None:
    """The order of axes in which a parameter is stored, if not the canonical one."""
    return None


@native.register
def _native_dense(op: ops.Dense, name: str) -> tuple[int, ...] | None:
    return (1, 0) if name == "weight" else None  # [features, units] is what XLA's library multiplies fastest


@native.register
def _native_conv2d(op: ops.Conv2d, name: str) -> tuple[int, ...] | None:
    return (2, 3, 1, 0) if name == "weight" else None


@native.register
def _native_recurrent(op: ops.Recurrent, name: str) -> tuple[int, ...] | None:
    return (1, 0) if name in ("weight", "recurrent") else None


@singledispatch
def settle_op(op: ops.Op, weights: Weights) -> dict[str, Array]:
    """What an operation needs of its parameters, as far as they alone determine it."""
    return dict(weights)


settle_op.register(ops.Norm, norms.settle)
settle_op.register(ops.Recurrent, recurrent.settle)


@singledispatch
def apply_op(op: ops.Op, site: Site, *inputs: Array) -> Array:
    """Trace one operation; the functions below are found by the operation's type."""
    raise Unsupported(f"jax has no lowering of {type(op).__name__}")


@apply_op.register
def _dense(op: ops.Dense, site: Site, x: Array) -> Array:
    rows = canonical(x)
    product = lax.dot_general(rows, site.weights["weight"], (((rows.ndim - 1,), (0,)), ((), ())))
    return inside(product + site.weights["bias"] if op.bias else product)


@apply_op.register
def _conv2d(op: ops.Conv2d, site: Site, x: Array) -> Array:
    write = convolution.tuned if site.tuned and convolution.tunable(op, x.shape[3]) else convolution.library
    made = write(op, x, site.weights["weight"])
    return made + site.weights["bias"] if op.bias else made


@apply_op.register
def _norm(op: ops.Norm, site: Site, x: Array) -> Array:
    return norms.apply(op, site.weights, x, site.state)


@apply_op.register
def _activation(op: ops.Activation, site: Site, x: Array) -> Array:
    return norms.ACTIVATIONS[op.kind](x)


@apply_op.register
def _pool(op: ops.Pool, site: Site, x: Array) -> Array:
    if op.kind == "max":
        return _windowed(op, x, -math.inf, lax.max)
    counts = _windowed(op, jnp.ones((1, *x.shape[1:3], 1), x.dtype), 0.0, lax.add)
    return _windowed(op, x, 0.0, lax.add) / counts


def _windowed(op: ops.Pool, x: Array, start: float, combine: Callable[[Any, Any], Any]) -> Array:
    top, bottom, left, right = op.padding
    padding = ((0, 0), (top, bottom), (left, right), (0, 0))
    # A Python scalar: only then does JAX see that the window is a maximum or a sum, and can differentiate it.
    initial = np.asarray(start, x.dtype)
    seen: Array = lax.reduce_window(x, initial, combine, (1, *op.kernel, 1), (1, *op.stride, 1), padding)
    return seen


@apply_op.register
def _global_pool(op: ops.GlobalPool, site: Site, x: Array) -> Array:
    return jnp.mean(x, (1, 2))


@apply_op.register
def _add(op: ops.Add, site: Site, *inputs: Array) -> Array:
    return reduce(jnp.add, inputs)


@apply_op.register
def _multiply(op: ops.Multiply, site: Site, first: Array, second: Array) -> Array:
    gate, x = sorted((first, second), key=lambda each: each.ndim)
    return x * (gate if gate.ndim == x.ndim else gate[:, None, None, :])


@apply_op.register
def _concat(op: ops.Concat, site: Site, *inputs: Array) -> Array:
    axis = TO_INSIDE.index(op.axis) if site.rank == 4 else op.axis
    return jnp.concatenate(inputs, axis)


@apply_op.register
def _pad(op: ops.Pad, site: Site, x: Array) -> Array:
    top, bottom, left, right = op.padding
    return jnp.pad(x, ((0, 0), (top, bottom), (left, right), op.channels))


@apply_op.register
def _subsample(op: ops.Subsample, site: Site, x: Array) -> Array:
    return x[:, :: op.stride[0], :: op.stride[1]]


@apply_op.register
def _normalise(op: ops.Normalise, site: Site, x: Array) -> Array:
    spread = np.asarray(op.deviation)
    shape = norms.column_shape(x.ndim)
    factor, offset = (
        each.astype(_wide_type(site.compute)).reshape(shape)
        for each in (op.scale / spread, -np.asarray(op.mean) / spread)
    )
    return x.astype(_wide_type(site.compute)) * factor + offset


@apply_op.register
def _dropout(op: ops.Dropout, site: Site, x: Array, mask: Array | None = None) -> Array:
    return x if mask is None else x * mask * (1 / (1 - op.rate))


@apply_op.register
def _stochastic_depth(op: ops.StochasticDepth, site: Site, x: Array, mask: Array | None = None) -> Array:
    return x if mask is None else x * (mask * (1 / op.survival)).reshape(-1, *[1] * (x.ndim - 1))


@apply_op.register
def _recurrent(op: ops.Recurrent, site: Site, x: Array) -> Array:
    return recurrent.apply(op, site.weights, x, training=site.training, tuned=site.tuned)


@apply_op.register
def _take_last(op: ops.TakeLast, site: Site, x: Array) -> Array:
    return x[-1]


@apply_op.register
def _flatten(op: ops.Flatten, site: Site, x: Array) -> Array:
    return canonical(x).reshape(x.shape[0], -1)


@apply_op.register
def _softmax(op: ops.Softmax, site: Site, x: Array) -> Array:
    rows = canonical(x) if op.axis > 1 else x  # from axis 1 on everything is one row in either layout
    flat = rows.reshape(*rows.shape[: op.axis], -1)
    made = jax.nn.softmax(flat, axis=-1).reshape(rows.shape)
    return inside(made) if op.axis > 1 else made


@apply_op.register
def _mean_squared_error(op: ops.MeanSquaredError, site: Site, y: Array, target: Array) -> Array:
    return jnp.mean(jnp.square(_wide(y) - target))


@apply_op.register
def _sum_squared_error(op: ops.SumSquaredError, site: Site, y: Array, target: Array) -> Array:
    return jnp.sum(jnp.square(_wide(y) - target))


@apply_op.register
def _mix_pictures(op: ops.MixPictures, site: Site, x: Array, own: Array, pasted: Array) -> Array:
    column = own.astype(x.dtype).reshape(-1, 1, 1, 1)
    mixed = column * x + (1 - column) * jnp.roll(x, 1, 0)
    return jnp.where(pasted[:, :, None] > 0, jnp.roll(mixed, op.shift, 0), mixed)


@apply_op.register
def _cross_entropy(
    op: ops.CrossEntropy, site: Site, logits: Array, labels: Array, shares: Array | None = None
) -> Array:
    rows, labels = canonical(_wide(logits)), canonical(labels)
    logarithms = jax.nn.log_softmax(rows, axis=-1)
    if shares is not None:
        others = op.smoothing / (rows.shape[-1] - 1) if op.smoothing else 0.0
        chosen = jax.nn.one_hot(labels, rows.shape[-1], dtype=rows.dtype) * (1 - op.smoothing - others) + others
        return -jnp.mean(jnp.sum((shares.astype(rows.dtype) @ chosen) * logarithms, -1))
    if labels.ndim == rows.ndim:
        return -jnp.mean(jnp.sum(labels * logarithms, -1))
    chosen = _picked(logarithms, labels)
    if not op.smoothing:
        return -jnp.mean(chosen)
    others = op.smoothing / (rows.shape[-1] - 1)
    return -jnp.mean((1 - op.smoothing - others) * chosen + others * jnp.sum(logarithms, -1))


@apply_op.register
def _mean(op: ops.Mean, site: Site, y: Array) -> Array:
    return jnp.mean(_wide(y))


@apply_op.register
def _negative_log_likelihood(op: ops.NegativeLogLikelihood, site: Site, p: Array, labels: Array) -> Array:
    return -jnp.sum(jnp.log(_picked(canonical(_wide(p)), canonical(labels)) + op.epsilon))


def _picked(rows: Array, labels: Array) -> Array:
    return jnp.take_along_axis(rows, labels[..., None], axis=-1)[..., 0]


def _wide(x: Array) -> Array:
    return x.astype(_wide_type(x.dtype.name))


def _wide_type(compute: str) -> str:
    return compute if compute == "float64" else "float32"
