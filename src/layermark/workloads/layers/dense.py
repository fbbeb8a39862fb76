"""One dense layer."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.graph import Builder, Graph
from layermark.laws import Uniform
from layermark.ops import Activation, Dense
from layermark.options import integer, option, switch
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish, mean_output, squared_error


@dataclass(frozen=True, kw_only=True)
class DenseParams:
    """Options of the dense layer."""

    size: int = option(1024, parse=integer(1), help="units of the layer")
    input_size: int = option(0, parse=integer(0), help="features of each row (0: same as the size)")
    include_activation: bool = option(False, parse=switch, help="apply ReLU to the output")


class DenseLayer(Workload):
    """A product with a matrix, with bias and perhaps ReLU."""

    summary = "a dense layer with bias"
    item = "row"
    default_batch_size = 32
    Params = DenseParams

    def graph(self, params: DenseParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[batch, features] -> [batch, size]`."""
        build = Builder()
        x = build.input("x", (batch_size, params.input_size or params.size), law=Uniform(-1, 1))
        # The seeds start from a zero bias; the op's own law is not zero, so that a dropped bias is noticed.
        y = build.add("dense", Dense(params.size), x)
        if params.include_activation:
            y = build.add("relu", Activation("relu"), y)
        return finish(build, y, mode, mean_output if loss == "seed" else squared_error)


WORKLOAD = DenseLayer()
