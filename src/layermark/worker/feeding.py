"""Tasks whose inputs are pictures from files."""

from __future__ import annotations

import dataclasses

from layermark.spec import Spec
from layermark.workloads.base import Task, task


def fed_task(spec: Spec) -> Task:
    """The task of a spec; with `--data real` its inputs are the pictures."""
    made = task(spec)
    if spec.data != "real":
        return made
    from layermark.data.feed import Pictures

    return dataclasses.replace(made, stream=Pictures(made.graph, spec, made.drawn))
