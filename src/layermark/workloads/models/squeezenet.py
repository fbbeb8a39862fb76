"""SqueezeNet 1.0 and 1.1 as torchvision has them, and 1.0 as the TensorFlow program has it (no biases)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from layermark.ops import Activation, Add, Concat, Conv2d, GlobalPool, Pool, same_padding
from layermark.options import option, switch
from layermark.workloads.models.base import Model, ModelParams, Net

_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
"""Squeezed and expanded width of every fire module, from number 2 on."""
_DROPOUT = 0.5


@dataclass(frozen=True, kw_only=True)
class SqueezeNetParams(ModelParams):
    """Options of the SqueezeNet models."""

    use_bypass: bool = option(False, parse=switch, help="add a fire module's input where the widths agree")


@dataclass(frozen=True)
class Layout:
    """What distinguishes the two versions: the stem, and the fire modules that a pool comes before."""

    filters: int
    kernel: int
    pooled: tuple[int, ...]


class SqueezeNet(Model):
    """Fire modules: a 1x1 convolution to few channels, then 1x1 and 3x3 convolutions side by side. No norms."""

    family = "squeezenet"
    Params = SqueezeNetParams

    def __init__(self, layout: Layout, summary: str) -> None:
        self.layout, self.summary = layout, summary

    def layers(self, net: Net, params: SqueezeNetParams, x: str) -> str:
        """Stem, fire modules with pools between, a 1x1 convolution to the classes, mean."""
        place, y = 3, _pooled(net, "features/2", self._stem(net, x))
        for number, widths in enumerate(_FIRES, 2):
            if number in self.layout.pooled:
                y, place = _pooled(net, f"features/{place}", y), place + 1
            y = _fire(net, f"features/{place}", y, *widths, bypass=params.use_bypass and number % 2 == 1)
            net.alias(f"features/{place}/squeeze", [f"features/{place}", f"fire{number}"])
            place += 1
        y = net.dropout("dropout", y, _DROPOUT)
        y = _active(net, "classifier/1", y, self.outputs(params), 1)
        net.alias("features/0", ["initialconv"])
        net.alias("classifier/1", ["classifier", "finalconv"])
        return net.add("classifier/3", GlobalPool(), y)

    def _stem(self, net: Net, x: str) -> str:
        kernel, step = (self.layout.kernel, self.layout.kernel), (2, 2)
        padding = same_padding(net.area(x), kernel, step) if net.same else (0, 0, 0, 0)
        y = net.add("features/0", Conv2d(self.layout.filters, kernel, step, padding, bias=not net.same), x)
        return net.add("features/0/relu", Activation("relu"), y)


def _pooled(net: Net, name: str, x: str) -> str:
    """3x3 windows, stride two; torchvision also takes the last, incomplete one, the TensorFlow program does not."""
    height, width = net.area(x)
    rest = (0, 0) if net.same else ((height - 3) % 2, (width - 3) % 2)
    return net.add(name, Pool("max", (3, 3), (2, 2), (0, rest[0], 0, rest[1])), x)


def _fire(net: Net, name: str, x: str, squeezed: int, expanded: int, *, bypass: bool) -> str:
    y = _active(net, f"{name}/squeeze", x, squeezed, 1)
    parts = [_active(net, f"{name}/expand{k}x{k}", y, expanded, k) for k in (1, 3)]
    y = net.add(f"{name}/concat", Concat(1), *parts)
    return net.add(f"{name}/add", Add(), x, y) if bypass else y


def _active(net: Net, name: str, x: str, filters: int, kernel: int) -> str:
    return net.add(f"{name}/relu", Activation("relu"), net.conv(name, x, filters, kernel, bias=not net.same))


def _members() -> Mapping[str, SqueezeNet]:
    return {
        "squeezenet": SqueezeNet(Layout(96, 7, (5, 9)), "SqueezeNet 1.0"),
        "squeezenet-v1.1": SqueezeNet(Layout(64, 3, (4, 6)), "SqueezeNet 1.1"),
    }


WORKLOADS = _members()
