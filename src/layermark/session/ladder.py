"""The data-stall ladder: the same network on synthetic, generated and real data, in alternation."""

from __future__ import annotations

from layermark import stats
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.process import Crew
from layermark.outcome import Run, Skipped
from layermark.session.deadline import Deadline
from layermark.session.group import GroupMeasurement
from layermark.session.listener import Listener
from layermark.spec import Protocol, Spec


def climb(spec: Spec, protocol: Protocol, listener: Listener | None = None) -> stats.Ladder:
    """Measure the three rungs as one comparison group, each proven, and tell what real data cost."""
    rungs = {name: spec.replace(data=name) for name in stats.RUNGS}
    with Crew() as crew:
        measurement = GroupMeasurement(crew, protocol, listener or Listener(), Deadline(None), probing=False)
        outcomes = measurement.measure(list(rungs.values()), protocol.time_box * len(rungs))
    runs = {}
    for name, outcome in zip(rungs, outcomes, strict=True):
        if isinstance(outcome, Skipped):
            raise Unsupported(f"{name} data: {outcome.reason}")
        if not isinstance(outcome, Run):
            raise WorkerFailed(f"{name} data: {outcome.reason}", outcome.log)
        if outcome.faults or not (outcome.verified and outcome.verified.ok):
            raise WorkerFailed(f"{name} data: {'; '.join(outcome.faults) or 'the results are wrong'}")
        runs[name] = outcome
    return stats.ladder(runs)
