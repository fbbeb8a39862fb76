"""What the recurrent layer benchmarks have in common."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.graph import Builder
from layermark.laws import Uniform
from layermark.ops import FORMS, CrossEntropy, Recurrent
from layermark.options import integer, option, switch
from layermark.workloads.objective import Shares, against


@dataclass(frozen=True, kw_only=True)
class RecurrentParams:
    """Options of every recurrent layer."""

    timesteps: int = option(5, parse=integer(1), help="length of each sequence")
    hidden_size: int = option(128, parse=integer(1), help="units of the layer")
    input_size: int = option(0, parse=integer(0), help="features of each time step (0: same as the hidden size)")
    cell: str = option("fused", choices=FORMS, help="the framework's fused layer, or a loop of one cell per time step")
    bias: bool = option(True, parse=switch, help="add a bias to the gates")

    @property
    def features(self) -> int:
        """The input size in effect."""
        return self.input_size or self.hidden_size


def sequences(build: Builder, timesteps: int, batch_size: int, features: int) -> str:
    """The input of random sequences."""
    return build.input("x", (timesteps, batch_size, features), law=Uniform(-1, 1), batch=1)


def recurrent_layer(params: RecurrentParams, batch_size: int, op: Recurrent) -> tuple[Builder, str]:
    """A graph of one recurrent layer under the name of its cell, ready for a loss."""
    build = Builder()
    x = sequences(build, params.timesteps, batch_size, params.features)
    return build, build.add(op.cell, op, x)


def cross_entropy(build: Builder, y: str) -> str:
    """The softmax cross-entropy of every time step to a random distribution."""
    return against(build, y, CrossEntropy(), Shares())
