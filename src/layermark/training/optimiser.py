"""Optimisers: how one weight moves, given its gradient. Written over an array namespace, so that float64 can run it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from layermark.errors import UserError
from layermark.training import names

Array = Any
Arrays = Mapping[str, Array]
Moved = tuple[Array, dict[str, Array]]
"""A weight after an update, and its state under the names of its slots."""

LARS_SKIPPED = ("beta", "gamma", "bias")


class Optimiser(ABC):
    """A rule that moves weights. Subclasses are frozen records; `slots` names the arrays kept for each weight."""

    label: ClassVar[str]
    """What the training program calls it."""
    slots: ClassVar[Mapping[str, float]] = {}
    """The state of each weight: a name, and the number that it is filled with at first."""
    divides_rate: ClassVar[bool] = False
    """How a static loss scale is taken out again: by a smaller rate, or else by dividing the gradient."""

    @abstractmethod
    def apply(self, weight: Array, gradient: Array, state: Arrays, rate: float, *, xp: Any, name: str = "") -> Moved:
        """Return the weight and its state after one update; `name` is the weight's own."""

    @abstractmethod
    def flops(self, count: int, name: str = "") -> int:
        """Return the scalar operations of one update of a weight with this many elements."""

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Return labels and values for printing."""
        return ()

    def state(self, weights: Arrays, *, xp: Any) -> dict[str, Array]:
        """Return the state before the first update, under `weight's name/slot`."""
        return {
            f"{name}/{slot}": xp.full_like(weight, value)
            for name, weight in weights.items()
            for slot, value in self.slots.items()
        }


@dataclass(frozen=True)
class SGD(Optimiser):
    """w = w - rate g."""

    label = "SGD"
    divides_rate = True

    def apply(self, weight: Array, gradient: Array, state: Arrays, rate: float, *, xp: Any, name: str = "") -> Moved:
        """Move against the gradient."""
        return weight - rate * gradient, {}

    def flops(self, count: int, name: str = "") -> int:
        """A product and a difference per element."""
        return 2 * count


@dataclass(frozen=True)
class Momentum(Optimiser):
    """v = m v + g; w = w - rate v."""

    momentum: float = 0.9

    label = "SGD with Momentum"
    slots = {"momentum": 0.0}
    divides_rate = True

    def __post_init__(self) -> None:
        _check_momentum(self.momentum)

    def apply(self, weight: Array, gradient: Array, state: Arrays, rate: float, *, xp: Any, name: str = "") -> Moved:
        """Move along the gathered gradient."""
        velocity = self.momentum * state["momentum"] + gradient
        return weight - rate * velocity, {"momentum": velocity}

    def flops(self, count: int, name: str = "") -> int:
        """Two for the velocity and two for the weight."""
        return 4 * count

    def describe(self) -> tuple[tuple[str, str], ...]:
        """The momentum."""
        return (("Momentum", f"{self.momentum:g}"),)


@dataclass(frozen=True)
class RMSprop(Optimiser):
    """s = d s + (1 - d) g^2; v = m v + rate g / sqrt(s + epsilon); w = w - v.

    TensorFlow's form: s starts at 1, epsilon is inside the root, and the momentum holds the rate. PyTorch's own
    RMSprop starts s at 0, adds epsilon to the root, and multiplies the momentum by the rate of the moment.
    """

    decay: float
    momentum: float = 0.9
    epsilon: float = 1e-3

    label = "RMSprop"
    slots = {"mean_square": 1.0, "momentum": 0.0}

    def __post_init__(self) -> None:
        _check_momentum(self.momentum)
        if not 0 <= self.decay < 1:
            raise UserError(
                f"RMSprop decay {self.decay:g}: expected from 0 to below 1; set --rmsprop-decay, "
                "or a smaller --rmsprop-base-decay-exp"
            )

    def apply(self, weight: Array, gradient: Array, state: Arrays, rate: float, *, xp: Any, name: str = "") -> Moved:
        """Move along the gradient over its root mean square."""
        mean_square = self.decay * state["mean_square"] + (1 - self.decay) * gradient**2
        velocity = self.momentum * state["momentum"] + rate * gradient / xp.sqrt(mean_square + self.epsilon)
        return weight - velocity, {"mean_square": mean_square, "momentum": velocity}

    def flops(self, count: int, name: str = "") -> int:
        """Four for the mean square, six for the velocity (a root counts as one), one for the weight."""
        return 11 * count

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Momentum, decay and epsilon."""
        return (("Momentum", f"{self.momentum:g}"), ("Decay", f"{self.decay:g}"), ("Epsilon", f"{self.epsilon:g}"))


@dataclass(frozen=True)
class LARS(Optimiser):
    """Momentum whose rate is scaled per weight by eeta |w| / (|g| + d |w| + epsilon), with the decay d inside.

    Weights whose name holds a word of the skip list are neither scaled nor decayed.
    """

    momentum: float = 0.9
    eeta: float = 1e-3
    epsilon: float = 0.0
    weight_decay: float = 0.0
    skip: tuple[str, ...] = LARS_SKIPPED

    label = "LARS"
    slots = {"momentum": 0.0}

    def __post_init__(self) -> None:
        _check_momentum(self.momentum)

    def apply(self, weight: Array, gradient: Array, state: Arrays, rate: float, *, xp: Any, name: str = "") -> Moved:
        """Move along the gathered gradient at the weight's own rate."""
        factor: Any = 1.0
        if not names.holds(name, self.skip):
            factor = self.trust(weight, gradient, xp=xp)
            gradient = gradient + self.weight_decay * weight
        velocity = self.momentum * state["momentum"] + gradient
        return weight - rate * factor * velocity, {"momentum": velocity}

    def trust(self, weight: Array, gradient: Array, *, xp: Any) -> Array:
        """Return what the rate of this weight is multiplied by: 1 where weight or gradient is zero throughout."""
        own, slope = xp.sqrt(xp.sum(weight**2)), xp.sqrt(xp.sum(gradient**2))
        below = slope + self.weight_decay * own + self.epsilon
        usable = (own > 0) & (slope > 0)
        one = xp.ones_like(own)
        return xp.where(usable, self.eeta * own / xp.where(usable, below, one), one)

    def flops(self, count: int, name: str = "") -> int:
        """Four as with momentum; else two for each norm, two for the decay, and eight for the factor and its rate."""
        return 4 * count if names.holds(name, self.skip) else 10 * count + 8

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Momentum, the weight decay inside, and epsilon."""
        return (
            ("Momentum", f"{self.momentum:g}"),
            ("Decay", f"{self.weight_decay:g}"),
            ("Epsilon", f"{self.epsilon:g}"),
        )


def rmsprop_decay(exponent: float, global_batch: int) -> float:
    """Return the decay that fits a global batch: 1 - 2^exponent x global batch.

    >>> round(rmsprop_decay(-14, 200), 5), round(rmsprop_decay(-14, 800), 5)
    (0.98779, 0.95117)
    """
    return 1 - math.pow(2, exponent) * global_batch


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise UserError(f"momentum {momentum:g}: expected from 0 to below 1; set --momentum to a share such as 0.9")
