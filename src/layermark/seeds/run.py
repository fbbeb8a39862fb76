"""One run of a seed script: banner, graph, steps, summary; the same machinery as `layermark run` behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from layermark import stats
from layermark.launch.checkpoints import make_readable
from layermark.launch.process import Crew
from layermark.outcome import Outcome, Run, Skipped
from layermark.seeds.printing import Printer, summary
from layermark.seeds.request import Request
from layermark.session.deadline import Deadline
from layermark.session.steps import TIMEOUT_S, StepMeasurement
from layermark.spec import Protocol, Spec
from layermark.store import Store, open_store
from layermark.worker import environment

_GRACE_S = 1.0


def run(asked: Request, printer: Printer, command: str, deadline: Deadline | None = None) -> int:
    """Measure and print; answers 1 if the measurement failed."""
    deadline = deadline or Deadline(asked.budget_s)
    with open_store(asked.store) as store:  # before everything else: a wrong name must not cost a measurement
        printer.open()
        printer.begin()
        outcome = _measured(asked, deadline, printer)
        session_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        # The number of steps was asked for, so an interval wider than a goal is nobody's surprise.
        document = stats.document(outcome, session=session_id, command=command, goal=math.inf)
        try:
            _keep(store, outcome, document)
        finally:  # whatever a store lacks by now, the figures are not lost
            printer.end(document)
            printer.say("")
            for line in summary(document, printer.dropped):
                printer.say(line)
    return int(document["status"] == "failed")


def _measured(asked: Request, deadline: Deadline, printer: Printer) -> Outcome:
    """Measure; what a runtime lacks gives way to another way once, and output and result say so."""
    with Crew() as crew, ended_in_time(crew, deadline):
        make_readable(crew, [asked.spec], deadline.at_most(TIMEOUT_S))
        measurement = StepMeasurement(crew, deadline, printer)
        found = measurement.measure(asked.spec, asked.course)
        instead = lacking(found) if isinstance(found, Skipped) else None
        if instead:
            printer.note(instead.words)
            found = measurement.measure(instead.spec, asked.course)
    if isinstance(found, Run):
        warnings = (*found.warnings, instead.words) if instead else found.warnings
        settings = {**found.settings, "seed": dict(asked.recorded)}
        return dataclasses.replace(found, settings=settings, warnings=warnings)
    return found


@contextmanager
def ended_in_time(crew: Crew, deadline: Deadline) -> Iterator[None]:
    """End every worker once the budget is over, whatever is being waited for: the waiting then ends too."""
    if deadline.left() == math.inf:
        yield
        return
    watchdog = threading.Timer(deadline.left() + _GRACE_S, _end_all, [crew])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _end_all(crew: Crew) -> None:
    for pid in crew.pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


class Instead(NamedTuple):
    """Another spec for a runtime, and why it takes the place of the one that was asked for."""

    spec: Spec
    words: str


def lacking(skipped: Skipped) -> Instead | None:
    """What a runtime proposes in place of something that it does not have."""
    spec, reason = skipped.spec, skipped.reason.split(";")[0]
    if spec.params.get("cell") == "fused" and "--cell loop" in skipped.reason:
        return Instead(
            spec.replace(params={**spec.params, "cell": "loop"}), f"{reason}: one cell per time step instead"
        )
    if spec.formulation == "library" and "--formulation tuned" in skipped.reason:
        return Instead(spec.replace(formulation="tuned"), f"{reason}: Layermark's own formulation instead")
    return None


def _keep(store: Store, outcome: Outcome, document: Mapping[str, Any]) -> None:
    """Keep the outcome as a session of its own."""
    machine, session_id, command = environment.record(), document["session"], document["command"]
    store.begin(
        session_id,
        command=command,
        specs=[outcome.spec],
        protocol=Protocol(),
        environment=machine,
        fingerprint=environment.fingerprint(machine),
    )
    store.append(session_id, outcome, document)
    store.finish_group(session_id, outcome.spec.group)
