"""How many steps of how many batches fit into a budget."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """Where a profile of a few batches goes, and under which name."""

    folder: Path
    name: str
    batches: int = 10


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """So many timed steps of so many host calls of so many batches; `warm_up` puts an untimed step before them."""

    steps: int
    batches: int
    """Batches in a host call."""
    calls: int = 1
    """Host calls in a step."""
    warm_up: bool = False
    dropped: int = 0
    """So many of the first steps are shown and then left out of the result."""
    scored: int = 0
    """So many batches are run before the steps to count right answers."""
    latencies: bool = False
    """Whether single batches are timed separately where the runtime does not tell when each of a call was done."""
    profile: ProfileRequest | None = None
    reads_ceilings: bool = True
    """Whether ceilings are read; a single short call says nothing about them."""

    alone: int = 0
    """So many steps of the first rank alone follow, to tell what ranks cost each other."""

    @property
    def rounds(self) -> int:
        """Steps, those that are not timed included."""
        return self.steps + self.warm_up + bool(self.scored) + self.alone

    @property
    def step_batches(self) -> int:
        """Batches in a step."""
        return self.calls * self.batches


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What was found out before the first step: seconds of one batch, and of one verification."""

    batch_s: float
    proof_s: float

    @property
    def reserve_s(self) -> float:
        """What is kept back for the proof after the steps and for ending."""
        return 1.5 * self.proof_s + 1.0

    def seconds(self, plan: StepPlan) -> float:
        """About how long the steps take."""
        return plan.rounds * plan.step_batches * self.batch_s


_MARGIN = 0.9
_LEAST_CALLS = 12
"""Calls that a measurement makes at least: those of its warm-up, those that open a block, and a sample."""
_CALL_S = 0.02
"""What a host call costs besides its batches: waiting until the machine is quiet, and the line."""
_SHORTEST_CALL_S = 0.01
READINGS = 8
"""How often the ceilings are read at most, spread over the steps."""
_READING_S = 0.3


def fit(plan: StepPlan, cost: Cost, left_s: float) -> StepPlan:
    """Return what fits into the time left: fewer calls in a step, then shorter ones, then fewer steps, at least one.

    >>> def shown(plan, batch_s, left_s):
    ...     found = fit(plan, Cost(batch_s=batch_s, proof_s=0.0), left_s)
    ...     return found.steps, found.calls, found.batches
    >>> shown(StepPlan(steps=5, batches=1000), 0.01, 14.0)
    (5, 1, 202)
    >>> shown(StepPlan(steps=5, batches=1000), 2.0, 7.0)
    (1, 1, 1)
    >>> shown(StepPlan(steps=5, calls=50, batches=100), 0.001, 6.0)
    (5, 5, 100)
    """
    usable = _MARGIN * (left_s - cost.reserve_s) - _READING_S * min(plan.steps, READINGS)
    if cost.batch_s <= 0 or cost.seconds(plan) + _CALL_S * plan.rounds <= usable:
        return plan
    least = min(plan.batches, max(1, math.ceil(_SHORTEST_CALL_S / cost.batch_s)))
    batches = int((usable / plan.rounds - _CALL_S) / cost.batch_s)
    if batches >= least:
        return _narrowed(plan, min(batches, plan.step_batches))
    rounds, untimed = int(usable / (least * cost.batch_s + _CALL_S)), plan.rounds - plan.steps
    return dataclasses.replace(_narrowed(plan, least), steps=min(plan.steps, max(1, rounds - untimed)))


def fitting_step(batches: int, batch_s: float, left_s: float, whole: int = 1) -> int:
    """Return how many batches of a step fit into the time that a measurement has left, at least one update's.

    >>> fitting_step(1000, 0.001, 10.0), fitting_step(1000, 0.05, 10.0), fitting_step(1000, 5.0, 10.0, whole=4)
    (750, 14, 4)
    """
    fitting = int(_MARGIN * left_s / (_LEAST_CALLS * batch_s)) if batch_s else batches
    return batches if fitting >= batches else max(whole, fitting // whole * whole)


def _narrowed(plan: StepPlan, step_batches: int) -> StepPlan:
    """Return the same plan with so many batches in a step, or a few less where calls stay whole."""
    calls = max(1, step_batches // plan.batches)
    batches = min(plan.batches, step_batches)
    return dataclasses.replace(plan, calls=calls, batches=batches, scored=min(plan.scored, calls * batches))
