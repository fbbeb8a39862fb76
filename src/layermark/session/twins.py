"""Another team that is only proven, beside the one that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layermark.errors import WorkerFailed
from layermark.outcome import Run, Verification

if TYPE_CHECKING:
    from layermark.session.team import Team


def proven(twin: Team) -> Verification | None:
    """Build and prove a team on random values, and end it; raise `WorkerFailed` if that cannot be done."""
    twin.prepare() and twin.prove()
    outcome = twin.finish()
    if not isinstance(outcome, Run):
        raise WorkerFailed(f"on random values: {outcome.reason}", code=outcome.code)
    return outcome.verified
