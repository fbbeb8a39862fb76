"""The oracle as the session sees it: right answers in float64, from a process of their own, cached."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from layermark.errors import WorkerFailed
from layermark.launch.process import Crew, Worker
from layermark.outcome import SCHEMA_VERSION
from layermark.spec import COMPARED, Spec
from layermark.workloads.base import task
from layermark.workloads.programs.base import ProgramTask

_CACHE_BYTES = 2 << 30
# What an answer does not depend on, besides the fields that a comparison group leaves open.
_IRRELEVANT = (*COMPARED, "device", "data", "batches_per_step", "threads", "cache", "subnormals", "allocator", "plan")


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
        path = cache_folder() / f"{_answer_key(spec)}.npz"
        if path.exists():
            os.utime(path)
            return path
        _make_room(path.parent)
        worker = self._worker = self._worker or self._crew.hire({})
        try:
            worker.call("oracle", self._timeout, spec=spec.to_json(), path=str(path))
        except WorkerFailed as failure:
            self._worker = None
            self._crew.dismiss(worker)
            raise WorkerFailed(f"the reference could not be computed: {failure.reason}", failure.log) from None
        return path


def cache_folder() -> Path:
    """Where the oracle's answers are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "layermark" / "oracle"


def _answer_key(spec: Spec) -> str:
    doc: dict[str, Any] = {name: value for name, value in spec.to_json().items() if name not in _IRRELEVANT}
    doc["params"] = {name: value for name, value in doc["params"].items() if name != "cell"}
    doc |= {"schema": SCHEMA_VERSION, "code": _code_version()}
    return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()[:24]


def _code_version() -> str:
    """A digest of the code that the answers depend on: an edited reference never meets a stale answer."""
    root = Path(__file__).parent.parent
    files = [root / "reference.py", root / "laws.py", root / "graph.py", root / "worker" / "oracle.py"]
    files += sorted(root.glob("ops/*.py")) + sorted(root.glob("workloads/**/*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _make_room(folder: Path) -> None:
    if not folder.exists():
        return
    kept = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in kept:
        total += file.stat().st_size
        if total > _CACHE_BYTES:
            file.unlink(missing_ok=True)
