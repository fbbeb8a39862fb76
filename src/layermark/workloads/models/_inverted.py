"""Inverted residual blocks, which EfficientNet and the MobileNets are made of. Nodes have timm's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layermark.ops import Add
from layermark.workloads.models.base import Net

Part = tuple[str, str]
"""The two nodes with weights of one part: a convolution and its norm, or the two layers of a squeeze-and-excite."""


@dataclass(frozen=True, kw_only=True)
class Inverted:
    """One block: expansion (unless it expands by nothing), k x k convolution in groups, gate, projection."""

    name: str
    kernel: int
    stride: int
    expanded: int
    out: int
    activation: str
    squeezed: int = 0
    gates: tuple[str, str] = ("swish", "sigmoid")
    group_dim: int = 1
    survival: float = 1.0

    def write(self, net: Net, x: str) -> tuple[str, list[Part]]:
        """The last node and the parts in order."""
        expands = self.expanded != net.shapes[x][1]
        words = ("conv_pw", "conv_dw", "conv_pwl") if expands else ("", "conv_dw", "conv_pw")
        parts: list[Part] = []
        y = self._convolved(net, x, words[0], self.expanded, parts) if expands else x
        y = self._convolved(net, y, words[1], self.expanded, parts, deep=True)
        if self.squeezed:
            y = net.squeeze(f"{self.name}/se", y, self.squeezed, self.gates)
            parts.append((f"{self.name}/se/conv_reduce", f"{self.name}/se/conv_expand"))
        y = self._convolved(net, y, words[2], self.out, parts, active=False)
        return (self._added(net, x, y) if self.has_identity(net, x) else y), parts

    def has_identity(self, net: Net, x: str) -> bool:
        """Whether what comes in is added to what goes out."""
        return self.stride == 1 and net.shapes[x][1] == self.out

    def _convolved(
        self, net: Net, x: str, word: str, width: int, parts: list[Part], *, deep: bool = False, active: bool = True
    ) -> str:
        conv, norm = f"{self.name}/{word}", f"{self.name}/bn{1 + sum('/se/' not in each[0] for each in parts)}"
        parts.append((conv, norm))
        groups = max(width // self.group_dim, 1) if deep else 1
        kernel, stride = (self.kernel, self.stride) if deep else (1, 1)
        made = net.conv(conv, x, width, kernel, stride=stride, groups=groups)
        return net.norm(norm, made, self.activation if active else "")

    def _added(self, net: Net, x: str, y: str) -> str:
        kept = net.depth(f"{self.name}/drop_path", y, self.survival)
        return net.add(f"{self.name}/add", Add(), kept, x)


def stem(net: Net, x: str, width: int, activation: str) -> str:
    """The 3x3 convolution of stride 2 that all of these models begin with, under torchvision's names too."""
    y = net.norm("bn1", net.conv("conv_stem", x, width, 3, stride=2), activation)
    net.alias("conv_stem", ["features/0", "features/0/0"])
    net.alias("bn1", ["features/0/1"])
    return y


def torchvision(net: Net, name: str, parts: Sequence[Part]) -> None:
    """torchvision's names of a block: `block/<part>/<0|1>`, or `fc1` and `fc2` of a squeeze-and-excite."""
    net.alias(parts[0][0], [name])
    for index, pair in enumerate(parts):
        words = ("fc1", "fc2") if "/se/" in pair[0] else ("0", "1")
        for node, word in zip(pair, words, strict=True):
            net.alias(node, [f"{name}/block/{index}/{word}"])
