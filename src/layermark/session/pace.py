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
    """So many timed host calls of so many batches; `warm_up` puts an untimed one before them."""

    steps: int
    batches: int
    warm_up: bool = False
    profile: Profile | None = None
    judged: bool = True
    """Whether threads and ceilings are checked; a single short call says nothing about either."""

    @property
    def calls(self) -> int:
        """Host calls, the untimed one included."""
        return self.steps + self.warm_up


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
        return course.calls * course.batches * self.batch_s


_MARGIN = 0.9
_CALL_S = 0.02
"""What a host call costs besides its batches: waiting until the machine is quiet, and the line."""
_SHORTEST_CALL_S = 0.01
READINGS = 8
"""How often the ceilings are read at most, spread over the steps."""
_READING_S = 0.3


def fitted(course: Course, pace: Pace, left_s: float) -> Course:
    """The course that fits into what is left: shorter calls first, then fewer of them, at least one of one batch.

    >>> fitted(Course(steps=5, batches=1000), Pace(batch_s=0.01, proof_s=0.0), 14.0)
    Course(steps=5, batches=202, warm_up=False, profile=None, judged=True)
    >>> fitted(Course(steps=5, batches=1000), Pace(batch_s=2.0, proof_s=0.0), 7.0)
    Course(steps=1, batches=1, warm_up=False, profile=None, judged=True)
    """
    usable = _MARGIN * (left_s - pace.reserve_s) - _READING_S * min(course.steps, READINGS)
    if pace.batch_s <= 0 or pace.seconds(course) + _CALL_S * course.calls <= usable:
        return course
    least = min(course.batches, max(1, math.ceil(_SHORTEST_CALL_S / pace.batch_s)))
    batches = int((usable / course.calls - _CALL_S) / pace.batch_s)
    if batches >= least:
        return dataclasses.replace(course, batches=min(batches, course.batches))
    calls = int(usable / (least * pace.batch_s + _CALL_S))
    return dataclasses.replace(course, batches=least, steps=min(course.steps, max(1, calls - course.warm_up)))
