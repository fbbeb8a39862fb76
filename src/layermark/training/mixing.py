"""Mixup and cutmix: coefficients drawn on the host, pictures and labels mixed over an array namespace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layermark.errors import UserError
from layermark.laws import random_generator
from layermark.options import integer, number, option, share

if TYPE_CHECKING:
    import numpy as np

Array = Any

OWN, PASTED, SHARES = "mix_own", "mix_pasted", "mix_shares"
"""The inputs of a network whose pictures are mixed: share of each picture itself, the box, and shares of labels."""
MIXED = frozenset((OWN, PASTED, SHARES))


@dataclass(frozen=True)
class Box:
    """The part of a picture that is pasted: rows and columns, the ends not included."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """Pixels inside."""
        return (self.bottom - self.top) * (self.right - self.left)


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """What one micro-batch is mixed with: `own` per picture, and one box for all."""

    own: np.ndarray[Any, Any]
    """[batch] share of the picture itself; the rest is the picture before it."""
    pasted: np.ndarray[Any, Any]
    """[height, width] whether a pixel comes from the pasted picture."""
    kept: float
    """Share of pixels outside the box."""
    shift: int
    """How many places back the pasted picture is."""

    def pictures(self, x: Array, *, xp: Any) -> Array:
        """Return [batch, channels, height, width] pictures: first mixup, then the box."""
        mixed = self._mixed(x, xp)
        inside = xp.asarray(self.pasted)[None, None, :, :]
        return xp.where(inside, xp.roll(mixed, self.shift, axis=0), mixed)

    def labels(self, rows: Array, *, xp: Any) -> Array:
        """Return [batch, classes] class weights, given those of the single pictures.

        With both kinds of mixing this is the mix of four: own, mixup partner, pasted, and the pasted one's partner.
        """
        mixed = self._mixed(rows, xp)
        return self.kept * mixed + (1 - self.kept) * xp.roll(mixed, self.shift, axis=0)

    def _mixed(self, x: Array, xp: Any) -> Array:
        own = xp.reshape(xp.asarray(self.own, dtype=x.dtype), (-1,) + (1,) * (x.ndim - 1))
        return own * x + (1 - own) * xp.roll(x, 1, axis=0)

    def label_shares(self) -> np.ndarray[Any, Any]:
        """Return [batch, batch] weights: row i says how much of each picture's label belongs to picture i."""
        import numpy

        return numpy.asarray(self.labels(numpy.eye(len(self.own)), xp=numpy))


def _alpha(text: str) -> float:
    value = number(text)
    if value < 0:
        raise ValueError("expected zero or a number above")
    return float(value)


_alpha.metavar = "X"  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Which mixing is done; the defaults mean none."""

    mixup_alpha: float = option(0.0, parse=_alpha, help="parameter of the beta law of mixup; 0: none")
    cutmix_lambda: float = option(1.0, parse=share, help="share of the picture that cutmix keeps; 1: none")
    cutmix_version: int = option(1, parse=integer(1), help="2 keeps the pasted box inside the picture")

    mixing_place: str = option(
        "device", choices=("device", "host"), help="where pictures are mixed: in the network, or before it"
    )

    def __post_init__(self) -> None:
        if self.mixup_alpha < 0:
            raise UserError(f"--mixup-alpha {self.mixup_alpha:g}: expected zero or more, such as 0.2")
        if not 0 <= self.cutmix_lambda <= 1:
            raise UserError(f"--cutmix-lambda {self.cutmix_lambda:g}: expected a share from 0 to 1, such as 0.85")
        if self.cutmix_version not in (1, 2):
            raise UserError(f"--cutmix-version {self.cutmix_version}: expected 1 or 2")

    @property
    def active(self) -> bool:
        """Whether anything is mixed."""
        return self.mixup_alpha > 0 or self.cutmix_lambda < 1

    @property
    def on_host(self) -> bool:
        """Whether the host mixes the pictures."""
        return self.mixing_place == "host"

    @staticmethod
    def shift(batch: int) -> int:
        """Return how many places back the pasted picture is."""
        return min(2, max(batch - 1, 1))

    def fed(self, arrays: dict[str, Array], pictures: str, *, seed: int, index: int) -> dict[str, Array]:
        """Return the inputs of micro-batch number `index` with its coefficients; the host's part is done."""
        import numpy

        if not self.active:
            return arrays
        x = arrays[pictures]
        batch, _, height, width = x.shape
        found = self.coefficients(batch=batch, height=height, width=width, seed=seed, update=index, micro_batch=0)
        shares = {SHARES: found.label_shares()}  # in float64: rows that add up to one, which losses rely on
        if not self.on_host:
            return {**arrays, **shares, OWN: found.own.astype("float32"), PASTED: found.pasted.astype("float32")}
        mixed = found.pictures(x.astype("float32"), xp=numpy)
        # In the memory order that came, which is that of the runtime; bytes stay bytes.
        kept = numpy.empty_like(x)
        kept[...] = numpy.rint(mixed) if x.dtype.kind == "u" else mixed
        return {**arrays, **shares, pictures: kept}

    def check_batch(self, batch: int) -> None:
        """Raise UserError if a micro-batch has nothing to mix a picture with."""
        if self.active and batch < 2:
            raise UserError(
                f"mixup and cutmix with a batch of {batch}: expected two pictures or more; "
                "set --batch-size 2, or leave --mixup-alpha and --cutmix-lambda out"
            )

    def coefficients(
        self, *, batch: int, height: int, width: int, seed: int, update: int, micro_batch: int
    ) -> Coefficients:
        """Return the coefficients of one micro-batch; they depend on seed, update and micro-batch only."""
        self.check_batch(batch)
        box = self._box(random_generator(seed, "cutmix", update, micro_batch), height, width)
        return Coefficients(
            own=self._own(random_generator(seed, "mixup", update, micro_batch), batch),
            pasted=_inside(box, height, width),
            kept=1 - box.area / (height * width),
            shift=self.shift(batch),
        )

    def _own(self, rng: np.random.Generator, batch: int) -> np.ndarray[Any, Any]:
        import numpy

        if not self.mixup_alpha:
            return numpy.ones(batch)
        drawn = rng.beta(self.mixup_alpha, self.mixup_alpha, batch)
        return numpy.maximum(drawn, 1 - drawn)

    def _box(self, rng: np.random.Generator, height: int, width: int) -> Box:
        if self.cutmix_lambda >= 1:
            return Box(0, 0, 0, 0)
        side = math.sqrt(1 - self.cutmix_lambda)
        (top, bottom), (left, right) = (self._span(rng, size, round(size * side)) for size in (height, width))
        return Box(top, bottom, left, right)

    def _span(self, rng: np.random.Generator, size: int, cut: int) -> tuple[int, int]:
        """Where the box begins and ends along one side: clipped at the edge, or drawn so that it stays inside."""
        if self.cutmix_version == 2:
            first = int(rng.integers(0, size - cut + 1))
            return first, first + cut
        first = int(rng.integers(0, size)) - cut // 2
        return max(first, 0), min(first + cut, size)


def _inside(box: Box, height: int, width: int) -> np.ndarray[Any, Any]:
    import numpy

    made = numpy.zeros((height, width), bool)
    made[box.top : box.bottom, box.left : box.right] = True
    return made
