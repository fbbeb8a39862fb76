"""Pictures of a batch mixed with each other, by coefficients that are inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layermark.laws import Shape
from layermark.ops.base import Op
from layermark.ops.checks import arity, misfit


@dataclass(frozen=True)
class MixPictures(Op):
    """(pictures, own, pasted): mixup with the picture before, then a box from the one `shift` places back.

    `own` is the share of each picture itself, `pasted` [height, width] is one inside the box and zero outside.
    """

    shift: int = 2

    def shape(self, *inputs: Shape) -> Shape:
        """As the pictures came."""
        x, own, pasted = arity("mix pictures", inputs, 3)
        if len(x) != 4 or own != x[:1] or pasted != x[2:]:
            expected = f"pictures, shares {x[:1]} and a box {x[2:]}"
            raise misfit("mix pictures", f"shapes {inputs}", expected, "give a share per picture and one box")
        return x

    def elementwise(self, *inputs: Shape) -> int:
        """Two products and a sum per element; the other share of each picture."""
        return 3 * math.prod(inputs[0]) + inputs[0][0]
