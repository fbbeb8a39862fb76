"""One run of a seed script: banner, graph, steps, summary; the same machinery as `layermark run` behind it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from layermark.launch.checkpoints import make_readable
from layermark.launch.process import Crew
from layermark.outcome import Diagnostic, Outcome, Run, Skipped
from layermark.report import together
from layermark.seeds.printing import Printer, summary
from layermark.seeds.request import ScriptRequest
from layermark.session.deadline import Deadline
from layermark.session.fixed_steps import measure_fixed_steps
from layermark.session.peers import Peers
from layermark.session.ranks import check_plan
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.session.writer import SessionWriter
from layermark.spec import Protocol, Spec
from layermark.store import open_store

TIMEOUT_S = 600.0
_ALTERNATIVES = {"cell": "one cell per time step instead", "formulation": "Layermark's own formulation instead"}


def run(
    request: ScriptRequest, printer: Printer, command: str, deadline: Deadline | None = None, peers: Peers | None = None
) -> int:
    """Measure and print, with the other instances of a job where there are some; return 1 if it failed."""
    check_plan(request.spec, peers.size if peers else 1)
    deadline = deadline or Deadline(request.budget_s)
    with open_store(request.store) as store:  # before everything else: a wrong name must not cost a measurement
        writer = SessionWriter(store, [request.spec], Protocol(timeout=TIMEOUT_S), command=command)
        printer.open()
        if peers is None or not peers.over:
            printer.begin()
        outcome = _measured(request, deadline, printer, peers)
        try:
            writer.append(outcome)
            writer.finish_group(outcome.spec.group)
        finally:
            (document,) = writer.documents
            printer.end(document)
            printer.say("")
            for line in summary(document, printer.dropped):
                printer.say(line)
            for line in together.lines(document):
                printer.say(f"  {line}")
    return int(document["status"] == "failed")


def _measured(request: ScriptRequest, deadline: Deadline, printer: Printer, peers: Peers | None) -> Outcome:
    """Measure; what a runtime lacks gives way to what it has instead, and output and result say so."""
    if peers is not None and peers.over:
        reason = f"not measured: the job had ended: {peers.over}"
        return Skipped(spec=request.spec, reason=reason, code="job_ended")
    with Crew() as crew:
        make_readable(crew, [request.spec], deadline.timeout(TIMEOUT_S))
        resources = Resources.of(crew, deadline, TIMEOUT_S, variables=request.variables, peers=peers)
        found = measure_fixed_steps(Team(request.spec, resources, printer), request.steps, deadline, printer)
        instead = alternative(found) if isinstance(found, Skipped) else None
        if instead:
            printer.note(instead.words)
            found = measure_fixed_steps(Team(instead.spec, resources, printer), request.steps, deadline, printer)
    if isinstance(found, Run):
        more = (Diagnostic("instead", instead.words),) if instead else ()
        settings = {**found.settings, "seed": dict(request.recorded)}
        return dataclasses.replace(found, settings=settings, warnings=(*found.warnings, *more))
    return found


class Instead(NamedTuple):
    """Another spec for a runtime, and why it takes the place of the one that was asked for."""

    spec: Spec
    words: str


def alternative(skipped: Skipped) -> Instead | None:
    """Return what a runtime proposes in place of something that it does not have."""
    spec, reason = skipped.spec, skipped.reason.split(";")[0]
    for name, value in skipped.instead.items():
        words = f"{reason}: {_ALTERNATIVES.get(name, f'{name} {value} instead')}"
        if spec.params.get(name, value) != value:
            return Instead(spec.replace(params={**spec.params, name: value}), words)
        if getattr(spec, name, value) != value:
            return Instead(spec.replace(**{name: value}), words)
    return None
