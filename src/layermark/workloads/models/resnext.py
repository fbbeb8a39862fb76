"""ResNeXt: bottleneck ResNets whose 3x3 convolutions have groups and whose inner widths grow with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from layermark.errors import UserError
from layermark.options import integer, option, switch
from layermark.workloads.models.base import Model, ModelParams, Net
from layermark.workloads.models.resnet import BOTTLENECK, BOTTLENECK_CIFAR, Layout, residual_network

GROUPS = 32


@dataclass(frozen=True, kw_only=True)
class ResNextParams(ModelParams):
    """Options of the ResNeXt models."""

    convolution_groups: int = option(GROUPS, parse=integer(1), help="groups of the 3x3 convolutions")
    group_dim: int = option(0, parse=integer(0), help="channels of each group in the first stage (0: the model's own)")
    widenet: bool = option(False, parse=switch, help="the wide variant of the CIFAR sizes")


class ResNext(Model):
    """A residual network of many paths."""

    family = "resnext"
    Params = ResNextParams

    def __init__(self, shape: Layout, group_dim: int, summary: str) -> None:
        self.shape, self.group_dim, self.summary = shape, group_dim, summary
        if shape.cifar:
            self.image_size, self.classes = 32, 10

    def pads_same(self, params: Any) -> bool:
        """Never: the TensorFlow program pads strided convolutions by hand, on both sides."""
        return False

    def layers(self, net: Net, params: ResNextParams, x: str) -> str:
        """Stem, stages, mean and dense layer."""
        if params.widenet and not self.shape.cifar:
            raise UserError("--widenet is for the CIFAR sizes, such as resnext29-cifar; leave it out")
        shape = replace(self.shape, width=64) if params.widenet else self.shape
        factor = params.convolution_groups * (params.group_dim or self.group_dim) / shape.width
        return residual_network(net, x, shape, self.outputs(params), params.convolution_groups, factor)


def _members() -> Mapping[str, ResNext]:
    narrow, wide = {size: _member(size, 4) for size in BOTTLENECK}, _member(101, 8)
    cifar = {f"resnext{9 * n + 2}-cifar": _small(n) for n in BOTTLENECK_CIFAR}
    # The short names are the PyTorch program's, whose 101 is the wider one.
    found = {f"resnext{size}": each for size, each in narrow.items()} | {"resnext101": wide} | cifar
    return found | {"resnext50-32x4d": narrow[50], "resnext101-32x4d": narrow[101], "resnext101-32x8d": wide}


def _member(size: int, group_dim: int) -> ResNext:
    return ResNext(Layout(BOTTLENECK[size]), group_dim, f"ResNeXt-{size} {GROUPS}x{group_dim}d for ImageNet")


def _small(n: int) -> ResNext:
    return ResNext(Layout((n, n, n), 16, True, True), 4, f"ResNeXt-{9 * n + 2} {GROUPS}x4d for CIFAR")


WORKLOADS = _members()
