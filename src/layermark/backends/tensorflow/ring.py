"""The ring of inputs as a loop inside of a graph takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from layermark.backends.tensorflow.network import Array, aligned, is_aligned

Tensor = Any

_GATHERED_BYTES = 1 << 16
"""In a loop, inputs up to this size are copied out of the ring; larger ones are switched between."""


class Ring:
    """The inputs as a loop takes them: each stacked, or one by one where a copy would cost."""

    def __init__(self, ring: Sequence[Sequence[Array]], *, gathered: bool) -> None:
        self.length = len(ring)
        columns = list(zip(*ring, strict=True))
        self._stacked = [gathered or column[0].nbytes <= _GATHERED_BYTES for column in columns]
        self.arrays: list[Array] = []
        for column, stacked in zip(columns, self._stacked, strict=True):
            self.arrays += [_stack(column)] if stacked else list(column)

    def pick(self, arrays: Sequence[Tensor], index: Tensor) -> list[Tensor]:
        """The inputs at one place of the ring, from tensors in the order of `arrays`."""
        left, found = list(arrays), []
        for stacked in self._stacked:
            if stacked:
                found.append(tf.gather(left.pop(0), index))
            else:
                choices, left = left[: self.length], left[self.length :]
                found.append(tf.switch_case(index, [_giving(each) for each in choices]))
        return found


def _giving(value: Tensor) -> Callable[[], Tensor]:
    return lambda: tf.identity(value)


def _stack(column: Sequence[Array]) -> Array:
    stacked = np.stack(column)
    return stacked if is_aligned(stacked) else aligned(stacked.shape, stacked.dtype, stacked)
