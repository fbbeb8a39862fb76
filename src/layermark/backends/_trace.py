"""Spans of a profiler as a trace for chrome://tracing and Perfetto, and as times by operator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from layermark.backends.base import TRACE_FILE, OperatorTime

PROCESS = "layermark"
_LONGEST_NAME = 500


class Span(NamedTuple):
    """Something that a thread did for a while; `operator` is its kind where it is an operator, else empty."""

    thread: str
    name: str
    began_ns: float
    lasted_ns: float
    operator: str = ""
    names: tuple[str, ...] = ()
    """What the runtime calls the pieces of the graph that it works for."""


def write_trace(spans: Sequence[Span], folder: Path) -> None:
    """Write the trace of some spans into a folder: complete events, times from the first on, lanes with names."""
    lanes: dict[str, int] = {}
    for each in spans:
        lanes.setdefault(each.thread, len(lanes))
    beginning = min((round(each.began_ns) for each in spans), default=0)
    events = [_naming("process_name", 0, PROCESS)]
    events += [_naming("thread_name", number, name) for name, number in lanes.items()]
    events += [_event(each, lanes[each.thread], beginning) for each in _nested(spans)]
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    (folder / TRACE_FILE).write_text(json.dumps(document), encoding="utf-8")


def by_operator(spans: Sequence[Span]) -> list[OperatorTime]:
    """Every operator of every set of nodes with its own time: a loop is not charged with what runs inside of it.

    >>> rows = by_operator([Span("a", "while.1", 0, 100, "while"), Span("a", "dot.1", 10, 60, "dot", ("fc",))])
    >>> [(row.operator, row.seconds, row.names) for row in rows]
    [('while', 4e-08, ()), ('dot', 6e-08, ('fc',))]
    """
    found: dict[tuple[str, tuple[str, ...]], tuple[int, float]] = {}
    for span, own_ns in _own_times(spans):
        kind = span.operator, span.names
        calls, seconds = found.get(kind, (0, 0.0))
        found[kind] = (calls + 1, seconds + own_ns / 1e9)
    return [OperatorTime(operator, *times, names) for (operator, names), times in found.items()]


def _naming(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": lane, "ts": 0, "name": what, "args": {"name": name[:_LONGEST_NAME] or "?"}}


def _event(span: Span, lane: int, beginning: int) -> dict[str, Any]:
    told: Mapping[str, Any] = {"nodes": list(span.names)} if span.names else {}
    return {
        "ph": "X",
        "pid": 0,
        "tid": lane,
        "name": span.name[:_LONGEST_NAME] or "?",
        "cat": span.operator[:_LONGEST_NAME] or "runtime",
        # Nanoseconds in whole numbers: begin and end of neighbours stay in order whatever floats do.
        "ts": round(span.began_ns - beginning) / 1e3,
        "dur": round(span.lasted_ns) / 1e3,
        "args": dict(told),
    }


def _nested(spans: Sequence[Span]) -> Iterator[Span]:
    """The spans of each lane in order, cut where one would end after the one that it began in.

    Profilers read clocks of several places and round them, so that ends cross by a microsecond; a viewer would draw
    such a pair wrongly.
    """
    for _, members in _by_thread(spans):
        ends: list[int] = []
        for each in members:
            began = round(each.began_ns)
            end = began + round(each.lasted_ns)
            while ends and ends[-1] <= began:
                ends.pop()
            end = min(end, ends[-1]) if ends else end
            ends.append(end)
            yield each._replace(began_ns=began, lasted_ns=end - began)


def _own_times(spans: Sequence[Span]) -> Iterator[tuple[Span, float]]:
    for _, members in _by_thread([each for each in spans if each.operator]):
        own = [each.lasted_ns for each in members]
        above: list[int] = []
        for index, each in enumerate(members):
            while above and members[above[-1]].began_ns + members[above[-1]].lasted_ns <= each.began_ns:
                above.pop()
            if above:
                own[above[-1]] -= each.lasted_ns
            above.append(index)
        yield from zip(members, (max(0.0, each) for each in own), strict=True)


def _by_thread(spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    ordered = sorted(spans, key=lambda each: (each.thread, round(each.began_ns), -round(each.lasted_ns)))
    for thread, group in groupby(ordered, key=lambda each: each.thread):
        yield thread, list(group)
