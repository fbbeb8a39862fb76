"""Operations that treat every element alone, and the joins of branches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layermark.errors import unknown
from layermark.laws import Shape
from layermark.ops.base import Op
from layermark.ops.checks import arity, channelled, misfit, same

ACTIVATIONS = {
    "relu": (1, 1),
    "relu6": (2, 1),
    "sigmoid": (1, 3),
    "tanh": (1, 3),
    "swish": (2, 4),
    "hard-sigmoid": (4, 2),
    "hard-swish": (5, 4),
}
"""Scalar operations per element going forward and backward. The hard kinds are `relu6(x + 3) / 6`."""


def check_activation(kind: str) -> None:
    """Refuse activations that do not exist."""
    if kind not in ACTIVATIONS:
        raise unknown("activation", kind, ACTIVATIONS)


@dataclass(frozen=True)
class Activation(Op):
    """A function of every element."""

    kind: str

    def __post_init__(self) -> None:
        check_activation(self.kind)

    def shape(self, *inputs: Shape) -> Shape:
        """As it came."""
        return arity(self.kind, inputs, 1)[0]

    def elementwise(self, *inputs: Shape) -> int:
        """By the table."""
        return ACTIVATIONS[self.kind][0] * math.prod(inputs[0])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """The derivative times the gradient, by the table."""
        return to_inputs * ACTIVATIONS[self.kind][1] * math.prod(inputs[0])


@dataclass(frozen=True)
class Add(Op):
    """The sum of two or more branches."""

    def shape(self, *inputs: Shape) -> Shape:
        """The common shape."""
        if len(inputs) < 2:
            raise misfit("add", f"{len(inputs)} inputs", "two or more inputs", "name both branches")
        return same("add", inputs)

    def elementwise(self, *inputs: Shape) -> int:
        """One addition per further branch."""
        return (len(inputs) - 1) * math.prod(inputs[0])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """Nothing: every branch receives the gradient as it is."""
        return 0


@dataclass(frozen=True)
class Multiply(Op):
    """The product of two branches; one of shape `[batch, channels]` is a gate over the pictures of the other."""

    def shape(self, *inputs: Shape) -> Shape:
        """The shape of the larger branch."""
        pair = arity("multiply", inputs, 2)
        gate, x = sorted(pair, key=len)
        if gate != x and not (len(gate) == 2 and len(x) == 4 and gate == x[:2]):
            fix = "end both branches in one shape, or gate [batch, channels, height, width] with [batch, channels]"
            raise misfit("multiply", f"shapes {pair[0]} and {pair[1]}", "equal shapes or a channel gate", fix)
        return x

    def elementwise(self, *inputs: Shape) -> int:
        """One multiplication per element."""
        return math.prod(self.shape(*inputs))

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """A product for either branch, and the sum over each picture for a gate."""
        summed = inputs[0] != inputs[1]
        return to_inputs * (2 + summed) * math.prod(self.shape(*inputs))


@dataclass(frozen=True)
class Concat(Op):
    """Branches side by side along one axis."""

    axis: int = 1

    def shape(self, *inputs: Shape) -> Shape:
        """The common shape, with the sum of the lengths along the axis."""
        if len(inputs) < 2 or not 0 <= self.axis < len(inputs[0]):
            fix = "name both branches and one of their axes"
            raise misfit("concat", f"shapes {inputs} along axis {self.axis}", "two or more branches", fix)
        same("concat", [(*each[: self.axis], *each[self.axis + 1 :]) for each in inputs])
        along = sum(each[self.axis] for each in inputs)
        return *inputs[0][: self.axis], along, *inputs[0][self.axis + 1 :]


@dataclass(frozen=True)
class Flatten(Op):
    """Everything but the batch on one axis."""

    def shape(self, *inputs: Shape) -> Shape:
        """`[batch, product]`."""
        x = channelled("flatten", inputs)
        return x[0], math.prod(x[1:])


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
IMAGENET_MEAN_255 = (123.68, 116.78, 103.94)
"""What the TensorFlow programs subtract, from 0..255, when they do not normalise."""


@dataclass(frozen=True)
class Normalise(Op):
    """Pictures of 8-bit or float numbers to normalised floats: `(x * scale - mean) / deviation` per channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not all(self.deviation):
            received = f"means {self.mean} and deviations {self.deviation}"
            raise misfit("normalise", received, "as many of each, no deviation zero", "give one pair per channel")

    def shape(self, *inputs: Shape) -> Shape:
        """As it came."""
        x = channelled("normalise", inputs)
        if x[1] != len(self.mean):
            expected = f"{len(self.mean)} channels"
            raise misfit("normalise", f"shape {x}", expected, "give one mean and deviation per channel")
        return x

    def elementwise(self, *inputs: Shape) -> int:
        """One multiplication and one addition per element; their factors are constants."""
        return 2 * math.prod(inputs[0])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """One multiplication per element."""
        return to_inputs * math.prod(inputs[0])


@dataclass(frozen=True)
class Dropout(Op):
    """Identity, or with a mask of zeros and ones `x * mask / (1 - rate)`."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise misfit("dropout", f"rate {self.rate}", "a rate from 0 to below 1", "set rate to a share such as 0.2")

    def shape(self, *inputs: Shape) -> Shape:
        """As it came."""
        return same("dropout", arity("dropout", inputs, 1, 2))

    def elementwise(self, *inputs: Shape) -> int:
        """With a mask, two multiplications per element, forward and backward."""
        return 2 * math.prod(inputs[0]) if len(inputs) == 2 else 0


@dataclass(frozen=True)
class StochasticDepth(Op):
    """Identity, or with a mask of zeros and ones per sample `x * mask / survival`."""

    survival: float

    def __post_init__(self) -> None:
        if not 0 < self.survival <= 1:
            expected = "a survival from above 0 to 1"
            raise misfit(
                "stochastic depth", f"survival {self.survival}", expected, "set survival to a share such as 0.8"
            )

    def shape(self, *inputs: Shape) -> Shape:
        """As it came."""
        x, *mask = arity("stochastic depth", inputs, 1, 2)
        if mask and mask[0] != x[:1]:
            raise misfit("stochastic depth", f"a mask of shape {mask[0]}", f"shape {x[:1]}", "draw one mask per sample")
        return x

    def elementwise(self, *inputs: Shape) -> int:
        """With a mask, one factor per sample and one multiplication per element, forward and backward."""
        return inputs[0][0] + math.prod(inputs[0]) if len(inputs) == 2 else 0

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """The factors are kept from the way forward."""
        return math.prod(inputs[0]) if len(inputs) == 2 and to_inputs else 0
