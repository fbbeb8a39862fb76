"""Recurrent layers: one product for all inputs, then the cheapest loop over time that XLA has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array, lax

from layermark.ops import Recurrent

UNROLLED_STEPS = 16
"""Loops up to this long are written out: a turn of an XLA loop costs more than a small step."""

State = tuple[Array, ...]
Step = Callable[[Mapping[str, Array], Array, State], State]


def settle(op: Recurrent, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The forget bias joins the bias."""
    if op.cell != "lstm" or not op.forget_bias:
        return dict(weights)
    shift = jnp.repeat(jnp.asarray([0.0, op.forget_bias, 0.0, 0.0], weights["weight"].dtype), op.hidden)
    return {**weights, "bias": weights["bias"] + shift if op.bias else shift}


def apply(op: Recurrent, weights: Mapping[str, Array], x: Array, *, training: bool) -> Array:
    """The hidden states of every time step."""
    step, held = _STEPS[f"gru-{op.reset}" if op.cell == "gru" else op.cell], _parted(op, weights)
    zeros = jnp.zeros((x.shape[1], op.hidden), x.dtype)
    start: State = (zeros,) * (2 if op.cell == "lstm" else 1)

    def turn(state: State, projected: Array) -> tuple[State, Array]:
        state = step(held, projected, state)
        return state, state[0]

    return lax.scan(turn, start, _project(weights, x), unroll=_unrolls(op, x.shape[0], training=training))[1]


def _parted(op: Recurrent, weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """With the parts that a step multiplies apart: split in every step, training took up to five times as long."""
    if op.cell != "gru" or op.reset != "before":
        return weights
    gates, new = jnp.split(weights["recurrent"], [2 * op.hidden], 1)
    return {**weights, "gates": gates, "new": new}


def describe(op: Recurrent, steps: int, *, training: bool) -> str:
    """What really runs for either form."""
    return "unrolled" if _unrolls(op, steps, training=training) else "scan"


def _unrolls(op: Recurrent, steps: int, *, training: bool) -> bool:
    """Short loops, but not those of a plain cell in training: its backward pass is 1.2 times as fast in a loop."""
    return steps <= UNROLLED_STEPS and not (training and op.cell == "rnn")


def _project(weights: Mapping[str, Array], x: Array) -> Array:
    steps, batch, features = x.shape
    rows = x.reshape(steps * batch, features) @ weights["weight"]
    if "bias" in weights:
        rows = rows + weights["bias"]
    return rows.reshape(steps, batch, -1)


def _rnn_step(weights: Mapping[str, Array], projected: Array, state: State) -> State:
    return (jnp.tanh(projected + state[0] @ weights["recurrent"]),)


def _lstm_step(weights: Mapping[str, Array], projected: Array, state: State) -> State:
    h, c = state
    i, f, g, o = jnp.split(projected + h @ weights["recurrent"], 4, 1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(c), c


def _gru_after_step(weights: Mapping[str, Array], projected: Array, state: State) -> State:
    (h,) = state
    xr, xz, xn = jnp.split(projected, 3, 1)
    hr, hz, hn = jnp.split(h @ weights["recurrent"], 3, 1)
    if "recurrent_bias" in weights:
        hn = hn + weights["recurrent_bias"]
    return (_blend(jnp.tanh(xn + sigmoid(xr + hr) * hn), h, sigmoid(xz + hz)),)


def _gru_before_step(weights: Mapping[str, Array], projected: Array, state: State) -> State:
    (h,) = state
    xr, xz, xn = jnp.split(projected, 3, 1)
    hr, hz = jnp.split(h @ weights["gates"], 2, 1)
    return (_blend(jnp.tanh(xn + (sigmoid(xr + hr) * h) @ weights["new"]), h, sigmoid(xz + hz)),)


def _blend(new: Array, old: Array, keep: Array) -> Array:
    return new + keep * (old - new)


def sigmoid(x: Array) -> Array:
    """The logistic function; XLA's own is a division and an exponential, which vectorise as well as tanh does."""
    return jax.nn.sigmoid(x)


_STEPS: Mapping[str, Step] = {
    "rnn": _rnn_step,
    "lstm": _lstm_step,
    "gru-after": _gru_after_step,
    "gru-before": _gru_before_step,
}
