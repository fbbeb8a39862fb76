"""What a budget has left at the end goes to what has no figure for want of time, then to the widest intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from layermark import stats
from layermark.outcome import Outcome, Run, Skipped
from layermark.session.failure import BUDGET
from layermark.session.known_trials import Choice
from layermark.session.shares import Share, Shares
from layermark.session.writer import SessionWriter


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A comparison group, what came of it, and what that took."""

    group: str
    choices: Sequence[Choice]
    outcomes: Sequence[Outcome]
    others: Sequence[Outcome] = ()
    """Of members that were never measured."""
    box_s: float
    """Timed work that all of them could use."""
    overhead_s: float
    """Wall time besides."""

    @property
    def widest(self) -> float:
        """The widest interval of a member that has not settled, as a share of its rate; 0 where all have."""
        return max(map(_unsettled, self.outcomes), default=0.0)


def look_again(
    found: Sequence[Measured],
    shares: Shares,
    measure: Callable[[Sequence[Choice], Share], list[Outcome]],
    writer: SessionWriter,
) -> None:
    """Measure groups that have not settled once more, where there is time for longer than before.

    Those without a figure come first, then the widest. What has narrower intervals, or was found wrong, takes the
    place of what was there.
    """
    for each in sorted(found, key=lambda each: each.widest, reverse=True):
        share = shares.again(len(each.choices), had_s=each.box_s, overhead_s=each.overhead_s) if each.widest else None
        if share is None:
            continue
        outcomes = measure(each.choices, share)
        if _better(outcomes, each.outcomes):
            writer.replace(each.group, [*each.others, *outcomes])


def _unsettled(outcome: Outcome) -> float:
    """How wide the interval of a figure is where that is more than was asked for, endless without a figure; else 0."""
    if isinstance(outcome, Skipped) and outcome.code == BUDGET:
        return math.inf
    if not isinstance(outcome, Run) or outcome.precision_goal is None or _wrong(outcome):
        return 0.0
    rate = stats.throughput(outcome.blocks, outcome.items_per_batch)
    if rate is None:
        return 0.0
    half = math.inf if rate.half_width is None else rate.half_width
    return half if half > outcome.precision_goal else 0.0


def _better(outcomes: Sequence[Outcome], before: Sequence[Outcome]) -> bool:
    """Whether a second look says more: every figure again, and narrower; that something is wrong counts in any case."""
    if any(isinstance(each, Run) and _wrong(each) for each in outcomes):
        return True
    pairs = zip(outcomes, before, strict=True)
    complete = all(_has_figure(each) or not _has_figure(old) for each, old in pairs)
    return complete and max(map(_unsettled, outcomes)) < max(map(_unsettled, before))


def _wrong(run: Run) -> bool:
    return bool(run.faults) or (run.verified is not None and not run.verified.ok)


def _has_figure(outcome: Outcome) -> bool:
    return isinstance(outcome, Run) and bool(outcome.blocks)
