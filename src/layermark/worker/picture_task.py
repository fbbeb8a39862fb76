"""Tasks whose inputs are pictures from files."""

from __future__ import annotations

import dataclasses

from layermark.spec import Group, Spec
from layermark.workloads.base import Task, task


def fed_task(spec: Spec, group: Group | None = None) -> Task:
    """The task of a spec; with `--data real` its inputs are the pictures. The replicas of a group share them."""
    made = task(spec)
    if group is not None:
        made = dataclasses.replace(made, group=group, ring=spec.ring)
    if spec.data != "real":
        return made
    from layermark.data.feed import Pictures
    from layermark.data.order import ALL, Shard

    shard = Shard(group.replica, group.replicas) if group else ALL
    part = spec.loading.data_percentage
    stream = Pictures(made.graph, spec, made.drawn_of, mixed=made.mixed, shard=shard, percentage=part)
    return dataclasses.replace(made, stream=stream)
