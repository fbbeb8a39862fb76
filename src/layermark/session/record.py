"""From a team to everything raw that is known of its measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from layermark.outcome import Run
from layermark.workloads.base import workload

if TYPE_CHECKING:
    from layermark.session.team import Team


def raw_record(team: Team, prepared: Mapping[str, Any], facts: Mapping[str, Any]) -> Run:
    """Return the run of a team whose first rank said `prepared` at the beginning and `facts` at the end."""
    warm = {name.removesuffix("_s"): seconds for name, seconds in team.warm_up_s.items()}
    return Run(
        spec=team.spec,
        items_per_batch=team.items_per_batch,
        item=workload(team.spec.workload).item,
        settings=prepared["settings"],
        environment={**facts["environment"], "runtime": prepared["versions"]},
        timings_s={**prepared["timings_s"], **warm},
        blocks=tuple(team.blocks),
        memory=facts["memory"],
        clock=prepared["clock"],
        verified=team.verified,
        ceiling=team.ceiling.record(),
        accuracy=prepared.get("accuracy"),
        faults=tuple(dict.fromkeys(team.faults)),
        warnings=tuple(dict.fromkeys([*team.warnings, *team.ceiling.warnings])),
        precision_goal=team.precision_goal,
        alone=tuple(team.alone),
        profile=team.profiled,
        pipeline=team.rank_stats.get("pipeline"),
        communication=team.rank_stats.get("communication"),
        wall_s={**team.phases.seconds, "ceilings": team.ceiling.taken_s},
    )
