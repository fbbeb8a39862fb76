"""The proof on random values: another team, beside the one that is measured, which is proven and never timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layermark.errors import WorkerFailed
from layermark.outcome import Run, Verification

if TYPE_CHECKING:
    from layermark.session.team import Team


def prove_on_random_values(twin: Team) -> Verification | None:
    """Build and prove a team on random values, and end it; raise `WorkerFailed` if that cannot be done."""
    twin.prepare() and twin.prove()
    outcome = twin.finish()
    if not isinstance(outcome, Run):
        raise WorkerFailed(f"on random values: {outcome.reason}", code=outcome.code)
    return outcome.verified
