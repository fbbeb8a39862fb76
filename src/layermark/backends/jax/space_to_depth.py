"""Strided convolutions of few channels as one matrix product.

XLA hands a convolution to its library, which needs many channels to be fast, and uses one thread for a single picture.
Here squares of stride x stride pixels become channels, so that the stride is gone and the taps are few and
long. They are laid side by side, and one product does the rest on all threads.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from layermark.backends.jax.barrier import materialise
from layermark.ops import Conv2d

MOST_CHANNELS = 8
"""Of the picture; with more the library is as fast, and the taps need much memory."""


def is_foldable(op: Conv2d, channels: int) -> bool:
    """Whether a convolution is of this kind."""
    plain = op.groups == 1 and op.dilation == (1, 1) and op.kernel != (1, 1)
    return plain and op.stride[0] == op.stride[1] > 1 and channels <= MOST_CHANNELS


def convolve_folded(op: Conv2d, x: Array, kernel: Array) -> Array:
    """The convolution over `[batch, rows, columns, channels]` with a `[height, width, channels, filters]` kernel."""
    step, (top, _, left, _) = op.stride[0], op.padding
    outputs = [(x.shape[1 + k] + sum(op.padding[2 * k : 2 * k + 2]) - op.kernel[k]) // step + 1 for k in range(2)]
    taps = [-(-size // step) for size in op.kernel]
    wanted = [step * (outputs[k] + taps[k] - 1) for k in range(2)]
    wide = materialise(_fold(materialise(_placed(x, (top, left), (wanted[0], wanted[1]))), step))
    seen = [wide[:, i : i + outputs[0], j : j + outputs[1]] for i in range(taps[0]) for j in range(taps[1])]
    together = materialise(jnp.concatenate(seen, 3))
    product: Array = together @ _flattened(kernel, step, taps)
    return product


def _flattened(kernel: Array, step: int, taps: list[int]) -> Array:
    """The kernel, filled up with zeros to whole squares, in the order in which the taps are laid side by side."""
    filters = jnp.moveaxis(kernel, 3, 0)
    whole = _placed(filters, (0, 0), (step * taps[0], step * taps[1]))
    return jnp.moveaxis(_fold(whole, step), 0, 3).reshape(-1, kernel.shape[3])


def _placed(x: Array, before: tuple[int, int], size: tuple[int, int]) -> Array:
    """The picture on zeros of another size, at some distance from its corner; what sticks out is cut off."""
    after = [size[k] - before[k] - x.shape[1 + k] for k in range(2)]
    padded = jnp.pad(x, ((0, 0), *((before[k], max(0, after[k])) for k in range(2)), (0, 0)))
    return padded[:, : size[0], : size[1]]


def _fold(x: Array, step: int) -> Array:
    """Squares of pixels as channels."""
    batch, rows, columns, channels = x.shape
    parted = x.reshape(batch, rows // step, step, columns // step, step, channels).transpose(0, 1, 3, 2, 4, 5)
    return parted.reshape(batch, rows // step, columns // step, step * step * channels)
