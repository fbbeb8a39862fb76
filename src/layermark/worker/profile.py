"""A profile as files: a trace that Perfetto and chrome://tracing open, and a summary by operator and node."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layermark.backends.base import TRACE_FILE, Profile, Program
from layermark.graph import Graph
from layermark.worker import profile_memory
from layermark.worker.profile_nodes import TiedOperator, tied
from layermark.worker.profile_timeline import timeline

_ENDINGS = {"trace": ".trace.json", "table": ".profile.txt", "summary": ".profile.json"}
_ITEM_BYTES = {"32": 4, "16": 2, "bf16": 2, "int8": 1}


def write_profile(
    program: Program,
    folder: Path,
    name: str,
    batches: int,
    *,
    graph: Graph | None = None,
    mode: str = "infer",
    precision: str = "32.32",
) -> dict[str, Any]:
    """Profile a program and write the three files; return their paths and the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {kind: folder / f"{name}{ending}" for kind, ending in _ENDINGS.items()}
    with tempfile.TemporaryDirectory(prefix="layermark-") as aside:
        found = program.profile(Path(aside), batches)
        shutil.move(Path(aside) / TRACE_FILE, files["trace"])
    item_bytes = _ITEM_BYTES[precision.partition(".")[0]]
    rows = tied(found.operators, graph, mode, item_bytes)
    trace = json.loads(files["trace"].read_text(encoding="utf-8"))
    names = [node.name for node in graph] if graph else []
    summary = {
        "batches": batches,
        "pass_s": found.pass_s,
        "window_s": found.pass_s if found.window_s is None else found.window_s,
        "operators": [row.to_json() for row in rows],
        "nodes": names,
        "memory": {name: value for name, value in found.memory.items() if name != "over_time"},
        "liveness": _liveness(found, graph, mode, item_bytes),
        "timeline": timeline(trace, batches, names),
    }
    files["summary"].write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    files["table"].write_text(table(rows, batches), encoding="utf-8")
    return {"files": [str(path) for path in files.values()], **summary}


def _liveness(found: Profile, graph: Graph | None, mode: str, item_bytes: int) -> dict[str, Any] | None:
    """Memory over time: what the runtime told, else what follows from the graph; None where there is neither."""
    if found.memory.get("over_time"):
        return profile_memory.told(found.memory["over_time"], found.memory["alive"])
    return profile_memory.derived(graph, mode, item_bytes) if graph is not None else None


def table(rows: Sequence[TiedOperator], batches: int) -> str:
    """The summary as a text table, the most expensive row first.

    >>> rows = [TiedOperator(operator="gemm", calls=2, seconds=0.003, node=("fc",))]
    >>> print(table([*rows, TiedOperator(operator="add", calls=2, seconds=0.001)], 2), end="")
    operator  calls  ms  share  node
    gemm          2   3    75%  fc
    add           2   1    25%
    2 batches
    """
    total = sum(row.seconds for row in rows) or 1.0
    cells = [("operator", "calls", "ms", "share", "node")]
    for row in rows:
        share = f"{row.seconds / total:.0%}"
        cells.append((row.operator, str(row.calls), f"{row.seconds * 1e3:.4g}", share, " + ".join(row.node)))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    lines = []
    for first, *numbers, node in cells:
        padded = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))]
        lines.append("  ".join([*padded, node]).rstrip())
    return "\n".join([*lines, f"{batches} batch{'es' if batches != 1 else ''}"]) + "\n"
