"""Recurrent layers: TensorFlow's block kernels, and one cell per time step, unrolled or in a while loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from layermark.laws import Shape
from layermark.ops import Recurrent

Tensor = Any
State = tuple[Tensor, ...]
Weights = Mapping[str, Tensor]
Step = Callable[[Tensor, State, Weights], State]

UNROLLED_STEPS = 16
"""Loops up to this long are unrolled: no bookkeeping per step, at the price of a larger graph."""
_GRU_BLOCK_HIDDEN = 128


def kernel(op: Recurrent, shape: Shape, dtype: tf.DType, *, xla: bool, training: bool) -> str:
    """How a layer is written: the fastest way that computes exactly this function.

    The block kernels save the cost of small operations but project one time step at a time, with slower products, and
    their gradients (where they have one) take several times as long as those of the loop: they win for
    single sequences in inference only. XLA has none of them, but fuses the steps of its loop.
    """
    steps, batch, _ = shape
    short = steps <= UNROLLED_STEPS
    if op.form == "fused" and batch == 1 and dtype == tf.float32 and not xla and not training:
        if op.cell == "lstm":
            return "BlockLSTMV2"
        if op.cell == "gru" and op.reset == "before" and short and op.hidden <= _GRU_BLOCK_HIDDEN:
            return "GRUBlockCell"
    return "unrolled" if short else "while loop"


def layer(op: Recurrent, x: Tensor, weights: Weights, how: str) -> Tensor:
    """The hidden states of every time step."""
    return _WAYS[how](op, x, _parted(op, weights))


def _parted(op: Recurrent, weights: Weights) -> Weights:
    """With separate parts for what a step multiplies: split in every step, training took up to seven times as long."""
    if op.cell != "gru" or op.reset != "before":
        return weights
    gates, new = tf.split(weights["recurrent"], [2 * op.hidden, op.hidden], axis=1)
    return {**weights, "gates": gates, "new": new}


def _bias(op: Recurrent, weights: Weights, dtype: tf.DType) -> Tensor:
    """The bias of all gates with the forget bias in it."""
    bias = weights.get("bias")
    if op.cell == "lstm" and (op.forget_bias or bias is None):
        shift = tf.constant([0.0, op.forget_bias, 0.0, 0.0], dtype)
        whole = tf.repeat(shift, op.hidden)
        return whole if bias is None else bias + whole
    return bias


def _block_lstm(op: Recurrent, x: Tensor, weights: Weights) -> Tensor:
    """One kernel for the whole sequence; its gates are in the canonical order."""
    steps, batch, _ = x.shape
    state, peephole = tf.zeros((batch, op.hidden), x.dtype), tf.zeros((op.hidden,), x.dtype)
    return tf.raw_ops.BlockLSTMV2(
        seq_len_max=tf.constant(steps, tf.int64),
        x=x,
        cs_prev=state,
        h_prev=state,
        w=tf.concat([weights["weight"], weights["recurrent"]], 0),
        wci=peephole,
        wcf=peephole,
        wco=peephole,
        b=_bias(op, weights, x.dtype),
    ).h


def _gru_blocks(op: Recurrent, x: Tensor, weights: Weights) -> Tensor:
    """One kernel per time step; it resets before the product."""
    two, rows = 2 * op.hidden, []
    joined = tf.concat([weights["weight"], weights["recurrent"]], 0)
    bias = weights.get("bias", tf.zeros((3 * op.hidden,), x.dtype))
    (h,) = _start(op, x)
    for seen in tf.unstack(x):
        h = tf.raw_ops.GRUBlockCell(
            x=seen, h_prev=h, w_ru=joined[:, :two], w_c=joined[:, two:], b_ru=bias[:two], b_c=bias[two:]
        ).h
        rows.append(h)
    return tf.stack(rows)


def _project(op: Recurrent, x: Tensor, weights: Weights) -> Tensor:
    """The products with all inputs at once, before the loop."""
    steps, batch, features = x.shape
    product = tf.matmul(tf.reshape(x, (steps * batch, features)), weights["weight"])
    bias = _bias(op, weights, x.dtype)
    product = product if bias is None else tf.nn.bias_add(product, bias)
    return tf.reshape(product, (steps, batch, op.gates * op.hidden))


def _unrolled(op: Recurrent, x: Tensor, weights: Weights) -> Tensor:
    step, state, rows = _step(op), _start(op, x), []
    for projected in tf.unstack(_project(op, x, weights)):
        state = step(projected, state, weights)
        rows.append(state[0])
    return tf.stack(rows)


def _looped(op: Recurrent, x: Tensor, weights: Weights) -> Tensor:
    steps, batch, _ = x.shape
    rows = tf.TensorArray(x.dtype, steps, element_shape=(batch, op.gates * op.hidden)).unstack(_project(op, x, weights))
    outputs = tf.TensorArray(x.dtype, steps, element_shape=(batch, op.hidden))
    step = _step(op)

    def body(index: Tensor, written: Any, *state: Tensor) -> tuple[Any, ...]:
        state = step(rows.read(index), state, weights)
        return index + 1, written.write(index, state[0]), *state

    def within(index: Tensor, *_: Any) -> Tensor:
        return index < steps

    start = (tf.constant(0), outputs, *_start(op, x))
    return tf.while_loop(within, body, start, parallel_iterations=1, maximum_iterations=steps)[1].stack()


def _start(op: Recurrent, x: Tensor) -> State:
    zeros = tf.zeros((x.shape[1], op.hidden), x.dtype)
    return (zeros,) * (2 if op.cell == "lstm" else 1)


def _step(op: Recurrent) -> Step:
    return _STEPS[f"gru-{op.reset}" if op.cell == "gru" else op.cell]


def _rnn_step(projected: Tensor, state: State, weights: Weights) -> State:
    return (tf.tanh(projected + tf.matmul(state[0], weights["recurrent"])),)


def _lstm_step(projected: Tensor, state: State, weights: Weights) -> State:
    h, c = state
    i, f, g, o = tf.split(projected + tf.matmul(h, weights["recurrent"]), 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def _gru_after_step(projected: Tensor, state: State, weights: Weights) -> State:
    """Gates are split, not sliced: the gradient of a slice is padded with zeros, and added to that of the others."""
    (h,) = state
    xr, xz, xn = tf.split(projected, 3, axis=1)
    hr, hz, hn = tf.split(tf.matmul(h, weights["recurrent"]), 3, axis=1)
    if "recurrent_bias" in weights:
        hn = tf.nn.bias_add(hn, weights["recurrent_bias"])
    return (_blend(tf.tanh(xn + tf.sigmoid(xr + hr) * hn), h, tf.sigmoid(xz + hz)),)


def _gru_before_step(projected: Tensor, state: State, weights: Weights) -> State:
    (h,) = state
    xr, xz, xn = tf.split(projected, 3, axis=1)
    hr, hz = tf.split(tf.matmul(h, weights["gates"]), 2, axis=1)
    return (_blend(tf.tanh(xn + tf.matmul(tf.sigmoid(xr + hr) * h, weights["new"])), h, tf.sigmoid(xz + hz)),)


def _blend(new: Tensor, old: Tensor, keep: Tensor) -> Tensor:
    return new + keep * (old - new)


_STEPS: Mapping[str, Step] = {
    "rnn": _rnn_step,
    "lstm": _lstm_step,
    "gru-after": _gru_after_step,
    "gru-before": _gru_before_step,
}
_WAYS: Mapping[str, Callable[[Recurrent, Tensor, Weights], Tensor]] = {
    "BlockLSTMV2": _block_lstm,
    "GRUBlockCell": _gru_blocks,
    "unrolled": _unrolled,
    "while loop": _looped,
}
