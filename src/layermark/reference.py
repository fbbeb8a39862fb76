"""The oracle: a graph evaluated in float64, written once over an array namespace (NumPy or torch).

Nothing here writes in place, so that automatic differentiation can follow. Clarity comes before speed, but a
convolution of a 1080p picture takes about a second.
"""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import singledispatch
from typing import Any

from array_api_compat import array_namespace

from layermark import ops
from layermark.graph import Graph
from layermark.ops import Op

Array = Any
Arrays = Mapping[str, Array]
Apply = Callable[..., Array]
"""Evaluates one node: called with the node, the array namespace, the node's parameters and its inputs."""


def evaluate(
    graph: Graph, weights: Arrays, inputs: Arrays, *, every_node: bool = False, apply: Apply | None = None
) -> dict[str, Array]:
    """The outputs of a graph (or of all its nodes) for parameters under `node/name` and inputs under their names.

    Floating arrays are float64 already and labels whole numbers; `doubles` makes them so. `apply` stands in for
    the evaluation of single nodes.
    """
    apply = apply or (lambda node, xp, own, *inputs: value(node.op, xp, own, *inputs))
    xp = array_namespace(*weights.values(), *inputs.values())
    wanted = tuple(graph.by_name) if every_node else graph.outputs
    values: dict[str, Array] = {}
    for node, finished in zip(graph, graph.finished(), strict=True):
        if isinstance(node.op, ops.Input):
            values[node.name] = inputs[node.name]
        else:
            own = {name: weights[f"{node.name}/{name}"] for name in node.op.parameters(*graph.input_shapes(node))}
            values[node.name] = apply(node, xp, own, *(values[name] for name in node.inputs))
        for name in finished.difference(wanted):
            del values[name]
    return {name: values[name] for name in wanted}


def gradients(
    graph: Graph, weights: Arrays, inputs: Arrays, torch: Any, apply: Apply | None = None
) -> tuple[float, dict[str, Array]]:
    """The graph's last output and its float64 gradient for every trainable parameter, from NumPy arrays.

    `torch` is that module or one like it, which the caller has imported; `apply` is that of `evaluate`.
    """
    held = {name: torch.as_tensor(each) for name, each in doubles(weights).items()}
    leaves = {name: held[name].requires_grad_() for name, each in graph.parameters.items() if each.trainable}
    fed = {name: torch.as_tensor(each) for name, each in doubles(inputs).items()}
    loss = evaluate(graph, held, fed, apply=apply)[graph.outputs[-1]]
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return float(loss.detach()), {name: each.numpy() for name, each in zip(leaves, found, strict=True)}


def directional_difference(graph: Graph, weights: Arrays, inputs: Arrays, direction: Arrays, step: float) -> float:
    """The central difference of the graph's last output as the weights move along a direction, from NumPy arrays."""
    held, along, fed = doubles(weights), doubles(direction), doubles(inputs)

    def loss(distance: float) -> float:
        moved = {name: each + distance * along[name] for name, each in held.items() if name in along}
        return float(evaluate(graph, held | moved, fed)[graph.outputs[-1]])

    return (loss(step) - loss(-step)) / (2 * step)


def doubles(arrays: Arrays) -> dict[str, Array]:
    """NumPy arrays with every floating one in float64; whole numbers stay as they are."""
    return {
        name: each.astype("float64", copy=False) if each.dtype.kind == "f" else each for name, each in arrays.items()
    }


@singledispatch
def value(op: Op, xp: Any, weights: Arrays, *inputs: Array) -> Array:
    """What one operation gives, by the type of the operation."""
    raise NotImplementedError(f"the reference has no rule for {type(op).__name__}")


@value.register
def _dense(op: ops.Dense, xp: Any, weights: Arrays, x: Array) -> Array:
    product = x @ weights["weight"].T
    return product + weights["bias"] if op.bias else product


