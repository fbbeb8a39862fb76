"""Grouped convolutions one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.errors import UserError
from layermark.graph import Builder, Graph
from layermark.laws import Uniform
from layermark.ops import Conv2d, same_padding
from layermark.options import Size, integer, option, size
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish, mean_output, squared_error


@dataclass(frozen=True, kw_only=True)
class GroupedConvParams:
    """Options of the grouped convolutions."""

    filter_in: int = option(64, parse=integer(1), help="channels of the picture")
    filter_out: int = option(64, parse=integer(1), help="channels of every output")
    kernel_size: tuple[int, int] = option((3, 3), parse=size(), help="size of the kernel")
    stride: tuple[int, int] = option((1, 1), parse=size(), help="step of every kernel")
    input_size: tuple[int, int] = option((56, 56), parse=size(), help="size of the picture")
    block_repeats: int = option(10, parse=integer(1), help="convolutions one after the other")
    group_dim: int = option(1, parse=integer(1), help="output channels of each group")

    @property
    def kernel_width(self) -> int:
        """Input channels of every kernel: filter-in over the groups of the first convolution, in all of them."""
        groups = self.filter_out // self.group_dim
        if self.filter_out % self.group_dim or self.filter_in % groups:
            raise self._misfit()
        return self.filter_in // groups

    def groups(self, channels: int) -> int:
        """Groups of a convolution over so many channels."""
        if channels % self.kernel_width or self.filter_out % (channels // self.kernel_width):
            raise self._misfit()
        return channels // self.kernel_width

    def _misfit(self) -> UserError:
        return UserError(
            f"groups that do not divide channels: group dim {self.group_dim}, filter in {self.filter_in}, "
            f"filter out {self.filter_out}; expected filter out / group dim groups that divide both, "
            f"such as --group-dim {self.filter_out}"
        )


class GroupedConv(Workload):
    """Convolutions in groups, without bias or activation, padded to keep the size."""

    summary = "grouped convolutions one after the other"
    item = "picture through one convolution"
    Params = GroupedConvParams

    def graph(self, params: GroupedConvParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`block_repeats` convolutions in a row."""
        build = Builder()
        y = build.input("x", (batch_size, params.filter_in, *params.input_size), law=Uniform(-1, 1))
        channels, area = params.filter_in, params.input_size
        for index in range(1, params.block_repeats + 1):
            y = build.add(f"conv{index}", _convolution(params, channels, area), y)
            channels, area = params.filter_out, _strided(area, params.stride)
        return finish(build, y, mode, mean_output if loss == "seed" else squared_error)

    def items(self, params: GroupedConvParams, batch_size: int) -> int:
        """A picture counts once per convolution."""
        return batch_size * params.block_repeats


def _convolution(params: GroupedConvParams, channels: int, area: Size) -> Conv2d:
    padding = same_padding(area, params.kernel_size, params.stride)
    groups = params.groups(channels)
    return Conv2d(params.filter_out, params.kernel_size, params.stride, padding, groups=groups)


def _strided(area: Size, stride: Size) -> Size:
    return -(-area[0] // stride[0]), -(-area[1] // stride[1])


WORKLOAD = GroupedConv()
