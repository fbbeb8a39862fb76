"""Where the time goes in ONNX Runtime: its own profiler, on a session of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto
from onnxruntime import InferenceSession

from layermark.backends.base import TRACE_FILE, OperatorTime
from layermark.backends.onnxruntime import process

_KERNEL = "_kernel_time"


def profiled(
    model: ModelProto,
    options: process.Options,
    steps_of: Callable[[InferenceSession], Sequence[Callable[[], object]]],
    folder: Path,
    batches: int,
) -> list[OperatorTime]:
    """Run some batches in a session that profiles; nodes keep the names of the graph."""
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "onnxruntime")
    session = process.session(model, options)
    for step in itertools.islice(itertools.cycle(steps_of(session)), batches):
        step()
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    (folder / TRACE_FILE).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return by_operator(events)


def by_operator(events: Sequence[dict[str, Any]]) -> list[OperatorTime]:
    """Kernel times of the runtime's events, added up by operator."""
    found: dict[str, tuple[int, float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            calls, seconds = found.get(event["args"]["op_name"], (0, 0.0))
            found[event["args"]["op_name"]] = (calls + 1, seconds + event["dur"] / 1e6)
    return [OperatorTime(name, calls, seconds) for name, (calls, seconds) in found.items()]
