"""A profile as files: a trace that Perfetto and chrome://tracing open, and a summary by operator."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layermark.backends.base import TRACE_FILE, OperatorTime, Program

_ENDINGS = {"trace": ".trace.json", "table": ".profile.txt", "summary": ".profile.json"}


def write_profile(program: Program, folder: Path, name: str, batches: int) -> dict[str, Any]:
    """Profile a program and write the three files; answers their paths and the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {kind: folder / f"{name}{ending}" for kind, ending in _ENDINGS.items()}
    with tempfile.TemporaryDirectory(prefix="layermark-") as aside:
        rows = sorted(program.profile(Path(aside), batches), key=lambda row: -row.seconds)
        shutil.move(Path(aside) / TRACE_FILE, files["trace"])
    summary = {"batches": batches, "operators": [row._asdict() for row in rows]}
    files["summary"].write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    files["table"].write_text(table(rows, batches), encoding="utf-8")
    return {"files": [str(path) for path in files.values()], **summary}


def table(rows: Sequence[OperatorTime], batches: int) -> str:
    """The summary as a text table, the most expensive operator first.

    >>> print(table([OperatorTime("gemm", 2, 0.003), OperatorTime("add", 2, 0.001)], 2), end="")
    operator  calls  ms  share
    gemm          2   3    75%
    add           2   1    25%
    2 batches
    """
    total = sum(row.seconds for row in rows) or 1.0
    cells = [("operator", "calls", "ms", "share")]
    cells += [(row.operator, str(row.calls), f"{row.seconds * 1e3:.4g}", f"{row.seconds / total:.0%}") for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in cells)
    ]
    return "\n".join([*lines, f"{batches} batch{'es' if batches != 1 else ''}"]) + "\n"
