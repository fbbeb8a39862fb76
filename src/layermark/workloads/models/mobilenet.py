"""MobileNet v2, and v3 small and large as the seed programs have them: a head of 1280 without bias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from layermark.ops import Activation, Dense, GlobalPool
from layermark.options import integer, option, switch
from layermark.workloads.models._inverted import Inverted, Part, stem, torchvision
from layermark.workloads.models.base import Model, ModelParams, Net, rounded

DROPOUT = 0.2

# Expansion, width, repeats, first stride.
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Row(NamedTuple):
    """One block of MobileNet v3."""

    stage: int
    kernel: int
    expanded: int
    out: int
    squeezes: bool
    activation: str
    stride: int


_SMALL = (
    Row(0, 3, 16, 16, True, "relu", 2),
    Row(1, 3, 72, 24, False, "relu", 2),
    Row(1, 3, 88, 24, False, "relu", 1),
    Row(2, 5, 96, 40, True, "hard-swish", 2),
    Row(2, 5, 240, 40, True, "hard-swish", 1),
    Row(2, 5, 240, 40, True, "hard-swish", 1),
    Row(3, 5, 120, 48, True, "hard-swish", 1),
    Row(3, 5, 144, 48, True, "hard-swish", 1),
    Row(4, 5, 288, 96, True, "hard-swish", 2),
    Row(4, 5, 576, 96, True, "hard-swish", 1),
    Row(4, 5, 576, 96, True, "hard-swish", 1),
)
_LARGE = (
    Row(0, 3, 16, 16, False, "relu", 1),
    Row(1, 3, 64, 24, False, "relu", 2),
    Row(1, 3, 72, 24, False, "relu", 1),
    Row(2, 5, 72, 40, True, "relu", 2),
    Row(2, 5, 120, 40, True, "relu", 1),
    Row(2, 5, 120, 40, True, "relu", 1),
    Row(3, 3, 240, 80, False, "hard-swish", 2),
    Row(3, 3, 200, 80, False, "hard-swish", 1),
    Row(3, 3, 184, 80, False, "hard-swish", 1),
    Row(3, 3, 184, 80, False, "hard-swish", 1),
    Row(4, 3, 480, 112, True, "hard-swish", 1),
    Row(4, 3, 672, 112, True, "hard-swish", 1),
    Row(5, 5, 672, 160, True, "hard-swish", 2),
    Row(5, 5, 960, 160, True, "hard-swish", 1),
    Row(5, 5, 960, 160, True, "hard-swish", 1),
)


class MobileNetV2(Model):
    """Inverted residual blocks with ReLU6 inside and nothing between."""

    family = "mobilenet"
    summary = "MobileNet v2"
    Params = ModelParams

    def layers(self, net: Net, params: ModelParams, x: str) -> str:
        """Stem, blocks, head, mean, dropout and dense layer."""
        y = stem(net, x, 32, "relu6")
        for number, block in enumerate(_v2_blocks(), 1):
            y, parts = block.write(net, y)
            _name_v2(net, block.name, number, parts)
        y = net.norm("bn2", net.conv("conv_head", y, 1280, 1), "relu6")
        mean = net.add("global_pool", GlobalPool(), y)
        logits = net.add("classifier", Dense(self.outputs(params)), net.dropout("dropout", mean, DROPOUT))
        net.alias("conv_head", ["features/18", "features/18/0"])
        net.alias("bn2", ["features/18/1"])
        net.alias("classifier", ["classifier/1"])
        return logits


def _v2_blocks() -> Iterator[Inverted]:
    before = 32
    for stage, (ratio, out, repeats, first) in enumerate(_V2):
        for index in range(repeats):
            yield Inverted(
                name=f"blocks/{stage}/{index}",
                kernel=3,
                stride=first if index == 0 else 1,
                expanded=before * ratio,
                out=out,
                activation="relu6",
            )
            before = out


def _name_v2(net: Net, block: str, number: int, parts: list[Part]) -> None:
    """torchvision's names: `features/<n>/conv/<part>/<0|1>`, the projection without the inner folder."""
    name = f"features/{number}"
    net.alias(parts[0][0], [block, name, f"{name}/conv"])
    *inner, last = parts
    for index, (conv, norm) in enumerate(inner):
        net.alias(conv, [f"{name}/conv/{index}", f"{name}/conv/{index}/0"])
        net.alias(norm, [f"{name}/conv/{index}/1"])
    net.alias(last[0], [f"{name}/conv/{len(inner)}"])
    net.alias(last[1], [f"{name}/conv/{len(inner) + 1}"])


@dataclass(frozen=True, kw_only=True)
class MobileNetV3Params(ModelParams):
    """Options of MobileNet v3."""

    head_width: int = option(
        1280, parse=integer(1), help="width of the layer before the last (torchvision small: 1024)"
    )
    head_bias: bool = option(False, parse=switch, help="a bias in the layer before the last, as torchvision has it")


class MobileNetV3(Model):
    """Inverted residual blocks, some with hard-swish, some with squeeze-and-excite."""

    family = "mobilenet-v3"
    Params = MobileNetV3Params

    def __init__(self, rows: tuple[Row, ...], summary: str) -> None:
        self.rows, self.summary = rows, summary

    def layers(self, net: Net, params: MobileNetV3Params, x: str) -> str:
        """Stem, blocks, last convolution, mean, and two dense layers."""
        y = stem(net, x, 16, "hard-swish")
        for number, block in enumerate(self._blocks(), 1):
            y, parts = block.write(net, y)
            net.alias(parts[0][0], [block.name])
            torchvision(net, f"features/{number}", parts)
        y = self._last(net, y)
        mean = net.add("global_pool", GlobalPool(), y)
        wide = net.add("conv_head", Dense(params.head_width, bias=params.head_bias), mean)
        active = net.add("conv_head/hard-swish", Activation("hard-swish"), wide)
        logits = net.add("classifier", Dense(self.outputs(params)), net.dropout("dropout", active, DROPOUT))
        net.alias("conv_head", ["classifier/0"])
        net.alias("classifier", ["classifier/3"])
        return logits

    def _blocks(self) -> Iterator[Inverted]:
        for number, row in enumerate(self.rows):
            yield Inverted(
                name=f"blocks/{row.stage}/{sum(each.stage == row.stage for each in self.rows[:number])}",
                kernel=row.kernel,
                stride=row.stride,
                expanded=row.expanded,
                out=row.out,
                activation=row.activation,
                squeezed=rounded(row.expanded / 4) if row.squeezes else 0,
                gates=("relu", "hard-sigmoid"),
            )

    def _last(self, net: Net, x: str) -> str:
        name, last = f"blocks/{self.rows[-1].stage + 1}/0", f"features/{len(self.rows) + 1}"
        y = net.norm(f"{name}/bn1", net.conv(f"{name}/conv", x, 6 * self.rows[-1].out, 1), "hard-swish")
        net.alias(f"{name}/conv", [name, last, f"{last}/0"])
        net.alias(f"{name}/bn1", [f"{last}/1"])
        return y


def _members() -> Mapping[str, Model]:
    return {
        "mobilenet": MobileNetV2(),
        "mobilenet-v3-small": MobileNetV3(_SMALL, "MobileNet v3 small"),
        "mobilenet-v3-large": MobileNetV3(_LARGE, "MobileNet v3 large"),
    }


WORKLOADS = _members()
