"""What a machine of a fleet is told to do: say what it is, and measure. JSON comes in and JSON goes out."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from layermark import __version__, environment
from layermark.devices.cpu import thread_budget
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.outcome import Failed, Outcome, to_json
from layermark.session.failure import failed
from layermark.session.listener import Listener
from layermark.session.run import run_session
from layermark.spec import Protocol, Spec
from layermark.store import open_store


def describe_machine(_: str) -> str:
    """Return what this machine is."""
    facts = {"version": __version__, "threads": thread_budget(), "nice": _nice()}
    return json.dumps(facts | {"environment": environment.record()})


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def unusable_because(facts: Mapping[str, Any], threads: int) -> tuple[str, list[str]]:
    """Return why a machine cannot be used (empty if it can), and what to know about it; measurements ask for `threads`.

    >>> unusable_because({"version": "0.0.1", "threads": 2, "nice": 0}, 2)[0].partition(",")[0]
    'it has layermark 0.0.1'
    """
    if facts["version"] != __version__:
        return f"it has layermark {facts['version']}, this is {__version__}", []
    notes = []
    if facts["threads"] < threads:
        notes.append(f"{threads} threads are asked for and it has {facts['threads']} CPUs; expect a lower rate")
    # Ray's workers are nice by 15 unless they are told not to be: any neighbour then comes first.
    if facts["nice"] > _nice():
        notes.append(f"work runs at nice {facts['nice']} there; start its Ray with RAY_worker_niceness=0")
    return "", notes


def measure_here(text: str) -> str:
    """Measure a comparison group on this machine and return its outcomes, in the order of its specs."""
    work = json.loads(text)
    specs = [Spec.from_json(each) for each in work["specs"]]
    notes = _Notes()
    outcomes = _outcomes(specs, Protocol(**work["protocol"]), work["budget_s"], notes)
    return json.dumps({"outcomes": [to_json(each) for each in outcomes], "notes": notes.texts})


def _outcomes(specs: Sequence[Spec], protocol: Protocol, budget_s: float | None, notes: _Notes) -> list[Outcome]:
    with open_store(":memory:") as store:
        try:
            # What this group leaves of the budget is the others'.
            documents = run_session(specs, protocol, store=store, budget_s=budget_s, listener=notes, second_look=False)
        except (Unsupported, UserError, WorkerFailed) as error:  # such as weights that are not on this machine
            return [failed(spec, error, out_of_budget=False) for spec in specs]
        except Exception as error:  # a machine that answers is not lost, whatever this one group runs into
            reason, log = " ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc()
            return [Failed(spec=spec, reason=reason, log=log) for spec in specs]
        found = {outcome.spec.key: outcome for outcome in store.outcomes(documents[0]["session"])}
    return [found[spec.key] for spec in specs]


class _Notes(Listener):
    """Keeps the notes for whoever asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        """Keep one."""
        self.texts.append(text)
