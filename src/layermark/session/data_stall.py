"""The data-stall ladder: the same network on synthetic, generated and real data, in alternation."""

from __future__ import annotations

from layermark import stats
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.process import Crew
from layermark.outcome import Run, Skipped
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.session.resources import Resources
from layermark.session.shares import Shares, without_trial
from layermark.session.team import Team
from layermark.session.until_settled import measure_until_settled
from layermark.spec import Protocol, Spec


def measure_data_stall(
    spec: Spec, protocol: Protocol, listener: Listener | None = None, budget_s: float | None = None
) -> stats.Ladder:
    """Measure the three rungs as one comparison group, each proven, and tell what real data cost."""
    rungs = {name: spec.replace(data=name) for name in stats.RUNGS}
    deadline = Deadline(budget_s)
    with Crew() as crew:
        resources = Resources.of(crew, deadline, protocol.timeout, protocol.memory_limit)
        share = Shares(deadline, protocol, len(rungs)).next(len(rungs))
        teams = [Team(rung if share.trials else without_trial(rung), resources, listener) for rung in rungs.values()]
        outcomes = measure_until_settled(
            teams,
            share.protocol,
            deadline,
            box_s=share.box_s,
            least_blocks=share.least_blocks,
            ceilings=False,
            listener=listener,
        )
    runs = {}
    for name, outcome in zip(rungs, outcomes, strict=True):
        if isinstance(outcome, Skipped):
            raise Unsupported(f"{name} data: {outcome.reason}")
        if not isinstance(outcome, Run):
            raise WorkerFailed(f"{name} data: {outcome.reason}", outcome.log)
        if outcome.faults or not (outcome.verified and outcome.verified.ok):
            raise WorkerFailed(f"{name} data: {'; '.join(map(str, outcome.faults)) or 'the results are wrong'}")
        runs[name] = outcome
    return stats.ladder(runs)
