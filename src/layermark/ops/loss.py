"""Softmax and the losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layermark.laws import Shape
from layermark.ops.base import Op
from layermark.ops.checks import arity, misfit, same


@dataclass(frozen=True)
class Softmax(Op):
    """Normalises jointly over every axis from `axis` on (the rule of ONNX opset 10)."""

    axis: int = 1

    def shape(self, *inputs: Shape) -> Shape:
        """As it came."""
        (x,) = arity("softmax", inputs, 1)
        if not 0 <= self.axis < len(x):
            raise misfit("softmax", f"axis {self.axis} of shape {x}", "an axis that exists", f"set axis below {len(x)}")
        return x

    def elementwise(self, *inputs: Shape) -> int:
        """Largest, difference, exponential, sum and quotient."""
        return 5 * math.prod(inputs[0])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """`y * (dy - sum(dy * y))`."""
        return to_inputs * 4 * math.prod(inputs[0])


class Loss(Op):
    """An operation that ends in a scalar; all of them are summed or averaged over the batch."""

    def batch_axis(self, *axes: int) -> int:
        """None: -1."""
        return -1


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """(y, target): the mean of `(y - target)^2` over all elements."""

    def shape(self, *inputs: Shape) -> Shape:
        """A scalar."""
        same("mean squared error", arity("mean squared error", inputs, 2))
        return ()

    def elementwise(self, *inputs: Shape) -> int:
        """Difference, square and sum; one division."""
        return 3 * math.prod(inputs[0]) + 1

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """The difference, which is kept, times one factor."""
        return to_inputs * math.prod(inputs[0])


@dataclass(frozen=True)
class SumSquaredError(Loss):
    """(y, target): the sum of `(y - target)^2` over all elements."""

    def shape(self, *inputs: Shape) -> Shape:
        """A scalar."""
        same("sum squared error", arity("sum squared error", inputs, 2))
        return ()

    def elementwise(self, *inputs: Shape) -> int:
        """Difference, square and sum."""
        return 3 * math.prod(inputs[0])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """The difference, which is kept, times two."""
        return to_inputs * math.prod(inputs[0])


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """(logits, labels): softmax over the last axis, then the mean over all rows of the cross-entropy.

    Labels are whole numbers of the shape without the last axis, or distributions of the logits' shape.
    With whole numbers and smoothing e over C classes, the true class has `1 - e`, the others `e / (C - 1)`.
    A third input of mixed pictures, [rows, rows], says how much of each row's label belongs to a row.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            expected = "a smoothing from 0 to below 1"
            raise misfit("cross-entropy", f"smoothing {self.smoothing}", expected, "set it to a share such as 0.1")

    def shape(self, *inputs: Shape) -> Shape:
        """A scalar."""
        logits, labels, *shares = arity("cross-entropy", inputs, 2, 3)
        if shares and (len(logits) != 2 or labels != logits[:-1] or shares[0] != (logits[0], logits[0])):
            expected = f"rows of logits, a whole number each, and shares {(*logits[:1], *logits[:1])}"
            raise misfit("cross-entropy", f"shapes {inputs}", expected, "give the shares of mixed pictures")
        if not logits or labels not in (logits, logits[:-1]):
            expected = f"labels of shape {logits[:-1]} or {logits}"
            raise misfit("cross-entropy", f"labels of shape {labels}", expected, "match the labels to the logits")
        if self.smoothing and (labels == logits or logits[-1] < 2):
            fix = "smooth the distributions themselves, or set smoothing to 0"
            raise misfit("cross-entropy", f"smoothing with labels of shape {labels}", "whole-number labels", fix)
        return ()

    def elementwise(self, *inputs: Shape) -> int:
        """Largest, difference, exponential and sum; a logarithm, the labels' part and the mean per row.

        Distributions cost a difference, a product and a sum per element; smoothing a sum per element
        and three operations per row. Shares make distributions of labels by a sum of products.
        """
        n, rows, dense = self._counts(*inputs)
        mixed = 2 * rows * n if len(inputs) == 3 else 0
        return mixed + (7 * n + 2 * rows if dense else 4 * n + 3 * rows) + bool(self.smoothing) * (n + 3 * rows) + 1

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """`(softmax - labels) / rows` from the exponentials, which are kept."""
        n, rows, dense = self._counts(*inputs)
        return to_inputs * (3 * n if dense else (1 + bool(self.smoothing)) * n + 2 * rows)

    def _counts(self, *inputs: Shape) -> tuple[int, int, bool]:
        logits, labels, *shares = inputs
        return math.prod(logits), math.prod(logits[:-1]), labels == logits or bool(shares)


@dataclass(frozen=True)
class Mean(Loss):
    """The mean of all elements."""

    def shape(self, *inputs: Shape) -> Shape:
        """A scalar."""
        arity("mean", inputs, 1)
        return ()

    def elementwise(self, *inputs: Shape) -> int:
        """A sum and one division."""
        return math.prod(inputs[0]) + 1

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """Nothing: the gradient is one constant."""
        return 0


@dataclass(frozen=True)
class NegativeLogLikelihood(Loss):
    """(probabilities, whole-number labels): the sum of `-log(p[label] + epsilon)` over all rows."""

    epsilon: float = 1e-7

    def shape(self, *inputs: Shape) -> Shape:
        """A scalar."""
        probabilities, labels = arity("negative log-likelihood", inputs, 2)
        if not probabilities or labels != probabilities[:-1]:
            expected = f"labels of shape {probabilities[:-1]}"
            raise misfit("negative log-likelihood", f"labels of shape {labels}", expected, "give one label per row")
        return ()

    def elementwise(self, *inputs: Shape) -> int:
        """An addition, a logarithm and a subtraction per row."""
        return 3 * math.prod(inputs[1])

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """One division per row."""
        return to_inputs * math.prod(inputs[1])
