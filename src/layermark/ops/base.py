"""What every operation of the vocabulary knows about itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from layermark.laws import Law, Shape


@dataclass(frozen=True)
class Parameter:
    """A tensor that belongs to a node, in the one canonical layout. State (running statistics) is not trainable."""

    shape: Shape
    law: Law
    trainable: bool = True

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Op(ABC):
    """One operation. Subclasses are frozen dataclasses; shapes include the batch.

    Images are `[batch, channels, height, width]`, sequences `[time, batch, features]`; what a backend
    uses inside is its own affair.
    """

    @abstractmethod
    def shape(self, *inputs: Shape) -> Shape:
        """The shape of the output; raises `UserError` where the inputs do not fit."""

    def parameters(self, *inputs: Shape) -> Mapping[str, Parameter]:
        """The parameters that this operation needs for inputs of these shapes."""
        return {}

    def macs(self, *inputs: Shape) -> int:
        """Multiply-adds of the contractions (products of matrices, convolutions) going forward."""
        return 0

    def elementwise(self, *inputs: Shape) -> int:
        """Scalar operations outside the contractions going forward (one per arithmetic operation and element)."""
        return 0

    def flops(self, *inputs: Shape) -> int:
        """Scalar operations going forward."""
        return 2 * self.macs(*inputs) + self.elementwise(*inputs)

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """Scalar operations going backward: for the parameters, and for the inputs only if they need gradients."""
        shares = bool(self.parameters(*inputs)) + to_inputs
        return 2 * self.macs(*inputs) * shares + self.elementwise(*inputs)

    def batch_axis(self, *axes: int) -> int:
        """Where the batch is in the output, given where it is in the inputs."""
        return axes[0]
