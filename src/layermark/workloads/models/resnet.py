"""ResNet: the sizes for ImageNet (v1.5: the stride is in the 3x3 convolution) and those for CIFAR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layermark.ops import Activation, Add, Conv2d, Dense, GlobalPool, Pad, Pool, Subsample, same_padding
from layermark.workloads.models.base import Model, ModelParams, Net

_BASIC = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BOTTLENECK = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_BASIC_CIFAR = (1, 2, 3, 5, 7, 9, 18)
BOTTLENECK_CIFAR = (1, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Layout:
    """What makes one size of the family."""

    blocks: tuple[int, ...]
    width: int = 64
    """Channels of the stem, and of the first stage's inner convolutions."""
    bottleneck: bool = True
    cifar: bool = False


class ResNet(Model):
    """A residual network."""

    family = "resnet"
    Params = ModelParams

    def __init__(self, shape: Layout, summary: str) -> None:
        self.shape, self.summary = shape, summary
        if shape.cifar:
            self.image_size, self.classes = 32, 10

    def pads_same(self, params: Any) -> bool:
        """Never: the TensorFlow program pads strided convolutions by hand, on both sides."""
        return False

    def layers(self, net: Net, params: Any, x: str) -> str:
        """Stem, stages, mean and dense layer."""
        return residual_network(net, x, self.shape, self.outputs(params))


def residual_network(net: Net, x: str, shape: Layout, classes: int, groups: int = 1, factor: float = 1.0) -> str:
    """Stem, stages, mean and dense layer; inner widths are multiplied by a factor, 3x3 convolutions have groups."""
    y = _stem(net, x, shape)
    for stage, count in enumerate(shape.blocks, 1):
        outer = shape.width * 2 ** (stage - 1)
        for index in range(count):
            block = _Block(net, stage, index, outer, shape, groups, factor)
            y = block.write(y)
        net.alias(f"layer{stage}/0/conv1", [f"layer{stage}"])
    mean = net.add("avgpool", GlobalPool(), y)
    logits = net.add("fc", Dense(classes), mean)
    net.alias("conv1", ["b0"])
    net.alias("avgpool", ["reduce_mean"])
    net.alias("fc", ["fc1"])
    return logits


def _stem(net: Net, x: str, shape: Layout) -> str:
    if shape.cifar:
        return net.norm("bn1", net.conv("conv1", x, shape.width, 3), "relu")
    y = net.norm("bn1", net.conv("conv1", x, shape.width, 7, stride=2), "relu")
    window, step = (3, 3), (2, 2)
    at_the_end = same_padding(net.area(y), window, step)
    padding = at_the_end if net.params.convention == "tensorflow" else (1, 1, 1, 1)
    return net.add("maxpool", Pool("max", window, step, padding), y)


@dataclass(frozen=True)
class _Block:
    """One residual block; torchvision's names are the nodes', the TensorFlow program's are aliases."""

    net: Net
    stage: int
    index: int
    width: int
    shape: Layout
    groups: int
    factor: float

    def write(self, x: str) -> str:
        """The block up to and including the ReLU after the addition."""
        net, name = self.net, self._name
        y = self._bottleneck(x) if self.shape.bottleneck else self._basic(x)
        total = net.add(f"{name}/add", Add(), y, self._shortcut(x))
        end = net.add(f"{name}/relu", Activation("relu"), total)
        net.alias(f"{name}/conv1", [name, f"b{self.stage}/{self.index}"])
        net.alias(end, [f"b{self.stage}/{self.index}/relu"])
        return end

    @property
    def _name(self) -> str:
        return f"layer{self.stage}/{self.index}"

    @property
    def _stride(self) -> int:
        return 2 if self.stage > 1 and self.index == 0 else 1

    @property
    def _outer(self) -> int:
        return self.width * (4 if self.shape.bottleneck else 1)

    def _basic(self, x: str) -> str:
        net, name = self.net, self._name
        y = net.norm(f"{name}/bn1", net.conv(f"{name}/conv1", x, self.width, 3, stride=self._stride), "relu")
        return net.norm(f"{name}/bn2", net.conv(f"{name}/conv2", y, self.width, 3))

    def _bottleneck(self, x: str) -> str:
        net, name, inner = self.net, self._name, int(self.width * self.factor)
        y = net.norm(f"{name}/bn1", net.conv(f"{name}/conv1", x, inner, 1), "relu")
        middle = net.conv(f"{name}/conv2", y, inner, 3, stride=self._stride, groups=self.groups)
        y = net.norm(f"{name}/bn2", middle, "relu")
        return net.norm(f"{name}/bn3", net.conv(f"{name}/conv3", y, self._outer, 1))

    def _shortcut(self, x: str) -> str:
        """The way around: nothing where shapes agree, zeros in a basic CIFAR net, else a projection.

        The TensorFlow program projects in the first block of every stage, the PyTorch one where it must.
        """
        net, name = self.net, f"{self._name}/downsample"
        fits = net.shapes[x][1] == self._outer and self._stride == 1
        if self.shape.cifar and not self.shape.bottleneck:
            return x if fits else self._padded(x)
        forced = net.params.convention == "tensorflow" and self.index == 0
        if fits and not forced:
            return x
        made = net.add(f"{name}/0", Conv2d(self._outer, (1, 1), (self._stride, self._stride)), x)
        net.alias(made, [name])
        return net.norm(f"{name}/1", made)

    def _padded(self, x: str) -> str:
        net, name = self.net, f"{self._name}/downsample"
        small = net.add(f"{name}/subsample", Subsample((self._stride, self._stride)), x)
        net.alias(small, [name])
        return net.add(f"{name}/pad", Pad((0, 0, 0, 0), (0, self._outer - net.shapes[x][1])), small)


def _members() -> Mapping[str, ResNet]:
    found = {f"resnet{size}": ResNet(Layout(blocks, bottleneck=False), _about(size)) for size, blocks in _BASIC.items()}
    found |= {f"resnet{size}": ResNet(Layout(blocks), _about(size)) for size, blocks in BOTTLENECK.items()}
    # Both kinds of block have a size 56; the seed program means the bottleneck's.
    for n in _BASIC_CIFAR:
        found[f"resnet{6 * n + 2}-cifar"] = ResNet(Layout((n, n, n), 16, False, True), _about(6 * n + 2, "CIFAR"))
    for n in BOTTLENECK_CIFAR:
        found[f"resnet{9 * n + 2}-cifar"] = ResNet(Layout((n, n, n), 16, True, True), _about(9 * n + 2, "CIFAR"))
    return found


def _about(size: int, data: str = "ImageNet") -> str:
    return f"ResNet-{size} v1.5 for {data}" if data == "ImageNet" else f"ResNet-{size} for {data}"


WORKLOADS = _members()
