"""A graph as TensorFlow operations on NHWC pictures: one small function per operation of the vocabulary."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce, singledispatch
from typing import Any

import numpy as np
import tensorflow as tf

from layermark import ops
from layermark.backends.tensorflow import convolution, recurrent
from layermark.errors import Unsupported
from layermark.graph import Graph, Node
from layermark.laws import Shape

Tensor = Any
Tensors = Mapping[str, Tensor]
_NHWC = (0, 2, 3, 1)
_NCHW = (0, 3, 1, 2)


@dataclass
class Style:
    """How a graph is written, and what the writing found out.

    `moves` collects the new values of running statistics; `kernels` the ways that were chosen.
    """

    compute: tf.DType = tf.float32
    xla: bool = False
    training: bool = False
    tuned: bool = False
    recompute: bool = False
    moves: dict[str, Tensor] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """One node in the writing: what it reads, its parameters, and the shapes in the canonical layout."""

    style: Style
    node: Node
    values: tuple[Tensor, ...]
    shapes: tuple[Shape, ...]
    parameters: Tensors

    @property
    def x(self) -> Tensor:
        """The first thing it reads."""
        return self.values[0]

    @property
    def pictures(self) -> bool:
        """Whether the first thing it reads is NHWC."""
        return len(self.shapes[0]) == 4

    def weight(self, name: str) -> Tensor:
        """A parameter in the compute type."""
        return tf.cast(self.parameters[name], self.style.compute)

    def weights(self) -> dict[str, Tensor]:
        """All parameters in the compute type."""
        return {name: self.weight(name) for name in self.parameters}

    def wide(self, value: Tensor) -> Tensor:
        """The value in the type in which losses and statistics are computed."""
        return tf.cast(value, wide(self.style.compute))

    def chose(self, kernel: str) -> str:
        """Remember what was chosen for this kind of operation."""
        self.style.kernels[self.node.name] = kernel
        return kernel


def wide(compute: tf.DType) -> tf.DType:
    """What losses and statistics are computed in: fp32, or what is wider."""
    return compute if compute == tf.float64 else tf.float32


def lower(graph: Graph, style: Style, inputs: Tensors, parameters: Tensors) -> list[Tensor]:
    """Write a graph; inputs and results that are pictures are NHWC, parameters are in their `stored` layout."""
    values = dict(inputs)
    write(graph, graph.nodes, style, values, parameters)
    return [values[name] for name in graph.outputs]


def write(graph: Graph, nodes: Sequence[Node], style: Style, values: dict[str, Tensor], parameters: Tensors) -> None:
    """Add the values of some nodes."""
    for node in nodes:
        if isinstance(node.op, ops.Input):
            continue
        own = {name: parameters[f"{node.name}/{name}"] for name in node.op.parameters(*graph.input_shapes(node))}
        read = tuple(values[name] for name in node.inputs)
        with tf.name_scope(scope(node.name)):
            values[node.name] = lower_op(node.op, Site(style, node, read, graph.input_shapes(node), own))


def scope(name: str) -> str:
    """A node's name as TensorFlow accepts it."""
    word = re.sub(r"[^\w./-]", "_", name)
    return word if re.match(r"[A-Za-z0-9.]", word) else f"n{word}"


def to_native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Values of a node as the program has them: pictures NHWC."""
    return array.transpose(_NHWC) if array.ndim == 4 else array


def to_canonical(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Values of a node in the canonical layout."""
    return array.transpose(_NCHW) if array.ndim == 4 else array


def stored_axes(op: ops.Op, name: str) -> tuple[int, ...] | None:
    """The order of a parameter's canonical axes as it is stored; None as it is."""
    if name == "weight" and isinstance(op, ops.Conv2d):
        return 2, 3, 1, 0
    if name in ("weight", "recurrent") and isinstance(op, (ops.Dense, ops.Recurrent)):
        return 1, 0
    return None


@singledispatch
def lower_op(op: ops.Op, site: Site) -> Tensor:
    """Write one operation; the functions below are found by the operation's type."""
    raise Unsupported(f"tensorflow has no lowering of {type(op).__name__}")


