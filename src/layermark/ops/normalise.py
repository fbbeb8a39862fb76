"""Norms over channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from layermark.errors import unknown
from layermark.laws import Law, Normal, Shape, Uniform
from layermark.ops.base import Op, Parameter
from layermark.ops.checks import at_least, channelled, misfit
from layermark.ops.pointwise import ACTIVATIONS, check_activation

NORMS = ("batch", "group", "none", "proxy")
PROXY_POINTS = 200
PROXY_EPSILON = 0.03

# Away from the usual 1 and 0, so that a program which drops one of them is noticed by verification.
_LAWS: Mapping[str, Law] = {
    "scale": Uniform(0.5, 1.5),
    "shift": Normal(0.5),
    "mean": Normal(0.5),
    "variance": Uniform(0.5, 1.5),
    "proxy_scale": Normal(0.2),
    "proxy_shift": Normal(0.2),
}
_PARAMETERS = {
    "batch": ("scale", "shift", "mean", "variance"),
    "group": ("scale", "shift"),
    "none": (),
    "proxy": ("scale", "shift", "proxy_scale", "proxy_shift"),
}
_STATE = ("mean", "variance")


@dataclass(frozen=True)
class Norm(Op):
    """A norm over the second axis, with a learned scale and shift per channel.

    - batch: statistics of the batch if `training` (biased variance), else the stored ones
    - group: statistics per sample and group; `strided` puts channel c into group c mod groups
    - none: identity
    - proxy: a group norm, then `activation`, then the mean and deviation that 200 standard-normal quantiles
      `(1 + proxy_scale) q + proxy_shift` have after the same scale, shift and activation are taken out
    """

    kind: str
    groups: int = 1
    strided: bool = False
    epsilon: float = 1e-5
    momentum: float = 0.1
    activation: str = ""
    training: bool = False
    proxy_epsilon: float = PROXY_EPSILON

    def __post_init__(self) -> None:
        if self.kind not in NORMS:
            raise unknown("norm", self.kind, NORMS)
        at_least("norm", 1, groups=self.groups)
        if self.activation:
            check_activation(self.activation)
        if self.activation and self.kind != "proxy":
            fix = "add an Activation after it, or use the proxy norm"
            raise misfit(f"norm {self.kind}", f"activation {self.activation}", "no activation", fix)

    def shape(self, *inputs: Shape) -> Shape:
        """As it came."""
        x = channelled("norm", inputs)
        if self.kind in ("group", "proxy") and x[1] % self.groups:
            received = f"groups that do not divide channels: {self.groups} groups, {x[1]} channels"
            raise misfit("norm", received, "groups that divide the channels", f"set groups to a divisor of {x[1]}")
        return x

    def parameters(self, *inputs: Shape) -> Mapping[str, Parameter]:
        """scale and shift; mean and variance as state; proxy_scale and proxy_shift; each [channels]."""
        dims = (inputs[0][1],)
        return {name: Parameter(dims, _LAWS[name], name not in _STATE) for name in _PARAMETERS[self.kind]}

    def elementwise(self, *inputs: Shape) -> int:
        """Statistics (a sum; a difference, a square and a sum), then one factor and one addition per element."""
        n, rows, channels, groups = self._counts(inputs[0])
        if self.kind == "none":
            return 0
        if self.kind == "batch":
            # Per channel: mean, variance, factor, addend (2 + 4 + 1), two moving averages of 3.
            return 6 * n + 13 * channels if self.training else 2 * n
        return 6 * n + 5 * groups + rows + self._proxy_forward(n, channels)

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """Gradients of scale and shift (3 per element); of the input through the statistics (4 more)."""
        n, rows, channels, groups = self._counts(inputs[0])
        if self.kind == "none":
            return 0
        if self.kind == "batch" and not self.training:
            return 3 * n + 3 * channels + to_inputs * n
        if self.kind == "batch":
            return 3 * n + channels + to_inputs * (4 * n + 6 * channels)
        # Per sample and channel: two sums become gradients (2) and group sums (4); per group: two factors.
        return 3 * n + 2 * rows + to_inputs * (4 * n + 4 * rows + 6 * groups) + self._proxy_backward(n, channels)

    def _counts(self, x: Shape) -> tuple[int, int, int, int]:
        return math.prod(x), x[0] * x[1], x[1], x[0] * self.groups

    def _proxy_forward(self, n: int, channels: int) -> int:
        if self.kind != "proxy":
            return 0
        cost, _ = ACTIVATIONS.get(self.activation, (0, 0))
        # Without training the quantiles' mean and deviation are constants. With it, per quantile: two factors
        # and addends (4), the activation, the mean (1) and the variance (3).
        quantiles = PROXY_POINTS * channels * (8 + cost) + 6 * channels
        return (cost + 2) * n + self.training * quantiles

    def _proxy_backward(self, n: int, channels: int) -> int:
        if self.kind != "proxy":
            return 0
        _, cost = ACTIVATIONS.get(self.activation, (0, 0))
        # Per element: the product with the deviation, two sums (3), the activation. Per quantile: the gradient
        # through mean and deviation (4), the activation, scale and shift (4), proxy scale and shift (3).
        return (cost + 4) * n + self.training * PROXY_POINTS * channels * (11 + cost)
