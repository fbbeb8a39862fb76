"""Where the time goes in a TensorFlow program: its profiler, for the graph executor and XLA alike."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from layermark.backends._hlo import scopes
from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import Profile

_EXECUTED = re.compile(r"^([\w./-]+):(_?[A-Z]\w+)$")
"""The graph executor calls its spans `name:Operation`."""

Scopes = Mapping[tuple[str, str], tuple[str, ...]]


def profiled(work: Callable[[], object], folder: Path) -> Profile:
    """Do the work under the profiler; operators are the executor's, or those of XLA's compiled module."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options=options)
    began = time.perf_counter()
    try:
        work()
        pass_s = time.perf_counter() - began
    finally:
        tf.profiler.experimental.stop()
    (written,) = folder.rglob("*.xplane.pb")
    spans = list(_spans(written.read_bytes()))
    write_trace(spans, folder)
    return Profile(by_operator(spans), pass_s)


def _spans(content: bytes) -> Iterator[Span]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space, known = xplane_pb2.XSpace(), scopes(content)
    space.ParseFromString(content)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                if event.duration_ps:
                    name = plane.event_metadata[event.metadata_id].name
                    began = line.timestamp_ns + event.offset_ps // 1000
                    operator, names = _operator(plane, event, name, known)
                    yield Span(f"{plane.name} {line.name}", name, began, event.duration_ps / 1e3, operator, names)


def _operator(plane: Any, event: Any, name: str, known: Scopes) -> tuple[str, tuple[str, ...]]:
    """The kind of operator behind a span, and the scopes that it comes from."""
    told = {plane.stat_metadata[stat.metadata_id].name: _text(plane, stat) for stat in event.stats}
    if "hlo_op" in told:
        kind = re.sub(r"(\.\d+|\.clone)+$", "", told["hlo_op"])
        return kind, known.get((told.get("hlo_module", ""), told["hlo_op"]), ())
    executed = _EXECUTED.match(name)
    return (executed[2], (executed[1],)) if executed else ("", ())


def _text(plane: Any, stat: Any) -> str:
    return str(stat.str_value or plane.stat_metadata[stat.ref_value].name)
