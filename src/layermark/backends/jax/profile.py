"""Where the time goes in a JAX program: XLA's profiler."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
from jax.profiler import ProfileData, ProfileOptions

from layermark.backends._hlo import scopes
from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import Profile

Scopes = Mapping[tuple[str, str], tuple[str, ...]]


def profiled(work: Callable[[], object], folder: Path) -> Profile:
    """Do the work under the profiler; operators are those of the compiled module, with the scopes they come from."""
    options = ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        began = time.perf_counter()
        work()
        pass_s = time.perf_counter() - began
    (written,) = folder.rglob("*.xplane.pb")
    spans = list(_spans(ProfileData.from_file(str(written)), scopes(written.read_bytes())))
    write_trace(spans, folder)
    return Profile(by_operator(spans), pass_s)


def _spans(found: ProfileData, known: Scopes) -> Iterator[Span]:
    for plane in found.planes:
        for line in plane.lines:
            for event in line.events:
                if event.duration_ns > 0:
                    told = {name: str(value) for name, value in event.stats if name in ("hlo_op", "hlo_module")}
                    operator = told.get("hlo_op", "")
                    kind = re.sub(r"(\.\d+|\.clone)+$", "", operator)
                    names = known.get((told.get("hlo_module", ""), operator), ())
                    lane = f"{plane.name} {line.name}"
                    yield Span(lane, event.name, event.start_ns, event.duration_ns, kind, names)
