"""What comes of a measurement in which something goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from layermark.errors import Unsupported, WorkerFailed
from layermark.outcome import Failed, Outcome, Skipped
from layermark.spec import Spec

if TYPE_CHECKING:
    from layermark.session.team import Team

BUDGET = "budget"
"""The code of outcomes that a budget kept from being measured."""


def failed(spec: Spec, failure: Exception, *, out_of_budget: bool) -> Outcome:
    """Return what came of a measurement in which this went wrong."""
    if out_of_budget:
        return not_begun(spec)
    if isinstance(failure, Unsupported):
        return Skipped(spec=spec, reason=str(failure), code=failure.code, instead=failure.instead)
    if isinstance(failure, WorkerFailed):
        return Failed(spec=spec, reason=failure.reason, log=failure.log, code=failure.code)
    return Failed(spec=spec, reason=str(failure), code="wrong_request")


def not_begun(spec: Spec) -> Skipped:
    """Return what came of a measurement for which the budget left no time."""
    return Skipped(spec=spec, reason="not measured: the budget was used up before the first step", code=BUDGET)


@contextmanager
def ended_by_failure(team: Team) -> Iterator[None]:
    """End a team with what fails outside of its phases: another instance may be lost while a line is printed there."""
    try:
        yield
    except WorkerFailed as failure:
        if team.running:
            team.fail(failure.code, failure.reason)
