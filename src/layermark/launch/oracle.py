"""The oracle as the session sees it: right answers in float64, from a process of their own, cached."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from layermark import cache
from layermark.errors import WorkerFailed
from layermark.launch.process import Crew, Worker
from layermark.outcome import SCHEMA_VERSION
from layermark.spec import COMPARED, Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task
from layermark.workloads.programs.base import ProgramTask

_CACHE_BYTES = 2 << 30
# What an answer does not depend on, besides the fields that a comparison group leaves open.
_IRRELEVANT = (
    *COMPARED,
    "partials",
    "device",
    "data",
    "batches_per_step",
    "threads",
    "cache",
    "subnormals",
    "allocator",
    "plan",
    "loading",
)


class Oracle:
    """Answers in float64, computed once per graph, weights and inputs, and cached in the user's cache folder."""

    def __init__(self, crew: Crew, timeout: float) -> None:
        self._crew = crew
        self._timeout = timeout
        self._worker: Worker | None = None

    def answer(self, spec: Spec) -> Path:
        """The file that holds the answer; raises `Unsupported` or `WorkerFailed` when there can be none.

        A workload that is no graph proves itself: for it the file is empty and nobody reads it.
        """
        if isinstance(task(spec), ProgramTask):
            return Path(os.devnull)
        path = cache.folder("oracle") / f"{_answer_key(spec)}.npz"
        if path.exists():
            os.utime(path)
            return path
        cache.make_room(path.parent, _CACHE_BYTES)
        worker = self._worker = self._worker or self._crew.hire({})
        try:
            worker.call("oracle", self._timeout, spec=spec.to_json(), path=str(path))
        except WorkerFailed as failure:
            self._worker = None
            self._crew.dismiss(worker)
            raise WorkerFailed(f"the reference could not be computed: {failure.reason}", failure.log) from None
        return path


def _answer_key(spec: Spec) -> str:
    doc: dict[str, Any] = {name: value for name, value in spec.to_json().items() if name not in _IRRELEVANT}
    doc["params"] = {name: value for name, value in doc["params"].items() if name != "cell"}
    doc["weights"] = checkpoint.digest(spec.weights) if spec.weights else ""
    if spec.data == "real":
        doc["pictures"] = _pictures(spec)
    doc |= {"schema": SCHEMA_VERSION, "code": cache.code_version()}
    return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()[:24]


def _pictures(spec: Spec) -> dict[str, Any]:
    """Which pictures are seen, and how: an answer about others is none."""
    from layermark.data.feed import fingerprint, opened

    how = ("split", "normalise", "augment", "shuffle", "skip_bad")
    loading = spec.to_json()["loading"]
    return {name: loading[name] for name in how} | {"files": fingerprint(opened(spec.loading)[0])}
