"""What the CNN models share: their options, how a layer of one is written, and how they end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from layermark.graph import Builder, Graph
from layermark.laws import Integers, Law, Normal, Shape, Uniform
from layermark.ops import (
    Activation,
    Conv2d,
    CrossEntropy,
    Dense,
    Dropout,
    GlobalPool,
    Multiply,
    Norm,
    Normalise,
    Op,
    Pad,
    StochasticDepth,
    same_padding,
)
from layermark.ops.normalise import NORMS, PROXY_EPSILON
from layermark.ops.pointwise import IMAGENET_DEVIATION, IMAGENET_MEAN, IMAGENET_MEAN_255
from layermark.options import Size, integer, option, positive_float, size, switch
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish

if TYPE_CHECKING:
    import numpy as np

PICTURES = ("normalised", "float", "raw", "8-bit")
_LAWS: dict[str, Law] = {
    "normalised": Normal(),
    "float": Uniform(0, 1),
    "raw": Uniform(0, 255),
    "8-bit": Integers(0, 256),
}
INSIDE = ("full", "mean", "none")


@dataclass(frozen=True, kw_only=True)
class ModelParams:
    """Options of every CNN model."""

    image_size: tuple[int, int] = option((0, 0), parse=size(0), help="size of the pictures (0: the model's own)")
    classes: int = option(0, parse=integer(0), help="classes that pictures are sorted into (0: the model's own)")
    pictures: str = option(
        "normalised",
        choices=PICTURES,
        help="fed with normalised floats; or with floats from 0 to 1 or from 0 to 255, or bytes, that the model "
        "normalises itself",
    )
    normalise_inside: str = option(
        "full", choices=INSIDE, help="what the model does to them: mean and deviation; only less the mean; only a cast"
    )
    input_image_padding: bool = option(False, parse=switch, help="give the pictures a fourth channel of zeros")
    convention: str = option(
        "pytorch",
        choices=("pytorch", "tensorflow"),
        help="padding (and ResNet's first shortcut) as in the PyTorch or in the TensorFlow programs",
    )
    norm_type: str = option("batch", choices=NORMS, help="norm layers; none leaves them out")
    norm_num_groups: int = option(32, parse=integer(1), help="groups of group and proxy norms")
    norm_strided: bool = option(False, parse=switch, help="put channel c into group c mod groups")
    norm_eps: float = option(1e-5, parse=positive_float, help="epsilon of the norms")
    norm_momentum: float = option(0.1, parse=positive_float, help="share of the new in running statistics")
    proxy_epsilon: float = option(PROXY_EPSILON, parse=positive_float, help="epsilon of the proxy's deviation")


@dataclass(frozen=True)
class Kept:
    """Zeros and ones as floating numbers; this share are ones."""

    share: float

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
        """float32 values, each 0 or 1."""
        return (rng.random(shape) < self.share).astype("float32")


class Net:
    """Writes a model layer by layer; every method returns the name of the last node that it added."""

    def __init__(self, params: ModelParams, *, training: bool, same: bool) -> None:
        self.params, self.training, self.same = params, training, same
        self.build = Builder()
        self.shapes: dict[str, Shape] = {}

    def add(self, name: str, op: Op, *inputs: str) -> str:
        """Any operation."""
        self.shapes[name] = op.shape(*(self.shapes[each] for each in inputs))
        return self.build.add(name, op, *inputs)

    def input(self, name: str, dims: Shape, **facts: Any) -> str:
        """Something that the model is fed with."""
        self.shapes[name] = dims
        return self.build.input(name, dims, **facts)

    def alias(self, node: str, names: Iterable[str]) -> None:
        """Further names for what begins at a node."""
        for name in names:
            self.build.alias(name, node)

    def pictures(self, batch_size: int, area: Size) -> str:
        """What the model is fed with, as its first layer takes it."""
        kind = self.params.pictures
        x = self.input("x", (batch_size, 3, *area), law=_LAWS[kind], item_bytes=int(kind == "8-bit"))
        if kind != "normalised":
            x = self.add(
                "normalise", normalisation(self.params.normalise_inside, largest=1 if kind == "float" else 255), x
            )
        return self.add("pad", Pad((0, 0, 0, 0), (0, 1)), x) if self.params.input_image_padding else x

    def conv(
        self, name: str, x: str, filters: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> str:
        """A square convolution that keeps the size, or divides it by the stride."""
        half = (kernel - 1) // 2
        area, window, step = self.area(x), (kernel, kernel), (stride, stride)
        padding = same_padding(area, window, step) if self.same else (half, half, half, half)
        return self.add(name, Conv2d(filters, window, step, padding, groups=groups, bias=bias), x)

    def norm(self, name: str, x: str, activation: str = "") -> str:
        """A norm of the kind asked for, and an activation after it.

        Without an activation a proxy norm would only take its own shift out again: it is a group norm there.
        The TensorFlow programs have at most as many groups as channels; in the PyTorch programs more are an error.
        """
        own, proxied = self.params, self.params.norm_type == "proxy"
        channels = self.shapes[x][1]
        op = Norm(
            "group" if proxied and not activation else own.norm_type,
            groups=min(own.norm_num_groups, channels) if self.same else own.norm_num_groups,
            strided=own.norm_strided,
            epsilon=own.norm_eps,
            momentum=own.norm_momentum,
            activation=activation if proxied else "",
            training=self.training,
            proxy_epsilon=own.proxy_epsilon,
        )
        y = self.add(name, op, x)
        return self.add(f"{name}/{activation}", Activation(activation), y) if activation and not proxied else y

    def squeeze(self, name: str, x: str, width: int, gates: tuple[str, str] = ("swish", "sigmoid")) -> str:
        """Squeeze-and-excite: a gate per channel, from the means of all channels."""
        pooled = self.add(f"{name}/pool", GlobalPool(), x)
        less = self.add(f"{name}/conv_reduce", Dense(width), pooled)
        active = self.add(f"{name}/{gates[0]}", Activation(gates[0]), less)
        more = self.add(f"{name}/conv_expand", Dense(self.shapes[x][1]), active)
        gate = self.add(f"{name}/{gates[1]}", Activation(gates[1]), more)
        return self.add(f"{name}/scale", Multiply(), gate, x)

    def dropout(self, name: str, x: str, rate: float) -> str:
        """Dropout with its mask as an input, in training only."""
        if not self.training or not rate:
            return x
        return self.add(name, Dropout(rate), x, self._mask(name, self.shapes[x], 1 - rate))

    def depth(self, name: str, x: str, survival: float) -> str:
        """Stochastic depth with its mask as an input, in training only."""
        if not self.training or survival == 1:
            return x
        return self.add(name, StochasticDepth(survival), x, self._mask(name, self.shapes[x][:1], survival))

    def _mask(self, name: str, dims: Shape, share: float) -> str:
        return self.input(f"{name}/mask", dims, law=Kept(share), role="mask")

    def area(self, name: str) -> Size:
        """Height and width of a node's pictures."""
        return self.shapes[name][2], self.shapes[name][3]


