"""EfficientNet B0 to B7 and a size for CIFAR, with groups of any width in the k x k convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from layermark.errors import UserError
from layermark.ops import Dense, GlobalPool
from layermark.options import integer, number, option, positive_float, switch
from layermark.training.regularisation import survival
from layermark.workloads.models._inverted import Inverted, Part, stem, torchvision
from layermark.workloads.models.base import Model, ModelParams, Net, rounded


class Stage(NamedTuple):
    """One row of the network's table, for width and depth 1."""

    kernel: int
    repeats: int
    out: int
    stride: int


class Size(NamedTuple):
    """What makes one member of the family."""

    width: float
    depth: float
    resolution: int
    dropout: float


_STAGES = (
    Stage(3, 1, 16, 1),
    Stage(3, 2, 24, 2),
    Stage(5, 2, 40, 2),
    Stage(3, 3, 80, 2),
    Stage(5, 3, 112, 1),
    Stage(5, 4, 192, 2),
    Stage(3, 1, 320, 1),
)
_SIZES = {
    "b0": Size(1.0, 1.0, 224, 0.2),
    "b1": Size(1.0, 1.1, 240, 0.2),
    "b2": Size(1.1, 1.2, 260, 0.3),
    "b3": Size(1.2, 1.4, 300, 0.3),
    "b4": Size(1.4, 1.8, 380, 0.4),
    "b5": Size(1.6, 2.2, 456, 0.4),
    "b6": Size(1.8, 2.6, 528, 0.5),
    "b7": Size(2.0, 3.1, 600, 0.5),
    "cifar": Size(0.5, 1.0, 32, 0.0),
}
_SURVIVAL = 0.8
_SQUEEZE = 0.25


@dataclass(frozen=True, kw_only=True)
class EfficientNetParams(ModelParams):
    """Options of the EfficientNet models."""

    group_dim: int = option(1, parse=integer(1), help="channels of each group in the k x k convolutions")
    expand_ratio: int = option(6, parse=integer(1), help="by how much blocks are wider inside than outside")
    squeeze_excite: bool = option(True, parse=switch, help="a gate per channel in every block")
    activation: str = option("swish", choices=("swish", "relu"), help="activation of all layers but the gates' last")
    depth_divisor: int = option(8, parse=integer(1), help="widths are rounded to multiples of this")
    top_width: int = option(1280, parse=integer(0), help="channels of the last 1x1 convolution, unscaled (0: none)")
    width_coefficient: float = option(0.0, parse=number, help="factor of all widths (0: the model's own)")
    depth_coefficient: float = option(0.0, parse=number, help="factor of all depths (0: the model's own)")
    dropout_rate: float = option(
        -1.0, parse=number, help="share that is dropped before the last layer, in training (-1: the model's own)"
    )
    block_survival_prob: float = option(
        _SURVIVAL, parse=positive_float, help="share of the last block's results that are kept, in training"
    )


class EfficientNet(Model):
    """A network of inverted residual blocks with squeeze-and-excite."""

    family = "efficientnet"
    Params = EfficientNetParams

    def __init__(self, name: str, own: Size) -> None:
        self.own, self.image_size = own, own.resolution
        self.classes = 10 if name == "cifar" else 1000
        self.summary = f"EfficientNet-{name.upper()}" if name != "cifar" else "a small EfficientNet for CIFAR"

    def layers(self, net: Net, params: EfficientNetParams, x: str) -> str:
        """Stem, blocks, head, mean, dropout and dense layer."""
        own = self._sized(params)
        y = stem(net, x, rounded(32 * own.width, params.depth_divisor), params.activation)
        net.alias("conv_stem", ["block0", "_conv_stem"])
        net.alias("bn1", ["_bn0"])
        for index, (place, block) in enumerate(_blocks(own, params)):
            identity = block.has_identity(net, y)
            y, parts = block.write(net, y)
            _name(net, place, index, parts, identity)
        return self._head(net, params, own, y)

    def _sized(self, params: EfficientNetParams) -> Size:
        """The model's own size with what the options change about it."""
        own = self.own
        if params.width_coefficient < 0 or params.depth_coefficient < 0:
            raise UserError("--width-coefficient and --depth-coefficient are factors: give numbers above 0")
        return own._replace(
            width=params.width_coefficient or own.width,
            depth=params.depth_coefficient or own.depth,
            dropout=own.dropout if params.dropout_rate < 0 else params.dropout_rate,
        )

    def _head(self, net: Net, params: EfficientNetParams, own: Size, x: str) -> str:
        top = "conv_head" if params.top_width else "global_pool"
        if params.top_width:
            width = rounded(params.top_width * own.width, params.depth_divisor)
            x = net.norm("bn2", net.conv("conv_head", x, width, 1), params.activation)
            last = f"features/{len(_STAGES) + 1}"
            net.alias("conv_head", ["_conv_head", last, f"{last}/0"])
            net.alias("bn2", ["_bn1", f"{last}/1"])
        mean = net.add("global_pool", GlobalPool(), x)
        logits = net.add("classifier", Dense(self.outputs(params)), net.dropout("dropout", mean, own.dropout))
        net.alias(top, ["Top"])
        net.alias("global_pool", ["avgpool"])
        net.alias("classifier", ["_fc", "classifier/1"])
        return logits


