"""Where the time goes in a TensorFlow program: its profiler, for the graph executor and XLA alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import OperatorTime

_HLO = "hlo_op"
_EXECUTED = re.compile(r"^[\w./-]+:(_?[A-Z]\w+)$")
"""The graph executor calls its spans `name:Operation`."""


def profiled(work: Callable[[], object], folder: Path) -> list[OperatorTime]:
    """Do the work under the profiler; operators are the executor's, or those of XLA's compiled module."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options=options)
    try:
        work()
    finally:
        tf.profiler.experimental.stop()
    (written,) = folder.rglob("*.xplane.pb")
    spans = list(_spans(written.read_bytes()))
    write_trace(spans, folder)
    return by_operator(spans)


def _spans(content: bytes) -> Iterator[Span]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(content)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                if event.duration_ps:
                    name = plane.event_metadata[event.metadata_id].name
                    began = line.timestamp_ns + event.offset_ps / 1e3
                    thread = f"{plane.name} {line.name}"
                    yield Span(thread, name, began, event.duration_ps / 1e3, _operator(plane, event, name))


def _operator(plane: Any, event: Any, name: str) -> str:
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == _HLO:
            text = stat.str_value or plane.stat_metadata[stat.ref_value].name
            return re.sub(r"(\.\d+|\.clone)+$", "", text)
    executed = _EXECUTED.match(name)
    return executed[1] if executed else ""