class Model(Workload):
    """A CNN that sorts pictures into classes. Subclasses are the families, their instances the sizes."""

    item = "picture"
    calibrated: ClassVar[bool] = True
    image_size: int = 224
    classes: int = 1000

    @abstractmethod
    def layers(self, net: Net, params: Any, x: str) -> str:
        """Everything from the pictures to the logits."""

    def pads_same(self, params: Any) -> bool:
        """Whether convolutions are padded as TensorFlow's SAME does, with the odd pixel at the end."""
        return bool(params.convention == "tensorflow")

    def graph(self, params: Any, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[batch, 3, height, width] -> [batch, classes]`; the loss is a cross-entropy."""
        net = Net(params, training=mode == "train", same=self.pads_same(params))
        area = params.image_size if params.image_size != (0, 0) else (self.image_size, self.image_size)
        logits = self.layers(net, params, net.pictures(batch_size, area))
        return finish(net.build, logits, mode, _cross_entropy)

    def outputs(self, params: Any) -> int:
        """How many classes there are."""
        return int(params.classes or self.classes)


def normalisation(what: str, *, largest: int) -> Normalise:
    """What a model does to pictures whose numbers reach from 0 to this one."""
    ones = (1.0, 1.0, 1.0)
    if what == "full":
        return Normalise(IMAGENET_MEAN, IMAGENET_DEVIATION, 1 / largest)
    mean = IMAGENET_MEAN_255 if what == "mean" else (0.0, 0.0, 0.0)
    return Normalise(tuple(each * largest / 255 for each in mean), ones, 1.0)


def _cross_entropy(build: Builder, logits: str) -> str:
    batch, classes = build.graph(logits).shapes[logits]
    labels = build.input("target", (batch,), law=Integers(0, classes), role="target", item_bytes=4)
    return build.add("loss", CrossEntropy(), logits, labels)


def rounded(width: float, step: int = 8) -> int:
    """The nearest multiple of the step, at least one, and one more where more than a tenth would be lost.

    >>> [rounded(width) for width in (12.8, 17.6, 20.0)]
    [16, 16, 24]
    """
    near = max(step, int(width + step / 2) // step * step)
    return near + step if near < 0.9 * width else near
