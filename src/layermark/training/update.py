"""One whole update of the weights: which rule, what is added to the gradients, how many of them are averaged."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from layermark.errors import UserError
from layermark.options import integer, number, option, positive_float, share, switch
from layermark.training import names, regularisation
from layermark.training.optimiser import LARS, LARS_SKIPPED, SGD, Momentum, Optimiser, RMSprop
from layermark.training.regularisation import DynamicScale, Factors

Array = Any
Arrays = Mapping[str, Array]

OPTIMISERS = ("sgd", "momentum", "rmsprop", "lars")
SCALE, STREAK = "loss_scale", "loss_scale_streak"
"""The state of a dynamic loss scale."""


def _not_negative(text: str) -> float:
    value = number(text)
    if value < 0:
        raise ValueError("expected zero or a number above")
    return float(value)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


_not_negative.metavar = "X"  # type: ignore[attr-defined]
_words.metavar = "WORD,..."  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class Update:
    """How weights move. The defaults mean plain SGD with no decay."""

    optimiser: str = option("sgd", choices=OPTIMISERS, help="the rule by which gradients move weights")
    momentum: float = option(0.9, parse=share, help="share of the last step that goes on (all but sgd)")
    rmsprop_decay: float = option(0.9, parse=share, help="share of the old mean square that rmsprop keeps")
    rmsprop_epsilon: float = option(1e-3, parse=positive_float, help="added to the mean square, inside the root")
    lars_eeta: float = option(1e-3, parse=positive_float, help="how far lars moves a weight, as a share of its norm")
    lars_epsilon: float = option(0.0, parse=_not_negative, help="added to the norms below the line of lars")
    lars_skip: tuple[str, ...] = option(
        LARS_SKIPPED, axis=False, parse=_words, help="lars neither scales nor decays weights whose names hold these"
    )
    weight_decay: float = option(0.0, parse=_not_negative, help="L2 term, for all but the scale and shift of norms")
    decay_per: str = option(
        "update",
        choices=("update", "micro-batch"),
        help="add the decay to the mean gradient, or to that of each micro-batch; both come to the same",
    )
    label_smoothing: float = option(0.0, parse=share, help="share of a label that goes to the other classes")
    loss_scaling: float = option(1.0, parse=positive_float, help="gradients are taken of this times the loss")
    dynamic_scaling: bool = option(
        False, parse=switch, help="halve the loss scale after an overflow, double it after 2000 updates without (torch)"
    )
    clip_norm: float = option(0.0, parse=_not_negative, help="longest gradient, all weights together; 0: any")
    accumulation: int = option(1, parse=integer(1), help="micro-batches whose gradients make one update")
    statistics_per: str = option(
        "micro-batch",
        choices=("micro-batch", "update"),
        help="move the running statistics of batch norms after every micro-batch, or once towards the mean of them",
    )
    variable_filter: tuple[str, ...] = option(
        (), axis=False, parse=_words, help="train only weights whose names hold one of these"
    )
    replicas: int = 1
    """Copies in one process, whose gradients are averaged; the plan of a run names them."""

    def __post_init__(self) -> None:
        for name in ("accumulation", "replicas"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: expected at least 1")
        if self.optimiser not in OPTIMISERS:
            raise UserError(f"--optimiser {self.optimiser}: expected one of {', '.join(OPTIMISERS)}")
        if self.clip_norm and self.decay_per == "micro-batch":
            raise UserError(
                "--decay-per micro-batch with --clip-norm: the decay is never clipped; leave one of them out"
            )
        regularisation.check_scale(self.loss_scaling)
        regularisation.check_smoothing(self.label_smoothing, 2)
        _ = self.rule  # a rule with impossible numbers cannot exist

    @cached_property
    def rule(self) -> Optimiser:
        """The optimiser with its numbers."""
        return _RULES[self.optimiser](self)

    @property
    def micro_batches(self) -> int:
        """Gradients that make one update, those of all replicas together."""
        return self.accumulation * self.replicas

    @property
    def gathers_statistics(self) -> bool:
        """Whether running statistics wait for the last micro-batch of an update."""
        return self.statistics_per == "update" and self.micro_batches > 1

    @property
    def gradient_decay(self) -> float:
        """The decay that is added to gradients; LARS has its own inside."""
        return 0.0 if self.optimiser == "lars" else self.weight_decay

    @property
    def dynamic(self) -> DynamicScale | None:
        """How the loss scale moves, or none if it stands still."""
        if not self.dynamic_scaling:
            return None
        return DynamicScale() if self.loss_scaling == 1 else DynamicScale(initial=self.loss_scaling)

    def factors(self, scale: float) -> Factors:
        """Return how a loss scale is taken out again.

        Under a scale that moves, the gradient is divided: a velocity made of differently scaled gradients would be
        wrong.
        """
        divides_rate = self.rule.divides_rate and not self.dynamic_scaling
        return regularisation.factors(scale, self.gradient_decay, divides_rate=divides_rate)

    def trained(self, parameters: Iterable[str]) -> list[str]:
        """Return the names of what moves: no running statistics, and only what the filter lets through."""
        kept = [name for name in parameters if not names.is_statistic(name)]
        return [name for name in kept if names.holds(name, self.variable_filter)] if self.variable_filter else kept

    def check_filter(self, parameters: Iterable[str]) -> None:
        """Raise UserError if the filter lets no weight of a whole network through: nothing would be trained."""
        given = list(parameters)
        weights = [name for name in given if not names.is_statistic(name)]
        if self.variable_filter and weights and not self.trained(given):
            raise UserError(
                f"--variable-filter {','.join(self.variable_filter)}: no weight has one of these in its name; "
                f"names are such as {weights[0]} and {weights[-1]}"
            )

    def gathered_statistics(self, parameters: Iterable[str]) -> list[str]:
        """Return the names of the running statistics that move once an update."""
        return [name for name in parameters if names.is_statistic(name)] if self.gathers_statistics else []

    def state(self, weights: Arrays, *, xp: Any) -> dict[str, Array]:
        """Return the state before the first update: `weight's name/slot`, and a dynamic loss scale."""
        made = self.rule.state({name: weights[name] for name in self.trained(weights)}, xp=xp)
        if self.dynamic:
            made[SCALE] = xp.asarray(self.dynamic.initial, dtype=xp.float64)
            made[STREAK] = xp.asarray(0, dtype=xp.int64)
        return made

    def state_names(self, parameters: Iterable[str]) -> list[str]:
        """Return the names of the arrays that `state` makes."""
        own = [f"{name}/{slot}" for name in self.trained(parameters) for slot in self.rule.slots]
        return own + [SCALE, STREAK] * self.dynamic_scaling

    def loss_scale(self, state: Arrays) -> float:
        """Return what the loss of the next update is multiplied by."""
        return float(state[SCALE]) if self.dynamic_scaling else self.loss_scaling

    def apply(
        self, weights: Arrays, gradients: Sequence[Arrays], state: Arrays, rate: float, *, xp: Any
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return weights and state after one update, given the gradients of `loss scale x loss` of every micro-batch.

        A dynamic scale leaves the weights as they are where a gradient is not finite.
        """
        if len(gradients) != self.micro_batches:
            raise ValueError(f"{len(gradients)} gradients for an update of {self.micro_batches} micro-batches")
        if self.dynamic:
            finite = all(regularisation.all_finite(each, xp=xp) for each in gradients)
            scaled = self._rescaled(self.dynamic, state, finite, xp)
            if not finite:
                return dict(weights), {**state, **scaled}
            moved, after = self._moved(weights, gradients, state, rate, xp)
            return moved, {**after, **scaled}
        return self._moved(weights, gradients, state, rate, xp)

    def _rescaled(self, rule: DynamicScale, state: Arrays, finite: bool, xp: Any) -> dict[str, Array]:
        scale, streak = rule.after(float(state[SCALE]), int(state[STREAK]), finite=finite)
        return {SCALE: xp.asarray(scale, dtype=xp.float64), STREAK: xp.asarray(streak, dtype=xp.int64)}

    def _moved(
        self, weights: Arrays, gradients: Sequence[Arrays], state: Arrays, rate: float, xp: Any
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        factors = self.factors(self.loss_scale(state))
        mean = self._mean_gradient(weights, gradients, factors, xp)
        after, held = dict(weights), dict(state)
        for name, gradient in mean.items():
            own = {slot: state[f"{name}/{slot}"] for slot in self.rule.slots}
            after[name], moved = self.rule.apply(weights[name], gradient, own, rate * factors.rate, xp=xp, name=name)
            held |= {f"{name}/{slot}": each for slot, each in moved.items()}
        return after, held

    def _mean_gradient(
        self, weights: Arrays, gradients: Sequence[Arrays], factors: Factors, xp: Any
    ) -> dict[str, Array]:
        """Unscale, decay, divide and sum in the order in which a program does it: clipping never touches the decay."""
        total: dict[str, Array] = {}
        for each in gradients:
            own = {name: each[name] * factors.gradient for name in self.trained(each)}
            if self.decay_per == "micro-batch":
                own = regularisation.decayed(own, weights, factors.decay)
            total = {name: total.get(name, 0.0) + value / len(gradients) for name, value in own.items()}
        if self.clip_norm:
            total = regularisation.clipped(total, self.clip_norm / factors.rate, xp=xp)
        return total if self.decay_per == "micro-batch" else regularisation.decayed(total, weights, factors.decay)

    def flops(self, counts: Mapping[str, int]) -> int:
        """Return the scalar operations of one update, given the number of elements of every parameter."""
        trained = self.trained(counts)
        elements = sum(counts[name] for name in trained)
        pulled = sum(counts[name] for name in trained if names.is_decayed(name)) if self.gradient_decay else 0
        times_decayed = self.micro_batches if self.decay_per == "micro-batch" else 1
        divided = self.loss_scaling != 1 or self.dynamic_scaling
        unscaled = divided and self.factors(2.0).gradient != 1
        # Per micro-batch: a division and, but for the first, a sum. To clip: squares, sums and a product.
        gathered = elements * (2 * self.micro_batches - 1) if self.micro_batches > 1 else 0
        extras = elements * (self.micro_batches * unscaled + 3 * bool(self.clip_norm))
        return (
            sum(self.rule.flops(counts[name], name) for name in trained)
            + 2 * pulled * times_decayed
            + gathered
            + extras
        )

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Return labels and values for printing, the optimiser's own included."""
        return (
            ("Weight Decay", f"{self.weight_decay:g}"),
            ("Loss Scaling", "dynamic" if self.dynamic_scaling else f"{self.loss_scaling:g}"),
            (self.rule.label, ""),
            *self.rule.describe(),
        )

    @property
    def key(self) -> str:
        """A short stable name of everything that is not at its default."""
        return hashlib.sha256(json.dumps(self.changed, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def changed(self) -> dict[str, Any]:
        """Everything that is not at its default, as `to_json` writes it."""
        plain = Update().to_json()
        return {name: value for name, value in self.to_json().items() if value != plain[name]}

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary that `from_json` reads back."""
        doc = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in doc.items()}

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> Update:
        """Return the record that `to_json` wrote."""
        fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in doc.items()}
        return cls(**fields)

    def replace(self, **changes: Any) -> Update:
        """Return this record with some fields changed."""
        return dataclasses.replace(self, **changes)


_RULES: Mapping[str, Callable[[Update], Optimiser]] = {
    "sgd": lambda update: SGD(),
    "momentum": lambda update: Momentum(momentum=update.momentum),
    "rmsprop": lambda update: RMSprop(
        decay=update.rmsprop_decay, momentum=update.momentum, epsilon=update.rmsprop_epsilon
    ),
    "lars": lambda update: LARS(
        momentum=update.momentum,
        eeta=update.lars_eeta,
        epsilon=update.lars_epsilon,
        weight_decay=update.weight_decay,
        skip=update.lars_skip,
    ),
}
