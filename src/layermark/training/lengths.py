"""How long a run is, in updates and host calls; what happens after which call; how a budget makes it shorter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from layermark.errors import UserError

IMAGENET_PICTURES = 1_281_167
CIFAR_PICTURES = 50_000
LOGS_PER_EPOCH = 16
LOG_FREQ = 500
MOST_PER_CALL = 1000


@dataclass(frozen=True)
class Call:
    """One host call: its number from 0, and the updates [first, last) that it runs."""

    number: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The length of a run in all units. Give `epochs`, or `iterations` (weight updates)."""

    micro_batch: int
    accumulation: int = 1
    replicas: int = 1
    """Over all instances."""
    pictures: int = IMAGENET_PICTURES
    """Of one epoch."""
    epochs: float | None = None
    iterations: int | None = None
    logs_per_epoch: int = LOGS_PER_EPOCH
    log_freq: int = LOG_FREQ
    """Updates per line where the length is given in updates."""
    most_per_call: int = MOST_PER_CALL

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.iterations is None):
            raise UserError(f"epochs {self.epochs}, iterations {self.iterations}: expected exactly one of the two")
        unit, length = ("iterations", self.iterations) if self.epochs is None else ("epochs", self.epochs)
        if length is None or not 0 < length < math.inf:
            raise UserError(f"--{unit} {length}: expected a number above zero")
        for name in ("micro_batch", "accumulation", "replicas", "pictures", "log_freq", "most_per_call"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: expected at least 1")
        if self.logs_per_epoch < 0:
            raise UserError(f"logs_per_epoch {self.logs_per_epoch}: expected zero or more")

    @property
    def global_batch(self) -> int:
        """Pictures of one update."""
        return self.micro_batch * self.accumulation * self.replicas

    @property
    def updates_per_epoch(self) -> int:
        """Whole updates, at least one."""
        return max(1, self.pictures // self.global_batch)

    @property
    def epochs_per_update(self) -> Fraction:
        """How much of an epoch one update is."""
        return Fraction(self.global_batch, self.pictures)

    @property
    def target(self) -> int:
        """Updates that were asked for, at least one; whole host calls may pass it."""
        if self.epochs is None:
            return self.iterations or 1
        return max(1, math.floor(self.pictures * Fraction(str(self.epochs)) / self.global_batch))

    @property
    def length_in_epochs(self) -> float:
        """The length as it was given, or what the iterations come to."""
        return self.epochs if self.epochs is not None else float(self.target * self.epochs_per_update)

    @property
    def log_interval(self) -> int:
        """Updates between two lines."""
        if self.epochs is None:
            return self.log_freq
        return _interval(self.updates_per_epoch, self.logs_per_epoch) or self.target

    @property
    def updates_per_call(self) -> int:
        """The log interval, or if that is 1000 or more, one of its equal parts of about 1000."""
        if self.log_interval < self.most_per_call:
            return self.log_interval
        return self.log_interval // max(1, round(self.log_interval / self.most_per_call))

    @property
    def call_plan(self) -> CallPlan:
        """The host calls of the run."""
        return CallPlan(
            calls=math.ceil(self.target / self.updates_per_call),
            updates_per_call=self.updates_per_call,
            micro_batches=self.accumulation,
        )

    @property
    def calls_per_epoch(self) -> int:
        """Host calls over which the loss and the accuracy of a line are averaged, at least one."""
        return max(1, self.updates_per_epoch // self.updates_per_call)

    def pictures_per_update(self, call_plan: CallPlan) -> int:
        """Return the pictures that an update really processes, which a budget may have made fewer."""
        return self.micro_batch * call_plan.micro_batches * self.replicas

    def epoch(self, update: int) -> float:
        """Return how many epochs have passed after this many updates."""
        return float(update * self.epochs_per_update)


@dataclass(frozen=True, kw_only=True)
class CallPlan:
    """Host calls of equal length: how many, of how many updates, of how many micro-batches each."""

    calls: int
    updates_per_call: int
    micro_batches: int
    done: int = 0
    """Updates that were made before. The first call is shorter where that brings it into step."""

    @property
    def updates(self) -> int:
        """Updates that are really executed."""
        return max(0, self._end * self.updates_per_call - self.done)

    @property
    def _begin(self) -> int:
        return self.done // self.updates_per_call

    @property
    def _end(self) -> int:
        return self._begin + self.calls

    def __iter__(self) -> Iterator[Call]:
        size = self.updates_per_call
        for number in range(self._begin, self._end):
            yield Call(number, max(number * size, self.done), (number + 1) * size)

    def after(self, update: int) -> CallPlan:
        """Return the calls that are left after this many updates (those of a checkpoint)."""
        return replace(self, calls=max(0, self._end - update // self.updates_per_call), done=update)

    def marks(self, call: Call, interval: int) -> bool:
        """Return whether a line, a checkpoint or a validation point with this interval is due after a call.

        It is where the call crosses a multiple of the interval, after the first, and after each of the last two;
        an interval of 0 means never.
        """
        if not interval:
            return False
        crosses = call.last // interval > call.first // interval
        return crosses or call.number == 0 or call.number >= self._end - 2

    def lines(self, interval: int) -> int:
        """Return how many lines will be printed."""
        return sum(self.marks(call, interval) for call in self)


@dataclass(frozen=True, kw_only=True)
class UpdateTime:
    """How long things take, as far as is known before the run."""

    micro_batch_s: float
    """One micro-batch of every replica of this process, forward and backward."""
    update_s: float = 0.0
    """The update itself."""

    def seconds(self, call_plan: CallPlan) -> float:
        """Return the time of all calls."""
        return call_plan.updates * (call_plan.micro_batches * self.micro_batch_s + self.update_s)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Host calls within a budget, and what had to be shortened for it."""

    call_plan: CallPlan
    shortened: tuple[str, ...]
    """For people: what is how much of how much."""
    fits: bool
    """False where even the shortest run takes longer."""


def fit(
    call_plan: CallPlan,
    update_time: UpdateTime,
    budget_s: float,
    *,
    stages: int = 1,
    rounded: Callable[[int], int] = int,
) -> Fitted:
    """Return the longest run that fits into the budget.

    First there are fewer lines (at least two), then host calls of fewer updates (at least one), then fewer
    micro-batches in an update (at least one per stage), `rounded` to a number that an update can have.
    """
    found = call_plan
    for name, least in (("calls", 2), ("updates_per_call", 1), ("micro_batches", stages)):
        found = _less(found, name, least, update_time, budget_s)
    found = replace(found, micro_batches=rounded(found.micro_batches))
    told = {
        "lines": (found.calls, call_plan.calls),
        "updates per host call": (found.updates_per_call, call_plan.updates_per_call),
        "micro-batches per update": (found.micro_batches, call_plan.micro_batches),
    }
    shortened = tuple(f"{now} of {asked} {what}" for what, (now, asked) in told.items() if now != asked)
    return Fitted(call_plan=found, shortened=shortened, fits=update_time.seconds(found) <= budget_s)


def _less(call_plan: CallPlan, name: str, least: int, update_time: UpdateTime, budget_s: float) -> CallPlan:
    """The calls with the largest number of one kind that fits, or else with the least that is allowed."""
    low, high = min(least, getattr(call_plan, name)), getattr(call_plan, name)

    def with_count(count: int) -> CallPlan:
        return replace(call_plan, **{name: count})

    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if update_time.seconds(with_count(middle)) <= budget_s else (low, middle - 1)
    return with_count(low)


def _interval(updates: int, parts: int) -> int:
    return max(1, updates // parts) if parts else 0