@lower_op.register
def _dense(op: ops.Dense, site: Site) -> Tensor:
    x = _canonical(site)
    rows = tf.reshape(x, (-1, x.shape[-1])) if len(x.shape) != 2 else x
    y = tf.matmul(rows, site.weight("weight"))
    y = tf.nn.bias_add(y, site.weight("bias")) if op.bias else y
    if len(x.shape) == 2:
        return y
    y = tf.reshape(y, (*x.shape[:-1], op.units))
    return tf.transpose(y, _NHWC) if site.pictures else y


def _canonical(site: Site) -> Tensor:
    return tf.transpose(site.x, _NCHW) if site.pictures else site.x


@lower_op.register
def _conv2d(op: ops.Conv2d, site: Site) -> Tensor:
    style = site.style
    how = convolution.kernel(op, site.shapes[0], xla=style.xla, training=style.training, tuned=style.tuned)
    y = convolution.convolve(op, site.x, site.weight("weight"), site.chose(how), training=style.training)
    return tf.nn.bias_add(y, site.weight("bias")) if op.bias else y


@lower_op.register
def _norm(op: ops.Norm, site: Site) -> Tensor:
    if op.kind == "none":
        return site.x
    own = {name: site.wide(each) for name, each in site.parameters.items()}
    if op.kind == "batch" and site.pictures and site.style.compute != tf.float64:  # which has no fused kernel
        return _fused_batch_norm(op, site, own)
    x = site.wide(site.x)
    if not site.pictures:  # channels last, as pictures have them
        x = tf.transpose(x, (0, *range(2, len(x.shape)), 1))
    y = _wide_norm(op, site, own, x)
    if not site.pictures:
        y = tf.transpose(y, (0, len(y.shape) - 1, *range(1, len(y.shape) - 1)))
    return tf.cast(y, site.style.compute)


def _fused_batch_norm(op: ops.Norm, site: Site, own: Tensors) -> Tensor:
    """The fused kernel, which inference folds into the convolution before it."""
    empty = tf.zeros((0,), tf.float32)
    stored = (empty, empty) if op.training else (own["mean"], own["variance"])
    result = tf.raw_ops.FusedBatchNormV3(
        x=site.x,
        scale=own["scale"],
        offset=own["shift"],
        mean=stored[0],
        variance=stored[1],
        epsilon=op.epsilon,
        is_training=op.training,
    )
    if op.training:
        _move(op, site, own, result.batch_mean, result.batch_variance)
    return result.y


def _move(op: ops.Norm, site: Site, own: Tensors, mean: Tensor, variance: Tensor) -> None:
    """Remember where the running statistics go."""
    for name, now in (("mean", mean), ("variance", variance)):
        site.style.moves[f"{site.node.name}/{name}"] = own[name] + op.momentum * (now - own[name])


def _wide_norm(op: ops.Norm, site: Site, own: Tensors, x: Tensor) -> Tensor:
    if op.kind == "batch":
        mean, variance = own["mean"], own["variance"]
        if op.training:
            mean, variance = tf.nn.moments(x, tuple(range(len(x.shape) - 1)))
            count = int(np.prod(x.shape[:-1]))
            _move(op, site, own, mean, variance * (count / max(1, count - 1)))
        return tf.nn.batch_normalization(x, mean, variance, own["shift"], own["scale"], op.epsilon)
    scaled = _group_normalised(op, x) * own["scale"] + own["shift"]
    return scaled if op.kind == "group" else _proxy_normalised(op, own, scaled)


def _group_normalised(op: ops.Norm, x: Tensor) -> Tensor:
    batch, *size, channels = x.shape
    area, members = int(np.prod(size)), channels // op.groups
    split = (members, op.groups) if op.strided else (op.groups, members)
    grouped = tf.reshape(x, (batch, area, *split))
    mean, variance = tf.nn.moments(grouped, (1, 2 if op.strided else 3), keepdims=True)
    return tf.reshape((grouped - mean) * tf.math.rsqrt(variance + op.epsilon), x.shape)


