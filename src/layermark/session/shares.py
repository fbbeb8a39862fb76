"""How a budget is shared: every measurement gets its part of what is left, however short it makes it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from layermark.backends.base import backend
from layermark.outcome import Diagnostic, Outcome, Run
from layermark.session.deadline import Deadline
from layermark.spec import Protocol, Spec
from layermark.workloads.base import task
from layermark.workloads.programs.base import ProgramTask

LEAST_BLOCKS = 4
"""Without these there is no noise floor, so they are measured even where steps are long and the time box is short."""
SHORTEST_BLOCK_S = 0.05
SHORT_SHARE_S = 15.0
"""A measurement with less has no time for a trial, which may wait for a compiler first."""
_LONGEST_BOX = 2
"""So many times its length a time box has at most, with what earlier groups did not use of theirs."""
_AGAIN_SHARE = 0.9
"""Of what is left at the end, for a group that is measured once more: what it took the first time is no promise."""
_FIRST_GUESS_S = 3.0
"""What a measurement takes besides timing, as long as nobody knows better: start, building, proof, warm-up."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a comparison group may use."""

    protocol: Protocol
    """The session's, with shorter blocks where time is short."""
    box_s: float
    """Timed work of all members together."""
    least_blocks: int = LEAST_BLOCKS
    """Blocks that each has at least, whatever the time box says."""
    limit_s: float = math.inf
    """Wall time after which the others would have too little."""
    trials: bool = True
    """Whether `--execution auto` may try before it chooses."""


class Shares:
    """Gives every group its share of what is left; what a group does not use is left for those after it.

    With a budget that also holds for time boxes: what groups that settled early did not use of theirs makes those
    after them longer, up to twice as long, which only results that do not settle make use of.
    """

    def __init__(self, deadline: Deadline, protocol: Protocol, measurements: int) -> None:
        self._deadline, self._protocol, self._waiting = deadline, protocol, measurements
        self._overhead_s: list[float] = []
        self._box_s, self._spare_s = 0.0, 0.0

    def next(self, members: int) -> Share:
        """Return the share of the next group, of so many measurements."""
        left, waiting = self._deadline.left(), self._waiting
        self._waiting -= members
        if math.isinf(left):
            return Share(protocol=self._protocol, box_s=self._protocol.time_box * members)
        fair = left * members / waiting
        box_s = min(_LONGEST_BOX * self._protocol.time_box, self._protocol.time_box + self._spare_s / members)
        timed_s = max(0.0, min(box_s, fair / members - self.overhead_s))
        self._box_s = min(self._protocol.time_box, timed_s) * members
        return Share(
            protocol=shortened(self._protocol, timed_s),
            box_s=timed_s * members,
            least_blocks=LEAST_BLOCKS if timed_s >= LEAST_BLOCKS * SHORTEST_BLOCK_S else 1,
            limit_s=max(fair, left - self.overhead_s * (waiting - members)),
            trials=fair / members >= SHORT_SHARE_S,
        )

    @property
    def overhead_s(self) -> float:
        """About how long a measurement takes besides its timed work, from those that were made."""
        return sum(self._overhead_s) / len(self._overhead_s) if self._overhead_s else _FIRST_GUESS_S

    def used(self, outcomes: Sequence[Outcome], wall_s: float) -> None:
        """Learn from a group that took so long."""
        timed_s = timed_seconds(outcomes)
        self._overhead_s.append(max(0.0, wall_s - timed_s) / len(outcomes))
        self._spare_s = max(0.0, self._spare_s + self._box_s - timed_s)

    def again(self, members: int, *, had_s: float, overhead_s: float) -> Share | None:
        """Return a share of what is left at the end for a group that had a shorter one; None where there is no time.

        `overhead_s` is what it took besides its timed work the first time.
        """
        left = self._deadline.left()
        box_s = min(_LONGEST_BOX * self._protocol.time_box * members, _AGAIN_SHARE * left - overhead_s)
        if math.isinf(left) or box_s <= had_s:
            return None
        return Share(protocol=shortened(self._protocol, box_s / members), box_s=box_s)


def timed_seconds(outcomes: Sequence[Outcome]) -> float:
    """Return how long the blocks of all of them took."""
    return sum(sum(block.samples_ns) / 1e9 for each in outcomes if isinstance(each, Run) for block in each.blocks)


def shortened(protocol: Protocol, timed_s: float) -> Protocol:
    """Return a protocol whose blocks fit into the timed work of a measurement.

    >>> shortened(Protocol(block=0.3), 10.0).block, shortened(Protocol(block=0.3), 0.8).block
    (0.3, 0.2)
    >>> shortened(Protocol(block=0.3), 0.0).block
    0.05
    """
    if timed_s >= LEAST_BLOCKS * protocol.block:
        return protocol
    block = min(protocol.block, max(SHORTEST_BLOCK_S, timed_s / LEAST_BLOCKS))
    return dataclasses.replace(protocol, block=block, min_steps=1)


def without_trial(spec: Spec) -> Spec:
    """Return the same measurement with the plain execution of its runtime in place of `auto`."""
    plain = next((word for word in backend(spec.backend).executions if word != "auto"), "auto")
    if spec.execution != "auto" or isinstance(task(spec), ProgramTask):
        return spec
    return spec.replace(execution=plain)


def as_asked(outcome: Outcome, spec: Spec) -> Outcome:
    """Return what came of a measurement under the spec that was asked for, and say what ran in its place."""
    if outcome.spec == spec:
        return outcome
    if not isinstance(outcome, Run):
        return dataclasses.replace(outcome, spec=spec)
    text = f"the budget left no time for a trial: --execution {outcome.spec.execution} ran in place of {spec.execution}"
    return dataclasses.replace(outcome, spec=spec, warnings=(*outcome.warnings, Diagnostic("no_trial", text)))
