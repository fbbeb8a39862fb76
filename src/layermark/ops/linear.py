"""Contractions with a weight: dense layers and convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from layermark.laws import Law, Normal, Shape, Uniform
from layermark.ops.base import Op, Parameter
from layermark.ops.checks import arity, at_least, image, misfit

Size = tuple[int, int]
Padding = tuple[int, int, int, int]
"""Top, bottom, left, right."""

# Not zero, so that a program which drops its bias is noticed by verification.
BIAS_LAW = Normal(0.5)


def glorot(fan_in: int, fan_out: int) -> Uniform:
    """Glorot's uniform law for a kernel of these fans."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return Uniform(-bound, bound)


@dataclass(frozen=True)
class Dense(Op):
    """A product with a matrix over the last axis: `[..., features] -> [..., units]`."""

    units: int
    bias: bool = True
    weight_law: Law | None = None
    bias_law: Law | None = None

    def __post_init__(self) -> None:
        at_least("dense", 1, units=self.units)

    def shape(self, *inputs: Shape) -> Shape:
        """The input's shape with `units` at the end."""
        (x,) = arity("dense", inputs, 1)
        if not x:
            raise misfit("dense", "a scalar", "[..., features]", "feed it rows")
        return *x[:-1], self.units

    def parameters(self, *inputs: Shape) -> Mapping[str, Parameter]:
        """weight [units, features] and bias [units]."""
        features = inputs[0][-1]
        found = {"weight": Parameter((self.units, features), self.weight_law or glorot(features, self.units))}
        return found | _bias(self.bias, self.units, self.bias_law)

    def macs(self, *inputs: Shape) -> int:
        """One per element of the input and unit."""
        return math.prod(inputs[0]) * self.units

    def elementwise(self, *inputs: Shape) -> int:
        """The addition of the bias (backward: its sum)."""
        return self.bias * math.prod(self.shape(*inputs))


@dataclass(frozen=True)
class Conv2d(Op):
    """A convolution over pictures (cross-correlation, as every framework has it)."""

    filters: int
    kernel: Size
    stride: Size = (1, 1)
    padding: Padding = (0, 0, 0, 0)
    dilation: Size = (1, 1)
    groups: int = 1
    bias: bool = False
    weight_law: Law | None = None
    bias_law: Law | None = None

    def __post_init__(self) -> None:
        smallest = {name: min(getattr(self, name)) for name in ("kernel", "stride", "dilation")}
        at_least("conv2d", 1, filters=self.filters, groups=self.groups, **smallest)
        at_least("conv2d", 0, padding=min(self.padding))

    def shape(self, *inputs: Shape) -> Shape:
        """`[batch, filters, height, width]` of the output."""
        batch, channels, height, width = image("conv2d", inputs)
        if channels % self.groups or self.filters % self.groups:
            counts = f"{self.groups} groups, {channels} channels, {self.filters} filters"
            received = f"groups that do not divide channels: {counts}"
            fix = f"set groups to a divisor of {math.gcd(channels, self.filters)}"
            raise misfit("conv2d", received, "groups that divide both", fix)
        rows, columns = windows("conv2d", (height, width), self.kernel, self.stride, self.padding, self.dilation)
        return batch, self.filters, rows, columns

    def parameters(self, *inputs: Shape) -> Mapping[str, Parameter]:
        """weight [filters, channels / groups, height, width] and bias [filters]."""
        shape = (self.filters, inputs[0][1] // self.groups, *self.kernel)
        law = self.weight_law or Normal(1 / math.sqrt(math.prod(shape[1:])))
        return {"weight": Parameter(shape, law)} | _bias(self.bias, self.filters, self.bias_law)

    def macs(self, *inputs: Shape) -> int:
        """One per output element, tap and channel of the group; taps on padding count, as is the custom."""
        fan_in = inputs[0][1] // self.groups * math.prod(self.kernel)
        return math.prod(self.shape(*inputs)) * fan_in

    def elementwise(self, *inputs: Shape) -> int:
        """The addition of the bias (backward: its sum)."""
        return self.bias * math.prod(self.shape(*inputs))


def same_padding(size: Size, kernel: Size, stride: Size, dilation: Size = (1, 1)) -> Padding:
    """TensorFlow's SAME: ceil(size / stride) outputs, the odd pixel of padding at the end.

    >>> same_padding((56, 56), (3, 3), (2, 2))
    (0, 1, 0, 1)
    """
    top, bottom = _same(size[0], kernel[0], stride[0], dilation[0])
    left, right = _same(size[1], kernel[1], stride[1], dilation[1])
    return top, bottom, left, right


def windows(
    op: str, size: Size, kernel: Size, stride: Size, padding: Padding, dilation: Size = (1, 1)
) -> tuple[int, int]:
    """How many windows fit along height and width; a window that does not fit at all is refused."""
    padded = size[0] + padding[0] + padding[1], size[1] + padding[2] + padding[3]
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    if padded[0] < reach[0] or padded[1] < reach[1]:
        raise misfit(
            op,
            f"a window of {reach[0]}x{reach[1]} over {padded[0]}x{padded[1]} pixels with padding",
            "a window that fits",
            "make the picture or the padding larger, or the kernel smaller",
        )
    return (padded[0] - reach[0]) // stride[0] + 1, (padded[1] - reach[1]) // stride[1] + 1


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def _bias(wanted: bool, units: int, law: Law | None) -> dict[str, Parameter]:
    return {"bias": Parameter((units,), law or BIAS_LAW)} if wanted else {}