def _blocks(own: Size, params: EfficientNetParams) -> Iterator[tuple[tuple[int, int], Inverted]]:
    """Every block with its stage (from 1) and its index within."""
    depths = [math.ceil(own.depth * stage.repeats) for stage in _STAGES]
    before, done = rounded(32 * own.width, params.depth_divisor), 0
    for index, (stage, depth) in enumerate(zip(_STAGES, depths, strict=True)):
        out = rounded(stage.out * own.width, params.depth_divisor)
        for place in range(depth):
            yield (
                (index + 1, place),
                Inverted(
                    name=f"blocks/{index}/{place}",
                    kernel=stage.kernel,
                    stride=stage.stride if place == 0 else 1,
                    expanded=before * (params.expand_ratio if index else 1),
                    out=out,
                    activation=params.activation,
                    squeezed=max(1, int(before * _SQUEEZE)) if params.squeeze_excite else 0,
                    gates=(params.activation, "sigmoid"),
                    group_dim=params.group_dim,
                    survival=survival(done, sum(depths), params.block_survival_prob),
                ),
            )
            before, done = out, done + 1


def _name(net: Net, place: tuple[int, int], number: int, parts: list[Part], identity: bool) -> None:
    """The block's names in the other vocabularies: two PyTorch libraries and the TensorFlow program."""
    stage, index = place
    first = parts[0][0]
    net.alias(first, [f"blocks/{stage - 1}/{index}", f"_blocks/{number}"])
    if index == 0:
        net.alias(first, [f"blocks/{stage - 1}", f"features/{stage}"])
    torchvision(net, f"features/{stage}/{index}", parts)
    squeezes = any("/se/" in pair[0] for pair in parts)
    words = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), *[("_se_reduce", "_se_expand")] * squeezes]
    words = [*words, ("_project_conv", "_bn2")][-len(parts) :]
    for pair, names in zip(parts, words, strict=True):
        for node, name in zip(pair, names, strict=True):
            net.alias(node, [f"_blocks/{number}/{name}"])
    _name_parts(net, f"block{stage}{chr(ord('a') + index)}", parts, identity)


def _name_parts(net: Net, name: str, parts: list[Part], identity: bool) -> None:
    """A block with an identity path is one name in the TensorFlow program, any other is cut into its parts."""
    if identity:
        net.alias(parts[0][0], [name])
        return
    deep = next(pair[0] for pair in parts if pair[0].endswith("/conv_dw"))
    starts = {"": parts[0][0], "/b": deep, "/c": parts[-1][0]}
    squeeze = [pair[0].removesuffix("/conv_reduce") + "/pool" for pair in parts if "/se/" in pair[0]]
    if squeeze:
        starts["/SE"] = squeeze[0]
    if starts[""] == starts["/b"]:  # it expands by nothing, so there is no first part
        del starts[""]
    for word, start in starts.items():
        net.alias(start, [name + word])


def _members() -> Mapping[str, EfficientNet]:
    return {f"efficientnet-{name}": EfficientNet(name, own) for name, own in _SIZES.items()}


WORKLOADS = _members()
