"""Norms and activations over channels-last pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array, lax

from layermark import ops

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "swish": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "hard-swish": jax.nn.hard_swish,
    "hard-sigmoid": jax.nn.hard_sigmoid,
}


def channel_axis(rank: int) -> int:
    """Where the channels are: last in pictures, second in everything else."""
    return 3 if rank == 4 else 1


def column_shape(rank: int) -> tuple[int, ...]:
    """One value per channel, ready to broadcast."""
    return tuple(-1 if axis == channel_axis(rank) else 1 for axis in range(rank))


def settle(op: ops.Norm, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Stored statistics become one factor and one offset; so does what a proxy gives."""
    if op.kind == "batch" and not op.training:
        factor = weights["scale"] * lax.rsqrt(weights["variance"] + op.epsilon)
        return {"factor": factor, "offset": weights["shift"] - weights["mean"] * factor}
    return {**weights, **_proxy(op, weights)} if op.kind == "proxy" else dict(weights)


def apply(op: ops.Norm, weights: Mapping[str, Array], x: Array, state: dict[str, Array]) -> Array:
    """Normalise one batch; running statistics that move are put into `state`."""
    if op.kind == "none":
        return x
    if op.kind != "batch":
        return _group(op, weights, x)
    if op.training:
        return _batch(op, weights, x, state)
    return x * _column(weights["factor"], x) + _column(weights["offset"], x)


def _column(vector: Array, x: Array) -> Array:
    return vector.reshape(column_shape(x.ndim))


def _batch(op: ops.Norm, weights: Mapping[str, Array], x: Array, state: dict[str, Array]) -> Array:
    axes = tuple(axis for axis in range(x.ndim) if axis != channel_axis(x.ndim))
    mean, variance = _moments(x, axes)
    count = math.prod(x.shape[axis] for axis in axes)
    for name, seen in (("mean", mean), ("variance", variance * (count / max(1, count - 1)))):
        state[name] = lax.stop_gradient((1 - op.momentum) * weights[name] + op.momentum * seen.reshape(-1))
    factor = lax.rsqrt(variance + op.epsilon) * _column(weights["scale"], x)
    return (x - mean) * factor + _column(weights["shift"], x)


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _group(op: ops.Norm, weights: Mapping[str, Array], x: Array) -> Array:
    axis = channel_axis(x.ndim)
    members = x.shape[axis] // op.groups
    split = (members, op.groups) if op.strided else (op.groups, members)
    parted = x.reshape(*x.shape[:axis], *split, *x.shape[axis + 1 :])
    kept = axis + 1 if op.strided else axis
    mean, variance = _moments(parted, tuple(k for k in range(1, parted.ndim) if k != kept))
    normal = ((parted - mean) * lax.rsqrt(variance + op.epsilon)).reshape(x.shape)
    scaled = normal * _column(weights["scale"], x) + _column(weights["shift"], x)
    if op.kind == "group":
        return scaled
    return _activate(op, scaled) * _column(weights["factor"], x) + _column(weights["offset"], x)


def _proxy(op: ops.Norm, weights: Mapping[str, Array]) -> dict[str, Array]:
    """What a standard normal input would have given, from fixed quantiles."""
    normal, points = statistics.NormalDist(), ops.PROXY_POINTS
    drawn = jnp.asarray([[normal.inv_cdf((i + 0.5) / points)] for i in range(points)], weights["scale"].dtype)
    seen = drawn * (1 + weights["proxy_scale"]) + weights["proxy_shift"]
    mean, variance = _moments(_activate(op, seen * weights["scale"] + weights["shift"]), (0,))
    factor = lax.rsqrt(variance[0] + op.proxy_epsilon)
    return {"factor": factor, "offset": -mean[0] * factor}


def _activate(op: ops.Norm, x: Array) -> Array:
    return ACTIVATIONS[op.activation](x) if op.activation else x
