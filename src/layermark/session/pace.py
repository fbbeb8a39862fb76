"""How many steps of how many batches fit into a budget."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where a profile of a few batches goes, and under which name."""

    folder: Path
    name: str
    batches: int = 10


@dataclass(frozen=True, kw_only=True)
class Course:
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
    """Whether single batches are timed apart where the runtime does not tell when each of a call was done."""
    profile: Profile | None = None
    judged: bool = True
    """Whether threads and ceilings are checked; a single short call says nothing about either."""

    @property
    def rounds(self) -> int:
        """Steps, those that are not timed included."""
        return self.steps + self.warm_up + bool(self.scored)

    @property
    def step_batches(self) -> int:
        """Batches in a step."""
        return self.calls * self.batches


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What was found out before the first step: seconds of one batch, and of one verification."""

    batch_s: float
    proof_s: float

    @property
    def reserve_s(self) -> float:
        """What is kept back for the proof after the steps and for ending."""
        return 1.5 * self.proof_s + 1.0

    def seconds(self, course: Course) -> float:
        """About how long a course takes."""
        return course.rounds * course.step_batches * self.batch_s


_MARGIN = 0.9
_CALL_S = 0.02
"""What a host call costs besides its batches: waiting until the machine is quiet, and the line."""
_SHORTEST_CALL_S = 0.01
READINGS = 8
"""How often the ceilings are read at most, spread over the steps."""
_READING_S = 0.3


def fitted(course: Course, pace: Pace, left_s: float) -> Course:
    """The course that fits into what is left: fewer calls in a step, then shorter ones, then fewer steps, at least one.

    >>> def shown(course, batch_s, left_s):
    ...     found = fitted(course, Pace(batch_s=batch_s, proof_s=0.0), left_s)
    ...     return found.steps, found.calls, found.batches
    >>> shown(Course(steps=5, batches=1000), 0.01, 14.0)
    (5, 1, 202)
    >>> shown(Course(steps=5, batches=1000), 2.0, 7.0)
    (1, 1, 1)
    >>> shown(Course(steps=5, calls=50, batches=100), 0.001, 6.0)
    (5, 5, 100)
    """
    usable = _MARGIN * (left_s - pace.reserve_s) - _READING_S * min(course.steps, READINGS)
    if pace.batch_s <= 0 or pace.seconds(course) + _CALL_S * course.rounds <= usable:
        return course
    least = min(course.batches, max(1, math.ceil(_SHORTEST_CALL_S / pace.batch_s)))
    batches = int((usable / course.rounds - _CALL_S) / pace.batch_s)
    if batches >= least:
        return _narrowed(course, min(batches, course.step_batches))
    rounds, untimed = int(usable / (least * pace.batch_s + _CALL_S)), course.rounds - course.steps
    return dataclasses.replace(_narrowed(course, least), steps=min(course.steps, max(1, rounds - untimed)))


def _narrowed(course: Course, step_batches: int) -> Course:
    """The same course with so many batches in a step, or a few less where calls stay whole."""
    calls = max(1, step_batches // course.batches)
    batches = min(course.batches, step_batches)
    return dataclasses.replace(course, calls=calls, batches=batches, scored=min(course.scored, calls * batches))
