"""`--compile-only`: the program is built, and nothing is timed."""

from __future__ import annotations

from layermark.errors import Unsupported
from layermark.launch.process import Crew, worker_environment
from layermark.seeds.printing import Printer
from layermark.seeds.run import TIMEOUT_S
from layermark.spec import Spec


def build_only(spec: Spec, printer: Printer) -> int:
    """Build in a worker and say how long it took."""
    printer.open()
    printer.begin()
    with Crew() as crew:
        worker = crew.hire(worker_environment(spec))
        try:
            prepared = worker.call("prepare", TIMEOUT_S, spec=spec.to_json())
        except Unsupported as reason:
            printer.say(f"Not built: {reason}")
            return 0
    printer.compiled(prepared["timings_s"]["compile"])
    return 0
