"""Where the time goes in ONNX Runtime: its own profiler, on a session of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto
from onnxruntime import InferenceSession

from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import Profile
from layermark.backends.onnxruntime import process

_KERNEL = "_kernel_time"
_RUN = "model_run"
_MOVES = ("ReorderInput", "ReorderOutput")
"""Nodes that the runtime adds around its blocked layout; they work for what they read or what reads them."""
_WARM = 2
"""Batches before those that count: the first ones also set things up."""

Event = Mapping[str, Any]


def profiled(
    model: ModelProto,
    options: process.Options,
    steps_of: Callable[[InferenceSession], Sequence[Callable[[], object]]],
    folder: Path,
    batches: int,
) -> Profile:
    """Run some batches in a session that profiles; nodes keep the names of the graph."""
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "onnxruntime")
    optimised = folder / "optimised.onnx"
    options.optimized_model_filepath = str(optimised)
    session = process.session(model, options)
    for step in itertools.islice(itertools.cycle(steps_of(session)), _WARM + batches):
        step()
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    runs = sorted((each for each in events if each["name"] == _RUN), key=lambda each: float(each["ts"]))[_WARM:]
    spans = list(_spans(events, float(runs[0]["ts"]), neighbours(optimised)))
    write_trace(spans, folder)
    pass_s, last = sum(float(each["dur"]) for each in runs) / 1e6, runs[-1]
    window_s = (float(last["ts"]) + float(last["dur"]) - float(runs[0]["ts"])) / 1e6
    return Profile(by_operator(spans), pass_s, window_s, _memory(events))


def neighbours(optimised: Path) -> dict[str, str]:
    """Return for each node that the runtime added for its layout the node that it works for."""
    nodes = onnx.load_model(optimised, load_external_data=False).graph.node
    makers = {name: node for node in nodes for name in node.output}
    readers = {name: node for node in reversed(nodes) for name in node.input}
    found = {}
    for node in nodes:
        if node.op_type in _MOVES:
            other = makers.get(node.input[0]) or readers.get(node.output[0])
            found[node.name] = other.name if other is not None else ""
    return found


def _spans(events: Sequence[Event], began: float, moves: Mapping[str, str]) -> Iterator[Span]:
    for event in events:
        if event.get("ph") != "X" or float(event["ts"]) < began:
            continue
        name, operator, names = str(event["name"]), "", tuple[str, ...]()
        if event.get("cat") == "Node":
            if not name.endswith(_KERNEL):
                continue
            name, operator = name.removesuffix(_KERNEL), str(event["args"]["op_name"])
            # A product with an activation in it is called `fused` and the product's name.
            names = (moves.get(name, name).removeprefix("fused "),)
        yield Span(f"thread {event['tid']}", name, float(event["ts"]) * 1e3, float(event["dur"]) * 1e3, operator, names)


def _memory(events: Sequence[Event]) -> dict[str, Any]:
    """The most that the session's arena had in use."""
    peaks = [int(event.get("args", {}).get("mem_in_use_peak", 0)) for event in events]
    return {"peak_bytes": max(peaks)} if any(peaks) else {}
