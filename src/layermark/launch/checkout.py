"""Two checkouts of a project, and a measurement with the code of either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layermark.errors import UserError, WorkerFailed
from layermark.spec import Protocol, Spec

# The record is sent, and only what every release offers is called: a checkout may be an old one.
_MEASURE = """
import json, sys
import layermark
spec, protocol = json.load(sys.stdin)
document = layermark.measure(layermark.Spec.from_json(spec), layermark.Protocol(**protocol))
json.dump(document, open(sys.argv[1], "w"))
"""
_LOG_LINES = 15


def project(folder: Path) -> Path:
    """Return the root of the Git project that a folder belongs to."""
    return Path(_git(folder, "rev-parse", "--show-toplevel"))


@contextmanager
def checkout(root: Path, ref: str) -> Iterator[Path]:
    """Give a folder with the project as it was at a commit, branch or tag; it is removed afterwards."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", wrong=f"--base {ref}: no such commit")
    with tempfile.TemporaryDirectory(prefix="layermark-base-") as folder:
        place = str(Path(folder) / root.name)
        _git(root, "worktree", "add", "--quiet", "--detach", place, commit)
        try:
            yield Path(place)
        finally:
            _git(root, "worktree", "remove", "--force", place)


def code_of(root: Path) -> Path:
    """Return the folder of a project that Python imports from: its `src`, else the project itself."""
    return root / "src" if (root / "src").is_dir() else root


def import_path(root: Path) -> dict[str, str]:
    """Return the variables that make Python import the code of a checkout before any other.

    The working directory would come first where a module is run by its name, and may be the other checkout.
    """
    paths = [str(code_of(root)), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}


def measure_in(root: Path | None, spec: Spec, protocol: Protocol) -> dict[str, Any]:
    """Measure a spec in a process of its own, with a checkout's code or the one that runs, and return the document."""
    environment = {**os.environ, **(import_path(root) if root else {})}
    with tempfile.TemporaryDirectory(prefix="layermark-gate-") as folder:
        answer = Path(folder) / "document.json"
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(answer)],
            input=json.dumps([spec.brief(), protocol.brief()]),
            env=environment,
            cwd=root,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise _failed(done, root.name if root else spec.workload)
        found: Mapping[str, Any] = json.loads(answer.read_text())
    return dict(found)


def _failed(done: subprocess.CompletedProcess[str], what: str) -> WorkerFailed:
    lines = done.stderr.strip().splitlines()
    return WorkerFailed(f"{what}: {lines[-1] if lines else 'ended early'}", "\n".join(lines[-_LOG_LINES:]))


def _git(folder: Path, *arguments: str, wrong: str = "") -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        raise UserError(wrong or f"git {arguments[0]}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout.strip()