@value.register
def _conv2d(op: ops.Conv2d, xp: Any, weights: Arrays, x: Array) -> Array:
    batch, channels, _, _ = x.shape
    _, _, rows, columns = op.shape(tuple(x.shape))
    split = (batch, op.groups, channels // op.groups)
    padded = _pad(xp, x, op.padding)
    grouped = xp.reshape(padded, (*split, *padded.shape[2:]))
    taps = list(_taps(grouped, op.kernel, op.stride, op.dilation, (rows, columns)))
    kernel = xp.reshape(weights["weight"], (op.groups, op.filters // op.groups, split[2], len(taps)))
    # As many taps per product as make its input no larger than its output: fewer sums, bounded memory.
    chunk = max(1, op.filters // channels)
    products = (
        _tap_product(xp, kernel[..., first : first + chunk], taps[first : first + chunk])
        for first in range(0, len(taps), chunk)
    )
    total = xp.reshape(functools.reduce(operator.add, products), (batch, op.filters, rows, columns))
    return total + _per_channel(total, weights["bias"]) if op.bias else total


def _tap_product(xp: Any, kernel: Array, taps: list[Array]) -> Array:
    """The product of a kernel [groups, filters, channels, taps] with taps [batch, groups, channels, rows, columns]."""
    columns = xp.stack(taps, axis=2)
    flat = xp.reshape(columns, (*columns.shape[:2], columns.shape[2] * columns.shape[3], -1))
    matrix = xp.reshape(xp.permute_dims(kernel, (0, 1, 3, 2)), (*kernel.shape[:2], -1))
    return matrix @ flat


def _taps(
    x: Array, kernel: ops.Size, stride: ops.Size, dilation: ops.Size, outputs: tuple[int, int]
) -> Iterator[Array]:
    """What each tap of a window sees, over all windows, row by row of the kernel."""
    reach = stride[0] * (outputs[0] - 1) + 1, stride[1] * (outputs[1] - 1) + 1
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            yield x[..., top : top + reach[0] : stride[0], left : left + reach[1] : stride[1]]


def _pad(xp: Any, x: Array, padding: ops.Padding, fill: float = 0.0) -> Array:
    top, bottom, left, right = padding
    return _extend(xp, _extend(xp, x, 2, (top, bottom), fill), 3, (left, right), fill)


def _extend(xp: Any, x: Array, axis: int, ends: tuple[int, int], fill: float = 0.0) -> Array:
    if not any(ends):
        return x

    def edge(length: int) -> Array:
        return xp.full((*x.shape[:axis], length, *x.shape[axis + 1 :]), fill, dtype=x.dtype)

    return xp.concat([edge(ends[0]), x, edge(ends[1])], axis=axis)


def _per_channel(x: Array, vector: Array) -> Array:
    return vector.reshape((1, -1) + (1,) * (x.ndim - 2))


@value.register
def _recurrent(op: ops.Recurrent, xp: Any, weights: Arrays, x: Array) -> Array:
    projected = x @ weights["weight"].T
    if op.bias:
        projected = projected + weights["bias"]
    step = _CELLS[op.cell]
    hidden = xp.zeros((x.shape[1], op.hidden), dtype=x.dtype)
    state = (hidden, hidden)
    outputs = []
    for t in range(x.shape[0]):
        state = step(op, xp, weights, projected[t], state)
        outputs.append(state[0])
    return xp.stack(outputs, axis=0)


State = tuple[Array, Array]


def _rnn_step(op: ops.Recurrent, xp: Any, weights: Arrays, projected: Array, state: State) -> State:
    hidden, cell = state
    return xp.tanh(projected + hidden @ weights["recurrent"].T), cell


def _lstm_step(op: ops.Recurrent, xp: Any, weights: Arrays, projected: Array, state: State) -> State:
    hidden, cell = state
    i, f, g, o = _gates(projected + hidden @ weights["recurrent"].T, 4)
    kept = _sigmoid(xp, f + op.forget_bias) * cell
    cell = kept + _sigmoid(xp, i) * xp.tanh(g)
    return _sigmoid(xp, o) * xp.tanh(cell), cell


def _gru_step(op: ops.Recurrent, xp: Any, weights: Arrays, projected: Array, state: State) -> State:
    hidden, cell = state
    xr, xz, xn = _gates(projected, 3)
    recurrent = weights["recurrent"]
    hr, hz = _gates(hidden @ recurrent[: 2 * op.hidden].T, 2)
    r, z = _sigmoid(xp, xr + hr), _sigmoid(xp, xz + hz)
    if op.reset == "before":
        inner = (r * hidden) @ recurrent[2 * op.hidden :].T
    else:
        inner = r * (hidden @ recurrent[2 * op.hidden :].T + weights.get("recurrent_bias", 0.0))
    return (1 - z) * xp.tanh(xn + inner) + z * hidden, cell


_CELLS: Mapping[str, Callable[[ops.Recurrent, Any, Arrays, Array, State], State]] = {
    "rnn": _rnn_step,
    "lstm": _lstm_step,
    "gru": _gru_step,
}


def _gates(rows: Array, count: int) -> list[Array]:
    size = rows.shape[-1] // count
    return [rows[..., k * size : (k + 1) * size] for k in range(count)]


def _sigmoid(xp: Any, x: Array) -> Array:
    # By way of tanh, which does not overflow for large negative x.
    return 0.5 + 0.5 * xp.tanh(0.5 * x)


@value.register
def _take_last(op: ops.TakeLast, xp: Any, weights: Arrays, x: Array) -> Array:
    return x[-1]


@value.register
def _norm(op: ops.Norm, xp: Any, weights: Arrays, x: Array) -> Array:
    if op.kind == "none":
        return x
    own = {name: _per_channel(x, each) for name, each in weights.items()}
    if op.kind == "batch":
        axes = (0, *range(2, x.ndim))
        mean = xp.mean(x, axis=axes, keepdims=True) if op.training else own["mean"]
        variance = xp.mean((x - mean) ** 2, axis=axes, keepdims=True) if op.training else own["variance"]
        return (x - mean) / xp.sqrt(variance + op.epsilon) * own["scale"] + own["shift"]
    scaled = _group_normalised(op, xp, x) * own["scale"] + own["shift"]
    return scaled if op.kind == "group" else _proxy_normalised(op, xp, own, scaled)


def _group_normalised(op: ops.Norm, xp: Any, x: Array) -> Array:
    batch, channels, *size = x.shape
    members = channels // op.groups
    axes = (1, *range(3, x.ndim + 1)) if op.strided else tuple(range(2, x.ndim + 1))
    split = (members, op.groups) if op.strided else (op.groups, members)
    grouped = xp.reshape(x, (batch, *split, *size))
    mean = xp.mean(grouped, axis=axes, keepdims=True)
    variance = xp.mean((grouped - mean) ** 2, axis=axes, keepdims=True)
    return xp.reshape((grouped - mean) / xp.sqrt(variance + op.epsilon), x.shape)


def _proxy_normalised(op: ops.Norm, xp: Any, own: Arrays, scaled: Array) -> Array:
    def activation(x: Array) -> Array:
        return _ACTIVATIONS[op.activation](xp, x) if op.activation else x

    normal, points = statistics.NormalDist(), ops.PROXY_POINTS
    quantiles = xp.asarray([normal.inv_cdf((i + 0.5) / points) for i in range(points)], dtype=scaled.dtype)
    along = xp.reshape(quantiles, (points,) + (1,) * (scaled.ndim - 1))
    proxy = activation(((1 + own["proxy_scale"]) * along + own["proxy_shift"]) * own["scale"] + own["shift"])
    mean = xp.mean(proxy, axis=0, keepdims=True)
    variance = xp.mean((proxy - mean) ** 2, axis=0, keepdims=True)
    return (activation(scaled) - mean) / xp.sqrt(variance + op.proxy_epsilon)


def _clip(xp: Any, x: Array, top: float) -> Array:
    # Not `clip` or `maximum`, whose derivatives at the bounds are not those of the frameworks' activations.
    return xp.where(x > 0, xp.where(x < top, x, top), 0.0)


_ACTIVATIONS: Mapping[str, Callable[[Any, Array], Array]] = {
    "relu": lambda xp, x: _clip(xp, x, math.inf),
    "relu6": lambda xp, x: _clip(xp, x, 6.0),
    "sigmoid": _sigmoid,
    "tanh": lambda xp, x: xp.tanh(x),
    "swish": lambda xp, x: x * _sigmoid(xp, x),
    "hard-sigmoid": lambda xp, x: _clip(xp, x + 3, 6.0) / 6,
    "hard-swish": lambda xp, x: x * _clip(xp, x + 3, 6.0) / 6,
}


@value.register
def _activation(op: ops.Activation, xp: Any, weights: Arrays, x: Array) -> Array:
    return _ACTIVATIONS[op.kind](xp, x)


@value.register
def _pool(op: ops.Pool, xp: Any, weights: Arrays, x: Array) -> Array:
    _, _, rows, columns = op.shape(tuple(x.shape))

    def seen(array: Array, fill: float) -> Iterator[Array]:
        return _taps(_pad(xp, array, op.padding, fill), op.kernel, op.stride, (1, 1), (rows, columns))

    if op.kind == "max":
        return functools.reduce(xp.maximum, seen(x, -math.inf))
    ones = xp.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    return functools.reduce(operator.add, seen(x, 0.0)) / functools.reduce(operator.add, seen(ones, 0.0))


@value.register
def _global_pool(op: ops.GlobalPool, xp: Any, weights: Arrays, x: Array) -> Array:
    return xp.mean(x, axis=(2, 3))


@value.register
def _pad_op(op: ops.Pad, xp: Any, weights: Arrays, x: Array) -> Array:
    return _extend(xp, _pad(xp, x, op.padding), 1, op.channels)


@value.register
def _subsample(op: ops.Subsample, xp: Any, weights: Arrays, x: Array) -> Array:
    return x[:, :, :: op.stride[0], :: op.stride[1]]


@value.register
def _add(op: ops.Add, xp: Any, weights: Arrays, *inputs: Array) -> Array:
    return functools.reduce(operator.add, inputs)


@value.register
def _multiply(op: ops.Multiply, xp: Any, weights: Arrays, first: Array, second: Array) -> Array:
    gate, x = sorted((first, second), key=lambda each: int(each.ndim))
    return x * xp.reshape(gate, tuple(gate.shape) + (1,) * (x.ndim - gate.ndim))


@value.register
def _concat(op: ops.Concat, xp: Any, weights: Arrays, *inputs: Array) -> Array:
    return xp.concat(list(inputs), axis=op.axis)


@value.register
def _flatten(op: ops.Flatten, xp: Any, weights: Arrays, x: Array) -> Array:
    return xp.reshape(x, (x.shape[0], -1))


@value.register
def _normalise(op: ops.Normalise, xp: Any, weights: Arrays, x: Array) -> Array:
    mean, deviation = (_per_channel(x, xp.asarray(each, dtype=xp.float64)) for each in (op.mean, op.deviation))
    return (xp.astype(x, xp.float64) * op.scale - mean) / deviation


@value.register
def _dropout(op: ops.Dropout, xp: Any, weights: Arrays, x: Array, mask: Array | None = None) -> Array:
    return x if mask is None else x * mask / (1 - op.rate)


@value.register
def _stochastic_depth(op: ops.StochasticDepth, xp: Any, weights: Arrays, x: Array, mask: Array | None = None) -> Array:
    return x if mask is None else x * xp.reshape(mask, (-1,) + (1,) * (x.ndim - 1)) / op.survival


@value.register
def _softmax(op: ops.Softmax, xp: Any, weights: Arrays, x: Array) -> Array:
    rows = xp.reshape(x, (*x.shape[: op.axis], -1))
    return xp.reshape(xp.exp(_log_softmax(xp, rows)), x.shape)


def _log_softmax(xp: Any, x: Array) -> Array:
    shifted = x - xp.max(x, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


@value.register
def _mean_squared_error(op: ops.MeanSquaredError, xp: Any, weights: Arrays, y: Array, target: Array) -> Array:
    return xp.mean((y - target) ** 2)


@value.register
def _sum_squared_error(op: ops.SumSquaredError, xp: Any, weights: Arrays, y: Array, target: Array) -> Array:
    return xp.sum((y - target) ** 2)


@value.register
def _mean(op: ops.Mean, xp: Any, weights: Arrays, y: Array) -> Array:
    return xp.mean(y)


@value.register
def _mix_pictures(op: ops.MixPictures, xp: Any, weights: Arrays, x: Array, own: Array, pasted: Array) -> Array:
    before, column = xp.roll(x, 1, axis=0), xp.reshape(own, (-1, 1, 1, 1))
    mixed = column * x + (1 - column) * before
    return xp.where(pasted > 0, xp.roll(mixed, op.shift, axis=0), mixed)


@value.register
def _cross_entropy(
    op: ops.CrossEntropy, xp: Any, weights: Arrays, logits: Array, labels: Array, shares: Array | None = None
) -> Array:
    share = labels if labels.ndim == logits.ndim else _smoothed(xp, logits, labels, op.smoothing)
    share = share if shares is None else shares @ share
    return -xp.mean(xp.sum(share * _log_softmax(xp, logits), axis=-1))


def _smoothed(xp: Any, logits: Array, labels: Array, smoothing: float) -> Array:
    chosen = _one_hot(xp, logits, labels)
    others = smoothing / (logits.shape[-1] - 1) if smoothing else 0.0
    return chosen * (1 - smoothing - others) + others


def _one_hot(xp: Any, rows: Array, labels: Array) -> Array:
    return xp.astype(labels[..., None] == xp.arange(rows.shape[-1]), rows.dtype)


@value.register
def _likelihood(op: ops.NegativeLogLikelihood, xp: Any, weights: Arrays, p: Array, labels: Array) -> Array:
    chosen = xp.sum(p * _one_hot(xp, p, labels), axis=-1)
    return -xp.sum(xp.log(chosen + op.epsilon))
