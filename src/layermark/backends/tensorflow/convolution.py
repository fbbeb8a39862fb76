"""Convolutions: which of TensorFlow's kernels can take one, and what to write where none can, or none is fast."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

import tensorflow as tf

from layermark import ops
from layermark.laws import Shape

Tensor = Any
Explicit = str | list[list[int]]


def kernel(op: ops.Conv2d, shape: Shape, *, xla: bool, training: bool, tuned: bool) -> str:
    """How a convolution is written: conv2d, depthwise, split (one conv2d per group) or taps (shifted products)."""
    depthwise, dilated = op.groups > 1 and op.groups == shape[1], op.dilation != (1, 1)
    if xla:
        # XLA on CPU has no kernel for groups: its own loop nest runs at a hundredth of the machine.
        return "taps" if tuned and op.groups > 1 else "depthwise" if depthwise and not dilated else "conv2d"
    if dilated and (training or depthwise):
        return "taps"  # the gradient kernels know no dilation, and depthwise ones no stride beside it
    if depthwise:
        return "depthwise" if op.stride[0] == op.stride[1] else "taps"
    return "split" if op.groups > 1 and training else "conv2d"  # no gradient kernel knows groups


def convolve(op: ops.Conv2d, x: Tensor, weight: Tensor, how: str, *, training: bool) -> Tensor:
    """The convolution of NHWC pictures without its bias; the weight is [height, width, channels / groups, filters]."""
    if how == "taps":
        return _taps(op, x, weight)
    if how == "depthwise":
        return _depthwise(op, x, weight)
    if how == "split":
        pairs = zip(tf.split(x, op.groups, 3), tf.split(weight, op.groups, 3), strict=True)
        return tf.concat([_conv2d(op, part, kernel, training=training) for part, kernel in pairs], 3)
    return _conv2d(op, x, weight, training=training)


def _conv2d(op: ops.Conv2d, x: Tensor, weight: Tensor, *, training: bool) -> Tensor:
    padding = padding_word(x.shape, op.kernel, op.stride, op.padding, op.dilation)
    if training and isinstance(padding, list):
        # The gradient kernels take explicit numbers too, but a training step on 1080p pictures then takes 1.4 times
        # as long.
        x, padding = tf.pad(x, padding), "VALID"
    return tf.nn.conv2d(x, weight, op.stride, padding, dilations=op.dilation)


def _depthwise(op: ops.Conv2d, x: Tensor, weight: Tensor) -> Tensor:
    channels = x.shape[3]
    filters = tf.reshape(weight, (*op.kernel, channels, op.filters // channels))
    padding = padding_word(x.shape, op.kernel, op.stride, op.padding, op.dilation)
    if isinstance(padding, list):
        # TensorFlow 2.21 aborts when it joins such a convolution with the bias after it.
        x, padding = tf.pad(x, padding), "VALID"
    return tf.nn.depthwise_conv2d(x, filters, (1, *op.stride, 1), padding, dilations=op.dilation)


def _taps(op: ops.Conv2d, x: Tensor, weight: Tensor) -> Tensor:
    """The sum over the kernel's places of shifted pictures times that place's weights."""
    _, _, rows, columns = op.shape((x.shape[0], x.shape[3], x.shape[1], x.shape[2]))
    top, bottom, left, right = op.padding
    padded = tf.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0))) if any(op.padding) else x
    members, each = x.shape[3] // op.groups, op.filters // op.groups
    plain = members == each == 1

    def product(seen: Tensor, place: Tensor) -> Tensor:
        if plain:
            return seen * tf.reshape(place, (op.filters,))
        if op.groups == 1:
            return tf.tensordot(seen, place, 1)
        split = tf.reshape(seen, (*seen.shape[:3], op.groups, members))
        parts = tf.einsum("bhwgi,igo->bhwgo", split, tf.reshape(place, (members, op.groups, each)))
        return tf.reshape(parts, (*seen.shape[:3], op.filters))

    return reduce(add, (product(seen, weight[i, j]) for i, j, seen in _shifted(op, padded, rows, columns)))


def _shifted(op: ops.Conv2d, padded: Tensor, rows: int, columns: int) -> Iterator[tuple[int, int, Tensor]]:
    (down, across), reach = op.stride, (op.stride[0] * (rows - 1) + 1, op.stride[1] * (columns - 1) + 1)
    for i in range(op.kernel[0]):
        for j in range(op.kernel[1]):
            top, left = i * op.dilation[0], j * op.dilation[1]
            yield i, j, padded[:, top : top + reach[0] : down, left : left + reach[1] : across]


def padding_word(
    x: Shape, kernel: ops.Size, stride: ops.Size, padding: ops.Padding, dilation: ops.Size = (1, 1)
) -> Explicit:
    """VALID or SAME where they say the same, since more kernels and fusions know them; else the numbers."""
    if not any(padding):
        return "VALID"
    if padding == ops.same_padding((x[1], x[2]), kernel, stride, dilation):
        return "SAME"
    return [[0, 0], [padding[0], padding[1]], [padding[2], padding[3]], [0, 0]]