def _proxy_normalised(op: ops.Norm, own: Tensors, scaled: Tensor) -> Tensor:
    activation = ACTIVATIONS[op.activation] if op.activation else tf.identity
    normal, points = statistics.NormalDist(), ops.PROXY_POINTS
    quantiles = tf.constant([[normal.inv_cdf((i + 0.5) / points)] for i in range(points)], scaled.dtype)
    proxy = activation(((1 + own["proxy_scale"]) * quantiles + own["proxy_shift"]) * own["scale"] + own["shift"])
    mean, variance = tf.nn.moments(proxy, (0,))
    return (activation(scaled) - mean) * tf.math.rsqrt(variance + op.proxy_epsilon)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "swish": tf.nn.silu,
    "hard-sigmoid": lambda x: tf.nn.relu6(x + 3) * (1 / 6),
    "hard-swish": lambda x: x * (tf.nn.relu6(x + 3) * (1 / 6)),
}


@lower_op.register
def _activation(op: ops.Activation, site: Site) -> Tensor:
    return ACTIVATIONS[op.kind](site.x)


@lower_op.register
def _pool(op: ops.Pool, site: Site) -> Tensor:
    x, word = site.x, convolution.padding_word(site.x.shape, op.kernel, op.stride, op.padding)
    function = tf.nn.max_pool2d if op.kind == "max" else tf.nn.avg_pool2d
    # XLA takes no numbers, nor do averages; the gradient kernel does, but is three times as slow with them.
    if isinstance(word, str) or (op.kind == "max" and not site.style.xla and not site.style.training):
        return function(x, op.kernel, op.stride, word)
    fill = x.dtype.min if op.kind == "max" else 0
    y = function(tf.pad(x, word, constant_values=fill), op.kernel, op.stride, "VALID")
    return y if op.kind == "max" else y * tf.constant(_shares(op, site.shapes[0], word), x.dtype)


def _shares(op: ops.Pool, shape: Shape, padding: list[list[int]]) -> np.ndarray[Any, Any]:
    """By how much an average over a window grows when padding does not count."""
    inside = np.pad(np.ones(shape[2:]), padding[1:3])
    windows = np.lib.stride_tricks.sliding_window_view(inside, op.kernel)[:: op.stride[0], :: op.stride[1]]
    shares: np.ndarray[Any, Any] = np.prod(op.kernel) / windows.sum(axis=(2, 3))
    return shares[None, :, :, None]


@lower_op.register
def _global_pool(op: ops.GlobalPool, site: Site) -> Tensor:
    return tf.reduce_mean(site.x, (1, 2))


@lower_op.register
def _add(op: ops.Add, site: Site) -> Tensor:
    return reduce(tf.add, site.values)


@lower_op.register
def _multiply(op: ops.Multiply, site: Site) -> Tensor:
    rank = max(len(shape) for shape in site.shapes)
    return tf.multiply(*(each if len(each.shape) == rank else each[:, None, None, :] for each in site.values))


@lower_op.register
def _concat(op: ops.Concat, site: Site) -> Tensor:
    axis = _NHWC.index(op.axis) if site.pictures else op.axis
    return tf.concat(list(site.values), axis)


@lower_op.register
def _pad(op: ops.Pad, site: Site) -> Tensor:
    top, bottom, left, right = op.padding
    return tf.pad(site.x, ((0, 0), (top, bottom), (left, right), op.channels))


@lower_op.register
def _subsample(op: ops.Subsample, site: Site) -> Tensor:
    return site.x[:, :: op.stride[0], :: op.stride[1]]


@lower_op.register
def _normalise(op: ops.Normalise, site: Site) -> Tensor:
    factor = op.scale / np.array(op.deviation)
    addend = -np.array(op.mean) / np.array(op.deviation)
    if not site.pictures:
        column = (-1, *[1] * (len(site.shapes[0]) - 2))
        factor, addend = factor.reshape(column), addend.reshape(column)
    x = site.wide(site.x)
    return tf.cast(x * tf.constant(factor, x.dtype) + tf.constant(addend, x.dtype), site.style.compute)


