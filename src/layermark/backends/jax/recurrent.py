"""Recurrent layers: one product for all inputs, then the cheapest loop over time that XLA has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from layermark.ops import Recurrent

UNROLLED_STEPS = 16
"""Loops up to this long are written out: a turn of an XLA loop costs more than a small step."""

State = tuple[Array, ...]
Step = Callable[[Mapping[str, Array], Array, State], State]
Kept = tuple[Array, Callable[[Array], tuple[Array]]]
"""The states, and the way back from their gradient to that of the projected inputs."""


def settle(op: Recurrent, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The forget bias joins the bias."""
    if op.cell != "lstm" or not op.forget_bias:
        return dict(weights)
    shift = jnp.repeat(jnp.asarray([0.0, op.forget_bias, 0.0, 0.0], weights["weight"].dtype), op.hidden)
    return {**weights, "bias": weights["bias"] + shift if op.bias else shift}


def tunable(op: Recurrent, *, training: bool) -> bool:
    """Whether there is a `tuned` formulation: in training only, and not of a GRU, which was 7 % slower that way."""
    return training and op.cell != "gru"


def apply(op: Recurrent, weights: Mapping[str, Array], x: Array, *, training: bool, tuned: bool) -> Array:
    """The hidden states of every time step."""
    unroll, at_once = _loop_form(op, x.shape[0], training=training, tuned=tuned)
    projected = _project(weights, x)
    if at_once:
        return _differentiated_at_once(op, unroll, weights["recurrent"], projected)
    return _states(op, unroll, _parted(op, weights), projected)


def _states(op: Recurrent, unroll: bool, held: Mapping[str, Array], projected: Array) -> Array:
    """The loop over time."""
    step = _STEPS[f"gru-{op.reset}" if op.cell == "gru" else op.cell]
    zeros = jnp.zeros((projected.shape[1], op.hidden), projected.dtype)
    start: State = (zeros,) * (2 if op.cell == "lstm" else 1)

    def turn(state: State, row: Array) -> tuple[State, Array]:
        state = step(held, row, state)
        return state, state[0]

    return lax.scan(turn, start, projected, unroll=unroll)[1]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiated_at_once(op: Recurrent, unroll: bool, recurrent: Array, projected: Array) -> Array:
    """The loop, with one product for the gradient of the recurrent weights.

    Differentiated as it stands, the loop adds a step's part to that gradient in every step back, and so goes through an
    array as large as the weights each time. But what a step adds to its product has the product's gradient, and that is
    known for all steps when the loop back has ended: about 1.15 times as fast at batch 1.
    """
    return _states(op, unroll, {"recurrent": recurrent}, projected)


def _forward(op: Recurrent, unroll: bool, recurrent: Array, projected: Array) -> tuple[Array, Kept]:
    states, back = jax.vjp(partial(_states, op, unroll, {"recurrent": recurrent}), projected)
    return states, (states, back)


def _backward(op: Recurrent, unroll: bool, kept: Kept, gradient: Array) -> tuple[Array, Array]:
    states, back = kept
    (projected,) = back(gradient)
    entered = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    return jnp.einsum("tbh,tbg->hg", entered, projected), projected


_differentiated_at_once.defvjp(_forward, _backward)


def _parted(op: Recurrent, weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """With separate parts for what a step multiplies: split in every step, training took up to five times as long."""
    if op.cell != "gru" or op.reset != "before":
        return weights
    gates, new = jnp.split(weights["recurrent"], [2 * op.hidden], 1)
    return {**weights, "gates": gates, "new": new}


def describe(op: Recurrent, steps: int, *, training: bool, tuned: bool) -> str:
    """What really runs for either form."""
    unroll, at_once = _loop_form(op, steps, training=training, tuned=tuned)
    form = "unrolled" if unroll else "scan"
    return f"{form}, differentiated at once" if at_once else form


def _loop_form(op: Recurrent, steps: int, *, training: bool, tuned: bool) -> tuple[bool, bool]:
    """Whether the loop is unrolled, and whether it is differentiated at once.

    Short loops are unrolled, but not those of a plain cell as JAX differentiates it: 1.2 times as fast in a loop.
    """
    at_once = tuned and tunable(op, training=training)
    slow_unrolled = training and op.cell == "rnn" and not at_once
    return steps <= UNROLLED_STEPS and not slow_unrolled, at_once


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
