"""What keeps weights small and labels soft, and how losses are scaled for narrow types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layermark.errors import UserError
from layermark.training import names

Array = Any
Arrays = Mapping[str, Array]


def decayed(gradients: Arrays, weights: Arrays, decay: float) -> dict[str, Array]:
    """Return the gradients with `decay x weight` added, except for the scale and shift of norms."""
    return {
        name: each + decay * weights[name] if decay and names.is_decayed(name) else each
        for name, each in gradients.items()
    }


def check_smoothing(smoothing: float, classes: int) -> None:
    """Raise UserError if there is no other class to give a share to, or the share is no share."""
    if not 0 <= smoothing < 1:
        raise UserError(f"label smoothing {smoothing:g}: expected from 0 to below 1; set --label-smoothing to 0.1")
    if smoothing and classes < 2:
        raise UserError(f"label smoothing {smoothing:g} with {classes} class: expected two or more; leave it out")


def global_norm(gradients: Arrays, *, xp: Any) -> Array:
    """Return the Euclidean length of all gradients together."""
    squares = [xp.sum(each**2) for each in gradients.values()]
    return xp.sqrt(sum(squares[1:], squares[0]))


def clipped(gradients: Arrays, longest: float, *, xp: Any) -> dict[str, Array]:
    """Return the gradients, all shortened by one factor if together they are longer than `longest`."""
    norm = global_norm(gradients, xp=xp)
    # One division by the larger of the two has no case of its own for short gradients, nor for none at all.
    factor = longest / xp.where(norm > longest, norm, xp.full_like(norm, longest))
    return {name: each * factor for name, each in gradients.items()}


@dataclass(frozen=True)
class Factors:
    """How a loss scale enters an update and leaves it: what rate and gradient are multiplied by, and the decay."""

    rate: float
    gradient: float
    decay: float


def factors(scale: float, decay: float, *, divides_rate: bool) -> Factors:
    """Return how gradients of `scale x loss` give ordinary updates.

    Either the rate is divided and the decay multiplied, so that narrow types never see a small gradient (the state
    is then `scale` times as large), or the gradient is divided.
    """
    if divides_rate:
        return Factors(rate=1 / scale, gradient=1.0, decay=decay * scale)
    return Factors(rate=1.0, gradient=1 / scale, decay=decay)


@dataclass(frozen=True)
class DynamicScale:
    """A loss scale that halves after an overflow and doubles after `interval` updates without one."""

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    largest: float = 2.0**24

    def after(self, scale: float, streak: int, *, finite: bool) -> tuple[float, int]:
        """Return the scale and the number of good updates in a row, after one more.

        >>> DynamicScale(interval=2).after(8.0, 1, finite=True), DynamicScale().after(8.0, 5, finite=False)
        ((16.0, 0), (4.0, 0))
        """
        if not finite:
            return max(scale * self.backoff, 1.0), 0
        if streak + 1 < self.interval:
            return scale, streak + 1
        return min(scale * self.growth, self.largest), 0


def all_finite(gradients: Arrays, *, xp: Any) -> bool:
    """Return whether no gradient holds an infinity or a NaN."""
    return all(bool(xp.all(xp.isfinite(each))) for each in gradients.values())


def survival(block: int, blocks: int, last: float = 0.8) -> float:
    """Return the probability that a block survives: 1 - (1 - last) block / blocks, the first being number 0.

    >>> survival(0, 16), survival(8, 16)
    (1.0, 0.9)
    """
    return 1 - (1 - last) * block / blocks


def statistics_after(old: Array, seen: list[Array], decay: float, *, together: bool) -> Array:
    """Return a running statistic of batch norm after the micro-batches of one update.

    With pipelining it moves once, towards their mean (`together`); without, after each of them.
    """
    if not seen:
        raise ValueError("no micro-batch was seen")
    if together:
        return old - (1 - decay) * (old - sum(seen[1:], seen[0]) / len(seen))
    for each in seen:
        old = decay * old + (1 - decay) * each
    return old


def check_scale(scale: float) -> None:
    """Raise UserError unless the loss scale is a finite number above zero."""
    if not (math.isfinite(scale) and scale > 0):
        raise UserError(f"loss scaling {scale:g}: expected a number above zero; set --loss-scaling to a power of two")
