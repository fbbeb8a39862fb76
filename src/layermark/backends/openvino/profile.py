"""Where the time goes in OpenVINO: the performance counters of its operations."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import openvino

from layermark.backends._onnx.writer import Array
from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import Profile

LANE = "operations, one after the other"
_JOINED = "originalLayersNames"
"""Where the executed model says which operations of the read one became this one."""


class Counter(NamedTuple):
    """What the runtime counted for one executed operation."""

    name: str
    kind: str
    kernel: str
    seconds: float


def profiled(model: openvino.CompiledModel, host: Sequence[Sequence[Array]], folder: Path, batches: int) -> Profile:
    """Run some batches through a model that counts."""
    request, joined = model.create_infer_request(), _joined(model)
    for batch in host[:2]:  # the first calls also set things up
        request.infer(list(batch))
    spans, pass_s, first = list[Span](), 0.0, time.perf_counter()
    for batch in itertools.islice(itertools.cycle(host), batches):
        began = time.perf_counter()
        request.infer(list(batch))
        ended = time.perf_counter()
        pass_s += ended - began
        spans += in_a_row(list(_counters(request)), joined, began)
    write_trace(spans, folder)
    return Profile(by_operator(spans), pass_s, ended - first)


def _joined(model: openvino.CompiledModel) -> dict[str, tuple[str, ...]]:
    """The operations of the read model behind every executed one."""
    found = {}
    for each in model.get_runtime_model().get_ordered_ops():
        facts = each.get_rt_info()
        told = facts[_JOINED].astype(str) if _JOINED in facts else ""
        found[each.get_friendly_name()] = tuple(name for name in told.split(",") if name)
    return found


def _counters(request: openvino.InferRequest) -> Iterator[Counter]:
    executed = openvino.ProfilingInfo.Status.EXECUTED
    for each in request.get_profiling_info():
        if each.status == executed:
            yield Counter(each.node_name, each.node_type, each.exec_type, each.real_time.total_seconds())


def in_a_row(counters: Sequence[Counter], joined: Mapping[str, tuple[str, ...]], began_s: float) -> list[Span]:
    """Spans of one batch. The counters hold no beginnings, so each operation begins where the last one ended."""
    spans, now = [], began_s * 1e9
    for each in counters:
        names = joined.get(each.name) or _works_for(each.name, joined)
        operator = f"{each.kind} {each.kernel}".strip()
        spans.append(Span(LANE, each.name, now, each.seconds * 1e9, operator, names))
        now += each.seconds * 1e9
    return spans


def _works_for(name: str, joined: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What a change of layout is made for: its name ends with that of the operation that reads it."""
    readers = [other for other, names in joined.items() if names and name.endswith(f"_{other}")]
    return joined[max(readers, key=len)] if readers else (name,)
