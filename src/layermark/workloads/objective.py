"""How a workload ends: with its output, a loss against random targets, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from layermark.graph import Builder, Graph
from layermark.laws import Law, Normal, Shape
from layermark.ops import Mean, MeanSquaredError, Op

if TYPE_CHECKING:
    import numpy as np

LossWriter = Callable[[Builder, str], str]
"""Adds a loss that reads the node of this name, and returns the loss's name."""


@dataclass(frozen=True)
class Shares:
    """Random distributions over the last axis: positive numbers, a few of them large, that add up to one.

    TensorFlow's cross-entropy kernel takes the gradient to be `softmax - labels`, which is right for
    such labels only. Nearly equal shares would be near an untrained softmax, and leave a gradient of noise.
    """

    sums_to_one: ClassVar[bool] = True

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """float32 rows, each with the sum one."""
        import numpy

        drawn = numpy.exp(3 * rng.standard_normal(shape))
        shares: np.ndarray[Any, Any] = (drawn / drawn.sum(axis=-1, keepdims=True)).astype("float32")
        return shares


@dataclass(frozen=True)
class Bits:
    """Zeros and ones as floating numbers."""

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """float32 values, each 0 or 1."""
        return rng.integers(0, 2, shape).astype("float32")


def finish(build: Builder, y: str, mode: str, loss: LossWriter) -> Graph:
    """The graph of a mode: infer gives (y), eval (y, loss), train (loss)."""
    if mode == "infer":
        return build.graph(y)
    end = loss(build, y)
    return build.graph(y, end) if mode == "eval" else build.graph(end)


def against(build: Builder, y: str, op: Op, law: Law) -> str:
    """A loss between a node and a random target of its shape."""
    so_far = build.graph(y)
    target = build.input("target", so_far.shapes[y], law=law, role="target", batch=so_far.batch_axes[y])
    return build.add("loss", op, y, target)


def squared_error(build: Builder, y: str) -> str:
    """The mean squared error to a standard-normal target."""
    return against(build, y, MeanSquaredError(), Normal())


def mean_output(build: Builder, y: str) -> str:
    """The mean of the output, as some seed scripts have it: its gradient is one constant."""
    return build.add("loss", Mean(), y)
