"""The one place where a session is written down: its id, what was asked for, every outcome as soon as it is there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from layermark import environment, stats
from layermark.errors import UserError
from layermark.outcome import Outcome
from layermark.session.listener import Listener
from layermark.spec import Protocol, Spec
from layermark.store import SessionRecord, Store


class SessionWriter:
    """Keeps the outcomes of one session in a store and tells a listener; goes on with `resume` where it is given."""

    def __init__(
        self,
        store: Store,
        specs: Sequence[Spec],
        protocol: Protocol,
        *,
        command: str,
        resume: SessionRecord | None = None,
        listener: Listener | None = None,
        machine: Mapping[str, Any] | None = None,
    ) -> None:
        """`machine` is the environment that is measured in, where it is not this process's."""
        self._store, self._command = store, command
        self._listener = listener or Listener()
        self.id = _resumed(resume) if resume else _begun(store, specs, protocol, command, machine)
        self.finished_groups = set(resume.finished_groups) if resume else set[str]()
        self._held: list[dict[str, Any]] = []
        known = store.documents(self.id) if resume else []
        self.documents: list[dict[str, Any]] = [doc for doc in known if doc["group"] in self.finished_groups]

    def append(self, outcome: Outcome, *, hold: bool = False) -> dict[str, Any]:
        """Keep an outcome and return its document; with `hold`, the listener is told by `release`."""
        document = stats.document(outcome, session=self.id, command=self._command)
        try:
            self._store.append(self.id, outcome, document)
        finally:  # whatever a store lacks by now, the figures are not lost
            self.documents.append(document)
            if hold:
                self._held.append(document)
            else:
                self._listener.finished(document)
        return document

    def replace(self, group: str, outcomes: Sequence[Outcome]) -> None:
        """Keep another attempt at a whole group, which takes the place of the one before."""
        for outcome in outcomes:
            document = stats.document(outcome, session=self.id, command=self._command)
            self._store.append(self.id, outcome, document)
            for known in (self.documents, self._held):
                known[:] = [document if each["spec"] == document["spec"] else each for each in known]
        self.finish_group(group)

    def release(self) -> None:
        """Tell the listener of what was held back."""
        held, self._held = self._held, []
        for document in held:
            self._listener.finished(document)

    def finish_group(self, group: str) -> None:
        """Mark a comparison group complete: a session that goes on later leaves it alone."""
        self._store.finish_group(self.id, group)


def _begun(
    store: Store, specs: Sequence[Spec], protocol: Protocol, command: str, machine: Mapping[str, Any] | None
) -> str:
    session_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    machine = machine or environment.record()
    mark = environment.fingerprint(machine)
    store.begin(session_id, command=command, specs=specs, protocol=protocol, environment=machine, fingerprint=mark)
    return session_id


def _resumed(record: SessionRecord) -> str:
    if record.fingerprint != environment.fingerprint(environment.record()):
        raise UserError(
            f"session {record.id} was measured in another environment (machine, kernel or versions differ); "
            "start a new one without --resume"
        )
    return record.id
