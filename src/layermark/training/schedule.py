"""Learning rates: the peak, how it falls with the updates, and the warm-up before."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from layermark.errors import UserError, unknown


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run stands: the update number, how many there will be, and the same two in epochs."""

    update: int
    total: int
    epoch: Fraction
    epochs: Fraction
    warmup: float = 0.0
    """Updates of the warm-up."""

    @property
    def share(self) -> float:
        """How much of the run is done, at most all of it."""
        return min(self.update / self.total, 1.0)


class Schedule(ABC):
    """How the rate falls. Subclasses are frozen records."""

    label: ClassVar[str]
    """What the training program calls it."""

    @abstractmethod
    def rate(self, peak: float, moment: Moment) -> float:
        """Return the rate without warm-up."""

    def warming(self, peak: float, moment: Moment) -> float:
        """Return the rate during warm-up: it grows with the update number, from 0 in the first call."""
        return self.rate(peak, moment) * moment.update / moment.warmup

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Return labels and values for printing."""
        return ()


@dataclass(frozen=True)
class Constant(Schedule):
    """The peak throughout."""

    label = "Constant LR schedule"

    def rate(self, peak: float, moment: Moment) -> float:
        """The peak."""
        return peak


@dataclass(frozen=True)
class Stepped(Schedule):
    """The peak, multiplied by `decay` at each of these fractions of the run."""

    decay: float = 0.1
    fractions: tuple[float, ...] = (0.3, 0.6, 0.8, 0.9)

    label = "Stepped LR schedule"

    def __post_init__(self) -> None:
        if any(not 0 <= each <= 1 for each in self.fractions):
            received = ",".join(f"{each:g}" for each in self.fractions)
            raise UserError(f"--learning-rate-schedule {received}: expected fractions of the run, such as 0.5,0.75")

    def rate(self, peak: float, moment: Moment) -> float:
        """A power of the decay: how many fractions have been reached."""
        # As decimal fractions: 0.7 x 10 in binary is a little above 7, and the drop would come an update late.
        reached = sum(moment.update >= _decimal(each) * moment.total for each in self.fractions)
        return peak * self.decay**reached

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Fractions and factor."""
        return (("Drops at", ", ".join(f"{each:g}" for each in self.fractions)), ("Decay factor", f"{self.decay:g}"))


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the peak to zero."""

    label = "Cosine LR schedule"

    def rate(self, peak: float, moment: Moment) -> float:
        """peak x (1 + cos(pi i / T)) / 2."""
        return peak * 0.5 * (1 + math.cos(math.pi * moment.share))


@dataclass(frozen=True)
class Exponential(Schedule):
    """The peak, multiplied by `decay_rate` at each of `drops` equal parts of the run."""

    decay_rate: float = 0.97
    drops: int = 146

    label = "Exponential LR schedule"

    def __post_init__(self) -> None:
        if self.drops < 1:
            raise UserError(f"--lr-drops {self.drops}: expected at least 1")

    def rate(self, peak: float, moment: Moment) -> float:
        """peak x decay_rate ^ floor(epoch / (epochs / drops))."""
        # In fractions: a floor of rounded numbers would sometimes be a drop too low.
        passed = math.floor(min(moment.epoch, moment.epochs) * self.drops / moment.epochs)
        return peak * float(self.decay_rate**passed)

    def describe(self) -> tuple[tuple[str, str], ...]:
        """The factor of one drop."""
        return (("Decay Rate", f"{self.decay_rate:g}"),)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From the peak after warm-up down to an end: a share of the peak, or a rate of its own."""

    power: float = 2.0
    end_ratio: float = 1e-5
    end_rate: float | None = None

    label = "Polynomial LR schedule"

    def rate(self, peak: float, moment: Moment) -> float:
        """(peak - end) x (1 - (i - w) / (T - w)) ^ power + end."""
        end = peak * self.end_ratio if self.end_rate is None else self.end_rate
        after = max(moment.total - moment.warmup, 1.0)
        left = 1 - min(max(moment.update - moment.warmup, 0.0) / after, 1.0)
        return (peak - end) * float(left**self.power) + end

    def warming(self, peak: float, moment: Moment) -> float:
        """peak x i / w: the fall begins only after warm-up."""
        return peak * moment.update / moment.warmup

    def describe(self) -> tuple[tuple[str, str], ...]:
        """The power, and where it ends."""
        ratio = ("End ratio", f"{self.end_ratio:g}")
        return (("Power", f"{self.power:g}"), ratio if self.end_rate is None else ("End rate", f"{self.end_rate:g}"))


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The rate of every update: a peak, a schedule, and a warm-up in epochs."""

    peak: float
    schedule: Schedule
    total: int
    """Updates of the whole run."""
    epochs: float
    """The same in epochs."""
    warmup_epochs: float = 0.0
    epochs_per_update: Fraction | None = None
    """Global batch / pictures of an epoch; if none, epochs / total."""

    def __post_init__(self) -> None:
        if self.total < 1 or self.epochs <= 0:
            raise UserError(f"a run of {self.total} updates and {self.epochs:g} epochs: expected at least one update")
        if self.warmup_epochs < 0:
            raise UserError(f"--warmup-epochs {self.warmup_epochs:g}: expected zero or more")

    @property
    def warmup_updates(self) -> float:
        """Updates of the warm-up; not a whole number, and more than there are where the run is shorter."""
        return self.total * self.warmup_epochs / self.epochs

    def at(self, update: int) -> float:
        """Return the rate that the formulas give for one update number, the first being 0."""
        epochs = _decimal(self.epochs)
        epoch = update * (self.epochs_per_update or epochs / self.total)
        moment = Moment(update=update, total=self.total, epoch=epoch, epochs=epochs, warmup=self.warmup_updates)
        if update < moment.warmup:
            return self.schedule.warming(self.peak, moment)
        return self.schedule.rate(self.peak, moment)

    def of_call(self, first_update: int) -> float:
        """Return the one rate of a host call: that of the update which it begins with."""
        return self.at(first_update)

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Return labels and values for printing."""
        warmup = ("Warmup", f"{self.warmup_epochs:g} epochs") if self.warmup_epochs else ("No warmup", "")
        return ((self.schedule.label, ""), warmup, *self.schedule.describe())


SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "stepped": Stepped,
    "cosine": Cosine,
    "exponential": Exponential,
    "polynomial_decay_lr": Polynomial,
}
"""Every schedule under the name that `--lr-schedule` has for it."""


def schedule_class(name: str) -> type[Schedule]:
    """Return the schedule of this name; raise UserError if there is none."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def _decimal(value: float) -> Fraction:
    return Fraction(str(value))


def peak_rate(exponent: float, global_batch: int) -> float:
    """Return 2^exponent x global batch.

    >>> peak_rate(-11, 16384), peak_rate(-14, 200)
    (8.0, 0.01220703125)
    """
    return math.pow(2, exponent) * global_batch


def exponent_of(rate: float, global_batch: int) -> float:
    """Return the exponent whose peak is this rate (`--abs-learning-rate`).

    >>> exponent_of(0.375, 768)
    -11.0
    """
    if not 0 < rate < math.inf:
        raise UserError(f"--abs-learning-rate {rate:g}: expected a number above zero")
    return math.log2(rate / global_batch)
