"""One convolution over a large picture."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.graph import Builder, Graph
from layermark.laws import Uniform
from layermark.ops import Conv2d, Softmax, SumSquaredError
from layermark.options import integer, option, size
from layermark.workloads.base import Workload
from layermark.workloads.objective import Bits, against, finish, squared_error


@dataclass(frozen=True, kw_only=True)
class ConvParams:
    """Options of the convolution."""

    input_height: int = option(1080, parse=integer(1), help="rows of the picture")
    input_width: int = option(1920, parse=integer(1), help="columns of the picture")
    channel_size: int = option(4, parse=integer(1), help="channels of the picture")
    filter_number: int = option(64, parse=integer(1), help="channels of the output")
    kernel_size: tuple[int, int] = option((4, 4), parse=size(), help="size of the kernel")
    padding: tuple[int, int] = option((3, 3), parse=size(0), help="zeros above and below, left and right")
    stride: tuple[int, int] = option((2, 2), parse=size(), help="step of the kernel")


class ConvLayer(Workload):
    """A convolution with bias."""

    summary = "a 2-D convolution with bias over a large picture"
    item = "picture"
    Params = ConvParams

    def graph(self, params: ConvParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[batch, channels, height, width] -> [batch, filters, rows, columns]`."""
        build = Builder()
        dims = (batch_size, params.channel_size, params.input_height, params.input_width)
        x = build.input("x", dims, law=Uniform(-1, 1))
        vertical, horizontal = params.padding
        padding = (vertical, vertical, horizontal, horizontal)
        # The bias follows the op's own law, which is not zero, so that a dropped bias is noticed.
        op = Conv2d(params.filter_number, params.kernel_size, params.stride, padding, bias=True)
        return finish(build, build.add("conv", op, x), mode, _seed_loss if loss == "seed" else squared_error)


def _seed_loss(build: Builder, y: str) -> str:
    probabilities = build.add("softmax", Softmax(1), y)
    return against(build, probabilities, SumSquaredError(), Bits())


WORKLOAD = ConvLayer()
