"""Spans of a profiler as a trace for chrome://tracing and Perfetto, and as times by operator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from layermark.backends.base import TRACE_FILE, OperatorTime


class Span(NamedTuple):
    """Something that a thread did for a while; `operator` is its kind where it is an operator, else empty."""

    thread: str
    name: str
    began_ns: float
    lasted_ns: float
    operator: str = ""


def write_trace(spans: Sequence[Span], folder: Path) -> None:
    """Write the trace of some spans into a folder."""
    threads = {name: number for number, name in enumerate(dict.fromkeys(each.thread for each in spans))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": name}}
        for name, number in threads.items()
    ]
    events += [
        {
            "ph": "X",
            "pid": 0,
            "tid": threads[each.thread],
            "name": each.name,
            "cat": each.operator or "runtime",
            "ts": each.began_ns / 1e3,
            "dur": each.lasted_ns / 1e3,
        }
        for each in spans
    ]
    (folder / TRACE_FILE).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def by_operator(spans: Sequence[Span]) -> list[OperatorTime]:
    """Every kind of operator with its own time: a loop is not charged with what runs inside of it.

    >>> by_operator([Span("a", "while.1", 0, 100, "while"), Span("a", "dot.1", 10, 60, "dot")])
    [OperatorTime(operator='while', calls=1, seconds=4e-08), OperatorTime(operator='dot', calls=1, seconds=6e-08)]
    """
    found: dict[str, tuple[int, float]] = {}
    for operator, own_ns in _own_times(spans):
        calls, seconds = found.get(operator, (0, 0.0))
        found[operator] = (calls + 1, seconds + own_ns / 1e9)
    return [OperatorTime(operator, calls, seconds) for operator, (calls, seconds) in found.items()]


def _own_times(spans: Sequence[Span]) -> Iterator[tuple[str, float]]:
    ordered = sorted(
        (each for each in spans if each.operator), key=lambda each: (each.thread, each.began_ns, -each.lasted_ns)
    )
    for _, group in groupby(ordered, key=lambda each: each.thread):
        members = list(group)
        own = [each.lasted_ns for each in members]
        above: list[int] = []
        for index, each in enumerate(members):
            while above and members[above[-1]].began_ns + members[above[-1]].lasted_ns <= each.began_ns:
                above.pop()
            if above:
                own[above[-1]] -= each.lasted_ns
            above.append(index)
        yield from zip((each.operator for each in members), own, strict=True)
