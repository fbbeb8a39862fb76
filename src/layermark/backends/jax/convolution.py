"""Convolutions over channels-last pictures: XLA's own, and the ways around it where it has no fast path.

Kernels are `[height, width, channels / groups, filters]` throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from layermark.backends.jax.barrier import materialise
from layermark.backends.jax.space_to_depth import convolve_folded, is_foldable
from layermark.ops import Conv2d, Padding, Size

DIMENSIONS = ("NHWC", "HWIO", "NHWC")
WIDE = 16
"""Channels from which on XLA's library convolution is fast."""


def library(op: Conv2d, x: Array, kernel: Array) -> Array:
    """XLA's convolution."""
    top, bottom, left, right = op.padding
    return lax.conv_general_dilated(
        x,
        kernel,
        op.stride,
        ((top, bottom), (left, right)),
        rhs_dilation=op.dilation,
        dimension_numbers=DIMENSIONS,
        feature_group_count=op.groups,
    )


def tunable(op: Conv2d, channels: int) -> bool:
    """Whether there is anything better than XLA's convolution: it is slow for groups, and for few channels."""
    return op.groups > 1 or is_foldable(op, channels)


def tuned(op: Conv2d, x: Array, kernel: Array) -> Array:
    """Shifted multiplies where every group has one channel, else dense convolutions over few groups each."""
    if op.groups == 1:
        return convolve_folded(op, x, kernel)
    if kernel.shape[2] > 1:
        return _grouped(op, x, kernel)
    repeated = jnp.repeat(x, op.filters // op.groups, axis=3) if op.filters > op.groups else x
    return _depthwise(op, repeated, kernel[:, :, 0])


def _grouped(op: Conv2d, x: Array, kernel: Array) -> Array:
    """Dense convolutions over some groups each, which XLA hands to its library.

    Narrow groups go together under a kernel that is zero between them: the library is so much slower below
    `WIDE` channels that multiplying by zeros is cheaper.
    """
    together = _together(op.groups, kernel.shape[2])
    parts = op.groups // together
    dense = Conv2d(op.filters // parts, op.kernel, op.stride, op.padding, op.dilation)
    pictures, kernels = jnp.split(x, parts, axis=3), jnp.split(kernel, parts, axis=3)
    made_parts = [
        library(dense, one, _block_diagonal(own, together)) for one, own in zip(pictures, kernels, strict=True)
    ]
    return jnp.concatenate(made_parts, axis=3)


def _together(groups: int, channels: int) -> int:
    """How many groups make up at most `WIDE` channels and leave none over."""
    return max(
        count for count in range(1, groups + 1) if groups % count == 0 and count * channels <= max(WIDE, channels)
    )


def _block_diagonal(kernel: Array, groups: int) -> Array:
    """The kernel of some groups as one over all of their channels."""
    channels = kernel.shape[2]
    blocks = [
        jnp.pad(own, ((0, 0), (0, 0), (index * channels, (groups - 1 - index) * channels), (0, 0)))
        for index, own in enumerate(jnp.split(kernel, groups, axis=3))
    ]
    return jnp.concatenate(blocks, axis=3)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _depthwise(op: Conv2d, x: Array, kernel: Array) -> Array:
    """One multiply-add per tap over the whole picture, in one fused loop.

    The padded picture must exist in memory (hence the barriers): fused into the loop, its bounds checks keep the
    loop from being vectorised, which costs a factor of twenty.
    """
    return _forward(op, x, kernel)[0]


def _forward(op: Conv2d, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    padded = _pad(x, op.padding)
    return _shifted(op, padded, kernel), (padded, kernel)


def _backward(op: Conv2d, kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    padded, kernel = kept
    return _picture_gradient(op, padded, kernel, gradient), _kernel_gradient(op, padded, gradient)


_depthwise.defvjp(_forward, _backward)


def _shifted(op: Conv2d, padded: Array, kernel: Array) -> Array:
    rows = (padded.shape[1] - _reach(op)[0]) // op.stride[0] + 1
    columns = (padded.shape[2] - _reach(op)[1]) // op.stride[1] + 1
    total = sum(window * kernel[i, j] for i, j, window in _windows(op, padded, (rows, columns), op.stride))
    return materialise(jnp.asarray(total))


def _picture_gradient(op: Conv2d, padded: Array, kernel: Array, gradient: Array) -> Array:
    """The gradient spread out by the stride, through the kernel turned round."""
    top, bottom, left, right = op.padding
    reach = _reach(op)
    # What the last windows did not reach of the padded picture has no gradient.
    rest = [padded.shape[1 + k] - reach[k] - op.stride[k] * (gradient.shape[1 + k] - 1) for k in range(2)]
    spread = (
        (0, 0, 0),
        (reach[0] - 1 - top, reach[0] - 1 - bottom + rest[0], op.stride[0] - 1),
        (reach[1] - 1 - left, reach[1] - 1 - right + rest[1], op.stride[1] - 1),
        (0, 0, 0),
    )
    wide = materialise(lax.pad(gradient, jnp.zeros((), gradient.dtype), spread))
    plain = Conv2d(op.filters, op.kernel, dilation=op.dilation, groups=op.groups)
    return _shifted(plain, wide, kernel[::-1, ::-1])


def _kernel_gradient(op: Conv2d, padded: Array, gradient: Array) -> Array:
    """Row by row of the output into a row of sums per tap, which are summed once at the end.

    XLA does not vectorise what reduces whole pictures to one value per channel, and a reduction within the loop would
    write every product to memory first; what is left in the loop is element by element.
    """
    batch, rows, columns, channels = gradient.shape
    height, width = _reach(op)[0], padded.shape[2]

    def add_row(row: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        own = lax.dynamic_slice_in_dim(gradient, row, 1, 1)
        band = lax.dynamic_slice(padded, (0, row * op.stride[0], 0, 0), (batch, height, width, channels))
        seen = _windows(op, band, (1, columns), op.stride)
        return tuple(total + window * own for total, (_, _, window) in zip(sums, seen, strict=True))

    zeros = jnp.zeros((batch, 1, columns, channels), gradient.dtype)
    sums = lax.fori_loop(0, rows, add_row, (zeros,) * (op.kernel[0] * op.kernel[1]))
    return jnp.stack([jnp.sum(each, (0, 1, 2)) for each in sums]).reshape(*op.kernel, channels)


def _windows(op: Conv2d, padded: Array, outputs: Size, stride: Size) -> Iterator[tuple[int, int, Array]]:
    """What every tap sees."""
    for i in range(op.kernel[0]):
        for j in range(op.kernel[1]):
            top, left = i * op.dilation[0], j * op.dilation[1]
            end = top + stride[0] * (outputs[0] - 1) + 1, left + stride[1] * (outputs[1] - 1) + 1
            yield i, j, lax.slice(padded, (0, top, left, 0), (padded.shape[0], *end, padded.shape[3]), (1, *stride, 1))


def _reach(op: Conv2d) -> Size:
    return op.dilation[0] * (op.kernel[0] - 1) + 1, op.dilation[1] * (op.kernel[1] - 1) + 1


def _pad(x: Array, padding: Padding) -> Array:
    top, bottom, left, right = padding
    return materialise(jnp.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0))))
