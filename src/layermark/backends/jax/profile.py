"""Where the time goes in a JAX program: XLA's profiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.profiler import ProfileData, ProfileOptions

from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import OperatorTime

_OPERATOR = "hlo_op"


def profiled(work: Callable[[], object], folder: Path) -> list[OperatorTime]:
    """Do the work under the profiler; operators are those of the compiled module."""
    options = ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        work()
    (written,) = folder.rglob("*.xplane.pb")
    spans = list(_spans(ProfileData.from_file(str(written))))
    write_trace(spans, folder)
    return by_operator(spans)


def _spans(found: ProfileData) -> Iterator[Span]:
    for plane in found.planes:
        for line in plane.lines:
            for event in line.events:
                operator = str(dict(event.stats).get(_OPERATOR, ""))
                if event.duration_ns > 0:
                    kind = re.sub(r"(\.\d+|\.clone)+$", "", operator)
                    yield Span(f"{plane.name} {line.name}", event.name, event.start_ns, event.duration_ns, kind)
