"""One batch of a profile over time, in few enough pieces for a page: the longest operators of the last batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from layermark.worker.profile_nodes import nodes_of

BARS = 100
_RUNTIME = "runtime"
"""The category of spans that are no operators."""
_ROUNDING_US = 0.0015
"""Times are written in thousandths of a microsecond: the sum of two may lie a little behind the next beginning."""

Event = Mapping[str, Any]


def timeline(trace: Mapping[str, Any], batches: int, names: Sequence[str]) -> dict[str, Any]:
    """Return the longest operators of the last of so many batches in a trace, in order, and how many were left out.

    `bars` have the form of a document's `lanes`. A loop is shown by what runs inside of it.
    """
    lanes = {each["tid"]: str(each["args"]["name"]) for each in trace["traceEvents"] if each["name"] == "thread_name"}
    found = list(_innermost([each for each in trace["traceEvents"] if each["ph"] == "X" and each["cat"] != _RUNTIME]))
    last = sorted(found, key=lambda each: each["ts"])[-(len(found) // batches) :] if found else []
    longest = sorted(last, key=lambda each: -each["dur"])
    beginning = min((each["ts"] for each in last), default=0.0)
    shown = sorted(longest[:BARS], key=lambda each: (each["tid"], each["ts"]))
    return {
        "bars": [_bar(each, lanes, beginning, names) for each in shown],
        "left_out": max(0, len(longest) - BARS),
        "left_out_s": sum(each["dur"] for each in longest[BARS:]) / 1e6,
    }


def _innermost(events: Collection[Event]) -> Iterator[Event]:
    ordered = sorted(events, key=lambda each: (each["tid"], each["ts"], -each["dur"]))
    for _, group in groupby(ordered, key=lambda each: each["tid"]):
        lane = list(group)
        for index, each in enumerate(lane):
            following = lane[index + 1] if index + 1 < len(lane) else None
            if following is None or following["ts"] + _ROUNDING_US >= each["ts"] + each["dur"]:
                yield each


def _bar(event: Event, lanes: Mapping[int, str], beginning: float, names: Sequence[str]) -> dict[str, Any]:
    nodes = nodes_of(event["args"].get("nodes", ()), names)
    start_s = (event["ts"] - beginning) / 1e6
    words = f"{' + '.join(nodes)} ({event['cat']})" if nodes else str(event["cat"])
    return {
        "lane": lanes.get(event["tid"], "?"),
        "name": words,
        "start_s": float(f"{start_s:.9f}"),
        "end_s": float(f"{start_s + event['dur'] / 1e6:.9f}"),
    }
