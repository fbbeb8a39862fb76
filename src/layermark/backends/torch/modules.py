"""Modules for what torch.nn has no layer for: norms, 8-bit input, prepacked weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "swish": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard-swish": functional.hardswish,
    "hard-sigmoid": functional.hardsigmoid,
}


IN_PLACE = ("relu", "relu6")
"""Those whose backward needs only what they made, so that they may overwrite what they read."""


def column(vector: Tensor, rank: int = 4) -> Tensor:
    """One value per channel, ready to broadcast over batch and pictures."""
    return vector.view(1, -1, *[1] * (rank - 2))


class BatchNorm(nn.Module):
    """nn.BatchNorm2d for any rank, without its counter of batches."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, epsilon: float, momentum: float, batch_statistics: bool) -> None:
        super().__init__()
        self.epsilon, self.momentum, self.batch_statistics = epsilon, momentum, batch_statistics
        self.scale = nn.Parameter(torch.empty(channels))
        self.shift = nn.Parameter(torch.empty(channels))
        self.register_buffer("mean", torch.empty(channels))
        self.register_buffer("variance", torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        state = self.mean, self.variance
        return functional.batch_norm(
            x, *state, self.scale, self.shift, self.batch_statistics, self.momentum, self.epsilon
        )


class GroupNorm(nn.Module):
    """Statistics per sample and group, then scale and shift; `strided` puts channel c into group c mod G."""

    def __init__(self, channels: int, groups: int, epsilon: float, strided: bool) -> None:
        super().__init__()
        self.groups, self.epsilon, self.strided = groups, epsilon, strided
        self.scale = nn.Parameter(torch.empty(channels))
        self.shift = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        if not self.strided or self.groups == 1:
            return functional.group_norm(x, self.groups, self.scale, self.shift, self.epsilon)
        parted = x.unflatten(1, (-1, self.groups))
        variance, mean = torch.var_mean(parted, (1, *range(3, parted.ndim)), correction=0, keepdim=True)
        flat = ((parted - mean) * torch.rsqrt(variance + self.epsilon)).flatten(1, 2)
        return torch.addcmul(column(self.shift, x.ndim), flat, column(self.scale, x.ndim))


class WideNorm(nn.Module):
    """A norm in float32 of what a network of a smaller type gives it, and then goes on with in that type."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm.float()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        made: Tensor = self.norm(x.float()).to(x.dtype)
        return made


class ProxyNorm(nn.Module):
    """Group norm and its activation, then normalised by what a standard normal input would have given.

    Only in training does that change from call to call; otherwise `pack` computes it once.
    """

    points: Tensor
    factor: Tensor
    offset: Tensor

    def __init__(self, norm: GroupNorm, activation: str, points: int, proxy_epsilon: float) -> None:
        super().__init__()
        channels = norm.scale.numel()
        self.norm, self.activation, self.proxy_epsilon = norm, activation, proxy_epsilon
        self.proxy_scale = nn.Parameter(torch.empty(channels))
        self.proxy_shift = nn.Parameter(torch.empty(channels))
        quantiles = [statistics.NormalDist().inv_cdf((i + 0.5) / points) for i in range(points)]
        self.register_buffer("points", torch.tensor(quantiles, dtype=torch.float64)[:, None], persistent=False)
        self.register_buffer("factor", torch.empty(channels), persistent=False)
        self.register_buffer("offset", torch.empty(channels), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        factor, offset = self._proxy() if self.training else (self.factor, self.offset)
        return torch.addcmul(column(offset, x.ndim), self._activate(self.norm(x)), column(factor, x.ndim))

    def pack(self) -> None:
        """Compute what depends on the parameters alone."""
        with torch.no_grad():
            factor, offset = self._proxy()
        self.factor.copy_(factor)
        self.offset.copy_(offset)

    def _proxy(self) -> tuple[Tensor, Tensor]:
        drawn = self.points * (1 + self.proxy_scale) + self.proxy_shift
        made = self._activate(drawn * self.norm.scale + self.norm.shift)
        variance, mean = torch.var_mean(made, 0, correction=0)
        factor = torch.rsqrt(variance + self.proxy_epsilon)
        return factor, -mean * factor

    def _activate(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](x) if self.activation else x


class Normalise(nn.Module):
    """Cast pictures and normalise their channels in one multiply-add."""

    factor: Tensor
    offset: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], scale: float, rank: int) -> None:
        super().__init__()
        centre = torch.tensor(mean, dtype=torch.float64)
        spread = torch.tensor(deviation, dtype=torch.float64)
        self.register_buffer("factor", column(scale / spread, rank), persistent=False)
        self.register_buffer("offset", column(-centre / spread, rank), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Cast and normalise one batch of pictures."""
        return torch.addcmul(self.offset, x.to(self.factor.dtype), self.factor)


class AveragePool(nn.Module):
    """Average pooling under padding that differs by side; padding is not counted."""

    factor: Tensor

    def __init__(self, kernel: Sequence[int], stride: Sequence[int], sides: Sequence[int], size: Sequence[int]) -> None:
        super().__init__()
        self.kernel, self.stride, self.sides = list(kernel), list(stride), list(sides)
        inside = functional.pad(torch.ones(1, 1, *size, dtype=torch.float64), self.sides)
        self.register_buffer("factor", 1 / functional.avg_pool2d(inside, self.kernel, self.stride), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pool one batch of pictures."""
        return functional.avg_pool2d(functional.pad(x, self.sides), self.kernel, self.stride) * self.factor


class Prepacked(nn.Module):
    """A layer whose weights oneDNN keeps in its own blocked layout; `pack` after every change of them."""

    arguments: tuple[Any, ...]

    def __init__(self, plain: nn.Linear | nn.Conv2d, shape: Sequence[int]) -> None:
        super().__init__()
        self.plain, self.shape = plain, list(shape)

    def pack(self) -> None:
        """Bring the weights into the layout that is fastest for this input shape, and gather a call's arguments."""
        weight = self.plain.weight.detach()
        pointwise: tuple[str, list[float], str] = ("none", [], "")
        if isinstance(self.plain, nn.Conv2d):
            packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *self._geometry, self.shape)
            self.arguments = (packed, self.plain.bias, *self._geometry, *pointwise)
        else:
            rows = torch.Size(self.shape[:-1]).numel()
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
            self.arguments = (packed, self.plain.bias, *pointwise)

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        conv = self.plain
        assert isinstance(conv, nn.Conv2d)
        assert not isinstance(conv.padding, str)
        return list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups


class PrepackedLinear(Prepacked):
    """nn.Linear on prepacked weights."""

    def forward(self, x: Tensor) -> Tensor:
        """One product."""
        return torch.ops.mkldnn._linear_pointwise.default(x, *self.arguments)


class PrepackedConv2d(Prepacked):
    """nn.Conv2d on prepacked weights."""

    def forward(self, x: Tensor) -> Tensor:
        """One convolution."""
        return torch.ops.mkldnn._convolution_pointwise.default(x, *self.arguments)


def right_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many of the labels are where the largest logit is."""
    return (logits.detach().argmax(-1) == labels).sum()


def mix_pictures(x: Tensor, own: Tensor, pasted: Tensor, shift: int) -> Tensor:
    """Return pictures mixed with the one before, and with a box from the one `shift` places back."""
    mixed = torch.lerp(x.roll(1, 0), x, own.to(x.dtype).reshape(-1, 1, 1, 1))
    return torch.where(pasted > 0, mixed.roll(shift, 0), mixed)


def mix_labels(labels: Tensor, shares: Tensor, classes: int) -> Tensor:
    """Return rows of class weights: how much of each class belongs to a mixed picture."""
    return shares @ torch.nn.functional.one_hot(labels, classes).to(shares.dtype)
