"""`train.py --pipeline-splits auto`: names in its place, so that stages take equally long."""

from __future__ import annotations

import dataclasses

from layermark.errors import WorkerFailed
from layermark.seeds.cnns.train_recipe import spec_of
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.seeds.run import TIMEOUT_S
from layermark.session.balance import cut_as_estimated, cut_as_measured
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.spec import Spec

_SHARE = 0.25
"""Measuring pieces may take so much of a budget; then the work of each stands for its time."""


class _Told(Listener):
    """Keeps what a person should know until it can be printed."""

    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


def evenly_cut(request: TrainRequest, deadline: Deadline) -> TrainRequest:
    """Return the request with names in place of `auto`, and a line that tells them; any other as it is.

    A run that goes on has the names among its options, and so the same stages.
    """
    spec, told = spec_of(request), _Told()
    found = _cut(spec, min(TIMEOUT_S, deadline.share(_SHARE)), told)
    if found is spec:
        return request
    values = {**request.values, "pipeline_splits": found.splits}
    notes = (*request.notes, *told.notes)
    return dataclasses.replace(request, pipeline_splits=found.splits, values=values, notes=notes)


def _cut(spec: Spec, timeout: float, told: Listener) -> Spec:
    try:
        return cut_as_measured(spec, timeout, told)
    except WorkerFailed as failure:
        if failure.code != "hung":
            raise
        return cut_as_estimated(spec, told)
