"""Where the time goes in OpenVINO: the performance counters of its operations."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino

from layermark.backends._onnx.writer import Array
from layermark.backends.base import TRACE_FILE, OperatorTime

Counter = tuple[str, str, float]
"""Name and kind of an operation, and its seconds."""


def profiled(
    model: openvino.CompiledModel, host: Sequence[Sequence[Array]], folder: Path, batches: int
) -> list[OperatorTime]:
    """Run some batches through a model that counts."""
    request, events, found = model.create_infer_request(), [], []
    request.infer(list(host[0]))  # the first call also sets things up
    for batch in itertools.islice(itertools.cycle(host), batches):
        began = time.perf_counter()
        request.infer(list(batch))
        counters = list(_counters(request))
        events += in_a_row(counters, began)
        found += counters
    (folder / TRACE_FILE).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return by_operator(found)


def _counters(request: openvino.InferRequest) -> list[Counter]:
    executed = openvino.ProfilingInfo.Status.EXECUTED
    return [
        (each.node_name, each.node_type, each.real_time.total_seconds())
        for each in request.get_profiling_info()
        if each.status == executed
    ]


def in_a_row(counters: Sequence[Counter], began_s: float) -> list[dict[str, Any]]:
    """Trace events of one batch. The counters hold no beginnings, so each operation begins where the last one ended."""
    events, now = [], began_s
    for name, kind, seconds in counters:
        events.append({"ph": "X", "pid": 0, "tid": 0, "name": name, "cat": kind, "ts": now * 1e6, "dur": seconds * 1e6})
        now += seconds
    return events


def by_operator(counters: Sequence[Counter]) -> list[OperatorTime]:
    """The counters, added up by kind of operation."""
    found: dict[str, tuple[int, float]] = {}
    for _, kind, seconds in counters:
        calls, total = found.get(kind, (0, 0.0))
        found[kind] = (calls + 1, total + seconds)
    return [OperatorTime(kind, calls, total) for kind, (calls, total) in found.items()]