@lower_op.register
def _dropout(op: ops.Dropout, site: Site) -> Tensor:
    return site.x if len(site.values) == 1 else site.x * (tf.cast(site.values[1], site.x.dtype) * (1 / (1 - op.rate)))


@lower_op.register
def _stochastic_depth(op: ops.StochasticDepth, site: Site) -> Tensor:
    if len(site.values) == 1:
        return site.x
    factor = tf.cast(site.values[1], site.x.dtype) * (1 / op.survival)
    return site.x * tf.reshape(factor, (-1, *[1] * (len(site.shapes[0]) - 1)))


@lower_op.register
def _recurrent(op: ops.Recurrent, site: Site) -> Tensor:
    style = site.style
    how = recurrent.kernel(op, site.shapes[0], style.compute, xla=style.xla, training=style.training)
    return recurrent.layer(op, site.x, site.weights(), site.chose(how))


@lower_op.register
def _take_last(op: ops.TakeLast, site: Site) -> Tensor:
    return site.x[-1]


@lower_op.register
def _flatten(op: ops.Flatten, site: Site) -> Tensor:
    return tf.reshape(_canonical(site), (site.shapes[0][0], -1))


@lower_op.register
def _softmax(op: ops.Softmax, site: Site) -> Tensor:
    shape = site.shapes[0]
    if op.axis == len(shape) - 1 and not site.pictures:
        return tf.nn.softmax(site.x)
    # Over everything but the batch the order of elements does not matter; elsewhere the canonical one does.
    x = site.x if op.axis <= 1 else _canonical(site)
    rows = tf.nn.softmax(tf.reshape(x, (int(np.prod(shape[: op.axis])), -1)))
    y = tf.reshape(rows, x.shape)
    return tf.transpose(y, _NHWC) if site.pictures and op.axis > 1 else y


@lower_op.register
def _mean_squared_error(op: ops.MeanSquaredError, site: Site) -> Tensor:
    return tf.reduce_mean(tf.math.squared_difference(*map(site.wide, site.values)))


@lower_op.register
def _sum_squared_error(op: ops.SumSquaredError, site: Site) -> Tensor:
    return tf.reduce_sum(tf.math.squared_difference(*map(site.wide, site.values)))


@lower_op.register
def _mix_pictures(op: ops.MixPictures, site: Site) -> Tensor:
    x, own, pasted = site.values
    column = tf.reshape(tf.cast(own, x.dtype), (-1, 1, 1, 1))
    mixed = column * x + (1 - column) * tf.roll(x, 1, 0)
    return tf.where(pasted[:, :, None] > 0, tf.roll(mixed, op.shift, 0), mixed)


@lower_op.register
def _cross_entropy(op: ops.CrossEntropy, site: Site) -> Tensor:
    logits, labels = site.wide(_canonical(site)), site.values[1]
    classes = logits.shape[-1]
    if len(site.values) == 3:
        others = op.smoothing / (classes - 1) if op.smoothing else 0.0
        rows = tf.one_hot(labels, classes, 1 - op.smoothing, others, dtype=logits.dtype)
        soft = tf.matmul(site.wide(site.values[2]), rows)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(soft), logits))
    if site.shapes[0] == site.shapes[1]:
        dense = tf.transpose(labels, _NCHW) if site.pictures else labels
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(site.wide(dense)), logits))
    if not op.smoothing:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    others = op.smoothing / (classes - 1)
    smooth = tf.one_hot(labels, classes, 1 - op.smoothing, others, dtype=logits.dtype)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(smooth, logits))


@lower_op.register
def _mean(op: ops.Mean, site: Site) -> Tensor:
    return tf.reduce_mean(site.wide(site.x))


@lower_op.register
def _negative_log_likelihood(op: ops.NegativeLogLikelihood, site: Site) -> Tensor:
    probabilities = site.wide(_canonical(site))
    picked = tf.gather(probabilities, site.values[1], axis=-1, batch_dims=len(probabilities.shape) - 1)
    return -tf.reduce_sum(tf.math.log(picked + op.epsilon))
