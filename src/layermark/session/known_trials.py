"""What runs in place of `--execution auto`: what an earlier trial chose, or the plain execution where time is short."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from layermark import environment
from layermark.backends.base import backend
from layermark.outcome import Outcome, Run
from layermark.session.shares import as_asked, without_trial
from layermark.spec import Protocol, Spec
from layermark.store import Store
from layermark.workloads.base import task
from layermark.workloads.programs.base import ProgramTask

CHOICE, KNOWN = "execution_choice", "known"
"""The setting, and its word, of a result whose execution an earlier trial has chosen."""


class Choice(NamedTuple):
    """What runs for a spec, and the session of the trial that chose it; no session if none did."""

    requested: Spec
    runs: Spec
    session: str = ""
    trial: str = ""

    def outcome(self, found: Outcome) -> Outcome:
        """Return what came of it under the spec that was asked for; it says what was chosen in place of a trial."""
        if not self.session:
            return as_asked(found, self.requested)
        if isinstance(found, Run):
            known = {CHOICE: KNOWN, "execution_trial": f"known from session {self.session}: {self.trial}"}
            return dataclasses.replace(found, spec=self.requested, settings={**found.settings, **known})
        advice = f"{found.reason} (--execution {self.runs.execution}, the choice of session {self.session}; "
        return dataclasses.replace(found, spec=self.requested, reason=f"{advice}--trial fresh tries again)")


class KnownTrials:
    """The trials that a store remembers of this machine with these versions of Layermark and of all runtimes."""

    def __init__(self, store: Store, protocol: Protocol) -> None:
        self._store = store if protocol.trial == KNOWN else None
        self._machine = environment.fingerprint(environment.record()) if self._store else ""

    def choose(self, spec: Spec, *, time_to_try: bool) -> Choice:
        """Return what should run for a spec."""
        return self._known(spec) or Choice(spec, spec if time_to_try else without_trial(spec))

    def _known(self, spec: Spec) -> Choice | None:
        """What the newest trial of the same measurement chose; None where there is none or its words do not say all."""
        if self._store is None or spec.execution != "auto" or not _named_by_execution(spec):
            return None
        for session, settings in self._store.settings(spec.key, self._machine):
            if "execution_trial" in settings and settings.get(CHOICE) != KNOWN:
                runs = spec.replace(execution=str(settings["execution"]))
                return Choice(spec, runs, session, str(settings["execution_trial"]))
        return None


def _named_by_execution(spec: Spec) -> bool:
    """Whether the word of an execution says all that a trial chooses."""
    several = spec.batches_per_step > 1 and not isinstance(task(spec), ProgramTask)
    return not several or backend(spec.backend).executions_name_loops
