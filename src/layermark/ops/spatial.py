"""Operations over the height and width of pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layermark.errors import unknown
from layermark.laws import Shape
from layermark.ops.base import Op
from layermark.ops.checks import at_least, image, misfit
from layermark.ops.linear import Padding, Size, windows

POOLS = ("max", "average")


@dataclass(frozen=True)
class Pool(Op):
    """The largest or average value of every window; padding is never the largest and does not count in an average."""

    kind: str
    kernel: Size
    stride: Size
    padding: Padding = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        if self.kind not in POOLS:
            raise unknown("pool", self.kind, POOLS)
        at_least("pool", 1, kernel=min(self.kernel), stride=min(self.stride))
        at_least("pool", 0, padding=min(self.padding))
        if max(self.padding[:2]) >= self.kernel[0] or max(self.padding[2:]) >= self.kernel[1]:
            received = f"padding {self.padding} for a window of {self.kernel}"
            raise misfit("pool", received, "padding below the window's size", "pad less: some windows would be empty")

    def shape(self, *inputs: Shape) -> Shape:
        """One element per window."""
        batch, channels, *size = image("pool", inputs)
        rows, columns = windows("pool", (size[0], size[1]), self.kernel, self.stride, self.padding)
        return batch, channels, rows, columns

    def elementwise(self, *inputs: Shape) -> int:
        """One operation per element of each window, and the division of an average."""
        return math.prod(self.shape(*inputs)) * (math.prod(self.kernel) + (self.kind == "average"))

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """A largest value passes its gradient to one element, an average divides it over the window."""
        each = 1 if self.kind == "max" else math.prod(self.kernel) + 1
        return to_inputs * math.prod(self.shape(*inputs)) * each


@dataclass(frozen=True)
class GlobalPool(Op):
    """The mean of every channel: `[batch, channels, height, width] -> [batch, channels]`."""

    def shape(self, *inputs: Shape) -> Shape:
        """Batch and channels."""
        return image("global pool", inputs)[:2]

    def elementwise(self, *inputs: Shape) -> int:
        """A sum over each picture and one division per channel."""
        return math.prod(inputs[0]) + math.prod(inputs[0][:2])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """One division per channel; spreading it moves data only."""
        return to_inputs * math.prod(inputs[0][:2])


@dataclass(frozen=True)
class Pad(Op):
    """Zeros around height and width, and before and after the channels."""

    padding: Padding
    channels: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        at_least("pad", 0, padding=min(self.padding), channels=min(self.channels))

    def shape(self, *inputs: Shape) -> Shape:
        """The larger picture."""
        batch, channels, height, width = image("pad", inputs)
        top, bottom, left, right = self.padding
        return batch, channels + sum(self.channels), height + top + bottom, width + left + right


@dataclass(frozen=True)
class Subsample(Op):
    """Every so many rows and columns, from the first: `x[:, :, ::rows, ::columns]`."""

    stride: Size

    def __post_init__(self) -> None:
        at_least("subsample", 1, stride=min(self.stride))

    def shape(self, *inputs: Shape) -> Shape:
        """The smaller picture."""
        batch, channels, height, width = image("subsample", inputs)
        return batch, channels, -(-height // self.stride[0]), -(-width // self.stride[1])
