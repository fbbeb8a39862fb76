"""The oracle as the session sees it: right answers in float64, from a process of their own, cached."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layermark import cache
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.process import Crew, Worker
from layermark.outcome import SCHEMA_VERSION
from layermark.spec import COMPARED, Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task
from layermark.workloads.programs.base import ProgramTask

_CACHE_BYTES = 2 << 30
_KEPT_BYTES = 1 << 30
"""A worker that holds more after an answer is ended: whoever is measured may need it."""
# What an answer does not depend on, besides the fields that a comparison group leaves open.
_IRRELEVANT = (
    *COMPARED,
    "partials",
    "norms",
    "device",
    "data",
    "batches_per_step",
    "threads",
    "cache",
    "subnormals",
    "allocator",
    "plan",
    "loading",
    "pipeline_schedule",
    "pipeline_splits",
    "bucket_bytes",
)


class Oracle:
    """What tasks give in float64, computed once per graph, weights and inputs, and kept in the user's cache folder."""

    def __init__(self, crew: Crew, timeout: Callable[[], float]) -> None:
        self._crew = crew
        self._timeout = timeout
        self._worker: Worker | None = None
        self._begun: Path | None = None
        self._failures: dict[Path, Exception] = {}

    def begin(self, spec: Spec) -> None:
        """Start to compute an answer without waiting for it. Whatever goes wrong is told by `answer`."""
        path = _place(spec)
        if path is None or path.exists() or self._begun:
            return
        cache.make_room(path.parent, _CACHE_BYTES)
        self._worker = self._worker or self._crew.hire({})
        self._begun = path
        try:
            self._worker.begin("oracle", spec=spec.to_json(), path=str(path))
        except WorkerFailed as failure:
            self._fail(failure)

    def settle(self) -> None:
        """Wait until what was begun is computed."""
        if self._begun and self._worker:
            try:
                self._worker.finish(self._timeout())
                self._begun = None
                self._make_room()
            except (Unsupported, UserError, WorkerFailed) as failure:
                self._fail(failure)

    def _make_room(self) -> None:
        """End a worker that has not given back what a large answer took."""
        if self._worker and cpu.resident_bytes(self._worker.pid) > _KEPT_BYTES:
            self._crew.dismiss(self._worker)
            self._worker = None

    def _fail(self, failure: Exception) -> None:
        if isinstance(failure, WorkerFailed) and self._worker:
            self._crew.dismiss(self._worker)
            self._worker = None
            reason = f"the reference could not be computed: {failure.reason}"
            failure = WorkerFailed(reason, failure.log, code=failure.code)
        if self._begun:
            self._failures[self._begun] = failure
        self._begun = None

    def known(self, spec: Spec) -> bool:
        """Return whether the answer need not be computed any more."""
        path = _place(spec)
        return path is None or path.exists()

    def seconds(self, spec: Spec, within: float) -> float:
        """Return about how long the answer of a spec in training takes: none if it is known.

        It is infinite if even a small piece of it is not computed within so many seconds.
        """
        if self.known(spec):
            return 0.0
        self.settle()
        worker = self._worker = self._worker or self._crew.hire({})
        try:
            return float(worker.call("oracle_seconds", within, spec=spec.to_json())["seconds"])
        except WorkerFailed:
            self._crew.dismiss(worker)
            self._worker = None
            return math.inf

    def answer(self, spec: Spec) -> Path:
        """The file that holds the answer; raises `Unsupported` or `WorkerFailed` when there can be none.

        A workload that is no graph proves itself: for it the file is empty and nobody reads it.
        """
        path = _place(spec)
        if path is None:
            return Path(os.devnull)
        if self._begun != path:
            self.settle()
            if path not in self._failures:
                self.begin(spec)
        self.settle()
        if path in self._failures:
            raise self._failures.pop(path)
        os.utime(path)
        return path


def _place(spec: Spec) -> Path | None:
    """Return where an answer is kept; None for a workload that is no graph and proves itself."""
    if isinstance(task(spec), ProgramTask):
        return None
    return cache.folder("oracle") / f"{_answer_key(spec)}.npz"


def _answer_key(spec: Spec) -> str:
    doc: dict[str, Any] = {name: value for name, value in spec.to_json().items() if name not in _IRRELEVANT}
    if spec.mode == "train":
        doc["precision"] = spec.precision  # what rounding may do to an update is part of the answer
        doc["stages"] = len(spec.splits) + 1  # the proof of a pipeline has a micro-batch for each
        doc["sharers"] = spec.sharers  # so has that of ranks that share their updates
    doc["params"] = {name: value for name, value in doc["params"].items() if name != "cell"}
    doc["weights"] = checkpoint.digest(spec.weights) if spec.weights else ""
    if spec.data == "real":
        doc["pictures"] = _pictures(spec)
    doc |= {"schema": SCHEMA_VERSION, "code": cache.code_version()}
    return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()[:24]


def _pictures(spec: Spec) -> dict[str, Any]:
    """Which pictures are seen, and how: an answer about others is none."""
    from layermark.data.feed import fingerprint, opened

    how = ("split", "normalise", "augment", "shuffle", "skip_bad", "data_percentage")
    return {name: getattr(spec.loading, name) for name in how} | {"files": fingerprint(opened(spec.loading)[0])}
