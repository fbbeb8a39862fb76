"""The networks by hand: lists of operations, written down once, that the module of each runtime goes through.

Norms are part of the convolutions before them, as everybody has them who infers.
"""

from dataclasses import dataclass, field

import numpy as np

CLASSES, SIZE, RING = 1000, 224, 2


@dataclass(frozen=True)
class Conv:
    """A square convolution that keeps the size, or divides it by the stride."""

    x: int
    weight: np.ndarray
    bias: np.ndarray
    stride: int
    groups: int
    activation: str
    size: int
    """Of the pictures that come in."""

    @property
    def padding(self):
        return self.weight.shape[-1] // 2


@dataclass(frozen=True)
class MaxPool:
    """Of 3 with stride 2."""

    x: int


@dataclass(frozen=True)
class Add:
    """A shortcut, with an activation after it or none."""

    x: int
    other: int
    activation: str


@dataclass(frozen=True)
class Gate:
    """Squeeze and excite: means, two products, and a factor per channel."""

    x: int
    weights: tuple[np.ndarray, np.ndarray]
    biases: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Head:
    """Means of the channels and a product."""

    x: int
    weight: np.ndarray
    bias: np.ndarray


@dataclass
class Net:
    """Writes the list. A value is known by its place: 0 is the input, n what the n-th operation gives."""

    operations: list = field(default_factory=list)
    shapes: list = field(default_factory=lambda: [(3, SIZE)])
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def draw(self, *shape):
        return (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")

    def bias(self, count):
        return (self.rng.standard_normal(count) / 10).astype("float32")

    def add(self, operation, channels, size):
        self.operations.append(operation)
        self.shapes.append((channels, size))
        return len(self.operations)

    def conv(self, x, filters, kernel=1, stride=1, groups=1, activation=""):
        channels, size = self.shapes[x]
        weight = self.draw(filters, channels // groups, kernel, kernel)
        operation = Conv(x, weight, self.bias(filters), stride, groups, activation, size)
        return self.add(operation, filters, -(-size // stride))

    def pool(self, x):
        channels, size = self.shapes[x]
        return self.add(MaxPool(x), channels, size // 2)

    def sum(self, x, other, activation=""):
        return self.add(Add(x, other, activation), *self.shapes[x])

    def gate(self, x, narrow):
        wide, size = self.shapes[x]
        weights, biases = (self.draw(narrow, wide), self.draw(wide, narrow)), (self.bias(narrow), self.bias(wide))
        return self.add(Gate(x, weights, biases), wide, size)

    def head(self, x):
        return self.add(Head(x, self.draw(CLASSES, self.shapes[x][0]), self.bias(CLASSES)), CLASSES, 1)


def resnet(blocks, groups=1, group_width=64):
    """ResNet and ResNeXt with bottlenecks; the stride is in the middle."""
    net = Net()
    x = net.pool(net.conv(0, 64, 7, 2, activation="relu"))
    for stage, count in enumerate(blocks):
        inner, outer = 2**stage * groups * group_width, 256 * 2**stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            y = net.conv(x, inner, activation="relu")
            y = net.conv(y, inner, 3, stride, groups, "relu")
            short = x if index else net.conv(x, outer, 1, stride)
            x = net.sum(net.conv(y, outer), short, "relu")
    net.head(x)
    return net.operations


STAGES = [(3, 1, 16, 1), (3, 2, 24, 2), (5, 2, 40, 2), (3, 3, 80, 2), (5, 3, 112, 1), (5, 4, 192, 2), (3, 1, 320, 1)]
"""Kernel, repeats, channels and first stride of EfficientNet-B0's stages."""


def efficientnet():
    """EfficientNet-B0."""
    net = Net()
    x = net.conv(0, 32, 3, 2, activation="silu")
    for stage, (kernel, repeats, filters, first) in enumerate(STAGES):
        for index in range(repeats):
            before, stride = net.shapes[x][0], 1 if index else first
            wide = before * (6 if stage else 1)
            y = net.conv(x, wide, activation="silu") if stage else x
            y = net.conv(y, wide, kernel, stride, wide, "silu")
            y = net.conv(net.gate(y, before // 4), filters)
            x = net.sum(y, x) if index else y
    net.head(net.conv(x, 1280, activation="silu"))
    return net.operations


NETWORKS = {
    "resnet50": lambda: resnet((3, 4, 6, 3)),
    "resnext101-32x4d": lambda: resnet((3, 4, 23, 3), 32, 4),
    "efficientnet-b0": efficientnet,
}


def pictures(batch):
    """A ring of normalised pictures."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal((int(batch), 3, SIZE, SIZE), "float32") for _ in range(RING)]
