"""One small function per operation of the vocabulary, found by the operation's type."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

import numpy as np
from onnx import TensorProto

from layermark import ops
from layermark.backends._onnx import losses, recurrent
from layermark.backends._onnx.writer import Array, Site
from layermark.errors import Unsupported


@singledispatch
def lower_op(op: ops.Op, site: Site) -> str:
    """Write one operation; return the name of the tensor that holds its output."""
    raise Unsupported(f"ONNX has no lowering of {type(op).__name__}")


lower_op.register(ops.Recurrent, recurrent.recurrent_layer)
lower_op.register(ops.Softmax, losses.softmax)
lower_op.register(ops.MeanSquaredError, losses.mean_squared_error)
lower_op.register(ops.SumSquaredError, losses.sum_squared_error)
lower_op.register(ops.CrossEntropy, losses.cross_entropy)
lower_op.register(ops.Mean, losses.mean)
lower_op.register(ops.NegativeLogLikelihood, losses.negative_log_likelihood)


def _pads(padding: ops.Padding) -> list[int]:
    top, bottom, left, right = padding
    return [top, left, bottom, right]


@lower_op.register
def _dense(op: ops.Dense, site: Site) -> str:
    parameters = [site.parameter("weight"), *([site.parameter("bias")] if op.bias else [])]
    if len(site.shapes[0]) == 2:
        return site.call("Gemm", site.x, *parameters, transB=1)
    # Gemm takes matrices only, and is where both runtimes have their packed kernels.
    rows = site.reshape(site.x, (-1, site.shapes[0][-1]), "rows")
    return site.reshape(site.call("Gemm", rows, *parameters, suffix="gemm", transB=1), site.shape)


@lower_op.register
def _conv2d(op: ops.Conv2d, site: Site) -> str:
    parameters = [site.parameter("weight"), *([site.parameter("bias")] if op.bias else [])]
    return site.call(
        "Conv",
        site.x,
        *parameters,
        kernel_shape=op.kernel,
        strides=op.stride,
        pads=_pads(op.padding),
        dilations=op.dilation,
        group=op.groups,
    )


@lower_op.register
def _norm(op: ops.Norm, site: Site) -> str:
    if op.kind == "none":
        return site.x
    if op.kind == "batch" and not op.training:
        stored = [site.parameter(name) for name in ("scale", "shift", "mean", "variance")]
        return site.call("BatchNormalization", site.x, *stored, epsilon=op.epsilon)
    proxied = op.kind == "proxy"
    normal = _batch_statistics(op, site) if op.kind == "batch" else _grouped(op, site)
    scaled = site.call("Mul", normal, site.column("scale", site.array("scale")), suffix="scaled")
    shifted = site.call("Add", scaled, site.column("shift", site.array("shift")), suffix="shifted" if proxied else "")
    return _proxied(op, site, shifted) if proxied else shifted


def _batch_statistics(op: ops.Norm, site: Site) -> str:
    axes = site.integers("axes", [0, *range(2, len(site.shapes[0]))])
    return _normalised(op, site, site.x, axes)


def _normalised(op: ops.Norm, site: Site, x: str, axes: str) -> str:
    """`x` without its mean, over the root of its (biased) variance."""
    centred = site.call("Sub", x, site.call("ReduceMean", x, axes, suffix="mean"), suffix="centred")
    square = site.call("Mul", centred, centred, suffix="square")
    variance = site.call("ReduceMean", square, axes, suffix="variance")
    safe = site.call("Add", variance, site.floats("epsilon", op.epsilon), suffix="safe")
    return site.call("Div", centred, site.call("Sqrt", safe, suffix="deviation"), suffix="normal")


def _grouped(op: ops.Norm, site: Site) -> str:
    """Statistics per sample and group.

    ONNX's GroupNormalization is a function that ONNX Runtime writes out in many nodes; as the instances of an
    InstanceNormalization the groups are one kernel on both runtimes.
    """
    batch, channels, *size = site.shapes[0]
    members, area = channels // op.groups, math.prod(size)
    if op.strided and op.groups > 1:
        parted = site.reshape(site.x, (batch, members, op.groups, area), "parted")
        normal = _normalised(op, site, parted, site.integers("axes", [1, 3]))
    else:
        parted = site.reshape(site.x, (batch, op.groups, members * area), "parted")
        ones, zeros = site.floats("ones", np.ones(op.groups)), site.floats("zeros", np.zeros(op.groups))
        normal = site.call("InstanceNormalization", parted, ones, zeros, suffix="normal", epsilon=op.epsilon)
    return site.reshape(normal, site.shape, "whole")


def _proxied(op: ops.Norm, site: Site, shifted: str) -> str:
    """The activation, then what a standard normal input would have given taken out; that part is constant."""
    factor, offset = _proxy(op, *(site.array(name) for name in ("scale", "shift", "proxy_scale", "proxy_shift")))
    active = _activate(site, op.activation, shifted, "active") if op.activation else shifted
    made = site.call("Mul", active, site.column("proxy_factor", factor), suffix="proxied")
    return site.call("Add", made, site.column("proxy_offset", offset))


def _proxy(op: ops.Norm, scale: Array, shift: Array, proxy_scale: Array, proxy_shift: Array) -> tuple[Array, Array]:
    points = [statistics.NormalDist().inv_cdf((i + 0.5) / ops.PROXY_POINTS) for i in range(ops.PROXY_POINTS)]
    drawn = np.array(points)[:, None] * (1.0 + proxy_scale) + proxy_shift
    made = _ACTIVATE[op.activation](drawn * scale + shift)
    factor = 1 / np.sqrt(made.var(axis=0) + op.proxy_epsilon)
    return factor, -made.mean(axis=0) * factor


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))


_ACTIVATE: Mapping[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "swish": lambda x: x * _sigmoid(x),
    "hard-sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard-swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
_ONE_NODE = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hard-swish": "HardSwish"}


@lower_op.register
def _activation(op: ops.Activation, site: Site) -> str:
    return _activate(site, op.kind, site.x)


def _activate(site: Site, kind: str, x: str, suffix: str = "") -> str:
    if kind == "relu6":
        return site.call("Clip", x, site.floats("low", 0.0), site.floats("high", 6.0), suffix=suffix)
    if kind == "hard-sigmoid":
        return site.call("HardSigmoid", x, suffix=suffix, alpha=1 / 6, beta=0.5)
    if kind == "swish":
        return site.call("Mul", x, site.call("Sigmoid", x, suffix="sigmoid"), suffix=suffix)
    return site.call(_ONE_NODE[kind], x, suffix=suffix)


@lower_op.register
def _pool(op: ops.Pool, site: Site) -> str:
    window: dict[str, Any] = {"kernel_shape": op.kernel, "strides": op.stride, "pads": _pads(op.padding)}
    if op.kind == "max":
        return site.call("MaxPool", site.x, **window)
    return site.call("AveragePool", site.x, **window, count_include_pad=0)


@lower_op.register
def _global_pool(op: ops.GlobalPool, site: Site) -> str:
    return site.call("Flatten", site.call("GlobalAveragePool", site.x, suffix="mean"), axis=1)


@lower_op.register
def _add(op: ops.Add, site: Site) -> str:
    *parts, last = site.args
    total = parts[0]
    for index, part in enumerate(parts[1:], 1):
        total = site.call("Add", total, part, suffix=f"sum{index}")
    return site.call("Add", total, last)


@lower_op.register
def _multiply(op: ops.Multiply, site: Site) -> str:
    rank = len(site.shape)
    args = [
        arg if len(shape) == rank else site.reshape(arg, (*shape, *[1] * (rank - len(shape))), "gate")
        for arg, shape in zip(site.args, site.shapes, strict=True)
    ]
    return site.call("Mul", *args)


@lower_op.register
def _concat(op: ops.Concat, site: Site) -> str:
    return site.call("Concat", *site.args, axis=op.axis)


@lower_op.register
def _pad(op: ops.Pad, site: Site) -> str:
    top, bottom, left, right = op.padding
    sides = [0, op.channels[0], top, left, 0, op.channels[1], bottom, right]
    return site.call("Pad", site.x, site.integers("pads", sides), site.floats("zero", 0.0))


@lower_op.register
def _subsample(op: ops.Subsample, site: Site) -> str:
    starts, ends = site.integers("starts", [0, 0]), site.integers("ends", site.shapes[0][2:])
    return site.call("Slice", site.x, starts, ends, site.integers("axes", [2, 3]), site.integers("steps", op.stride))


@lower_op.register
def _normalise(op: ops.Normalise, site: Site) -> str:
    mean, deviation = np.array(op.mean), np.array(op.deviation)
    x = site.call("Cast", site.x, suffix="cast", to=site.writer.compute)
    shape = (-1, *[1] * (len(site.shape) - 2))
    scaled = site.call("Mul", x, site.floats("factor", (op.scale / deviation).reshape(shape)), suffix="scaled")
    return site.call("Add", scaled, site.floats("offset", (-mean / deviation).reshape(shape)))


@lower_op.register
def _dropout(op: ops.Dropout, site: Site) -> str:
    if len(site.args) == 1:
        return site.x
    kept = site.call("Mul", *site.args, suffix="kept")
    return site.call("Mul", kept, site.floats("factor", 1 / (1 - op.rate)))


@lower_op.register
def _stochastic_depth(op: ops.StochasticDepth, site: Site) -> str:
    if len(site.args) == 1:
        return site.x
    factor = site.call("Mul", site.args[1], site.floats("factor", 1 / op.survival), suffix="scaled")
    return site.call("Mul", site.x, site.reshape(factor, (-1, *[1] * (len(site.shape) - 1)), "column"))


@lower_op.register
def _take_last(op: ops.TakeLast, site: Site) -> str:
    return site.call(
        "Gather", site.x, site.writer.constant(f"{site.node.name}/last", np.array(-1), TensorProto.INT64), axis=0
    )


@lower_op.register
def _flatten(op: ops.Flatten, site: Site) -> str:
    return site.call("Flatten", site.x, axis=1)
