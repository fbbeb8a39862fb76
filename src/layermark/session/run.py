"""Measure many specs: group by group, each stored as soon as it is complete."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from layermark import stats
from layermark.axes import complete
from layermark.errors import UserError
from layermark.launch.checkpoints import make_readable
from layermark.launch.process import Crew
from layermark.outcome import Outcome, Skipped
from layermark.session.deadline import Deadline
from layermark.session.group import GroupMeasurement
from layermark.session.listener import Listener
from layermark.spec import Protocol, Spec
from layermark.store import SessionRecord, Store, open_store
from layermark.worker import environment

SHORTEST_S = 6.0
"""About what one measurement takes at least: start, proof, warm-up and a few blocks."""


class Interrupted(KeyboardInterrupt):
    """Somebody pressed Ctrl-C; what was complete by then is in the store and in `documents`."""

    def __init__(self, session_id: str, documents: list[dict[str, Any]]) -> None:
        super().__init__(session_id)
        self.session_id = session_id
        self.documents = documents


def measure(spec: Spec, protocol: Protocol | None = None, *, store: Store | None = None) -> dict[str, Any]:
    """Measure one spec and return its document; nothing is kept on disk unless a store is given."""
    return run_session([complete(spec)], protocol or Protocol(), store=store or open_store(":memory:"))[0]


def run_session(
    specs: Sequence[Spec],
    protocol: Protocol,
    *,
    store: Store,
    budget_s: float | None = None,
    command: str = "",
    resume: SessionRecord | None = None,
    listener: Listener | None = None,
) -> list[dict[str, Any]]:
    """Measure every spec and return one document each; with `resume`, go on with a session that was interrupted."""
    listener = listener or Listener()
    deadline = Deadline(budget_s)
    machine = environment.record()
    session_id = _opened(store, specs, protocol, command, machine, resume)
    wanted = list(resume.specs if resume else specs)
    documents = list(store.documents(session_id)) if resume else []
    done = set(resume.finished_groups) if resume else set()
    documents = [doc for doc in documents if doc["group"] in done]
    todo = {group: members for group, members in groups(wanted).items() if group not in done}
    listener.started(sum(map(len, todo.values())))
    _warn_if_too_much(todo, budget_s, listener)
    try:
        with Crew() as crew:
            make_readable(crew, [spec for members in todo.values() for spec in members], protocol.timeout)
            measurement = GroupMeasurement(crew, protocol, listener, deadline)
            for index, (group, members) in enumerate(todo.items()):
                box = _time_box(protocol, members, deadline, len(todo) - index)
                outcomes = measurement.measure(members, box) if box else _out_of_budget(members)
                documents += _stored(store, session_id, outcomes, command, protocol, listener)
                if box:
                    store.finish_group(session_id, group)
    except KeyboardInterrupt:
        raise Interrupted(session_id, documents) from None
    return documents


def groups(specs: Sequence[Spec]) -> dict[str, list[Spec]]:
    """Specs by comparison group, in the order of their first members."""
    found: dict[str, list[Spec]] = {}
    for spec in specs:
        found.setdefault(spec.group, []).append(spec)
    return found


def _opened(
    store: Store,
    specs: Sequence[Spec],
    protocol: Protocol,
    command: str,
    machine: Mapping[str, Any],
    resume: SessionRecord | None,
) -> str:
    """The id of the new session, or of the one that goes on."""
    mark = environment.fingerprint(machine)
    if resume is not None:
        if resume.fingerprint != mark:
            raise UserError(
                f"session {resume.id} was measured in another environment (machine, kernel or versions differ); "
                "start a new one without --resume"
            )
        return resume.id
    session_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    store.begin(session_id, command=command, specs=specs, protocol=protocol, environment=machine, fingerprint=mark)
    return session_id


def _warn_if_too_much(todo: Mapping[str, Sequence[Spec]], budget_s: float | None, listener: Listener) -> None:
    least = SHORTEST_S * sum(map(len, todo.values()))
    if budget_s is not None and least > budget_s:
        listener.note(
            f"{sum(map(len, todo.values()))} measurements take about {least:.0f} s at least and will not all fit "
            f"into the budget of {budget_s:g} s; the rest is reported as not measured"
        )


def _time_box(protocol: Protocol, members: Sequence[Spec], deadline: Deadline, groups_left: int) -> float:
    """Seconds of alternation for a group; 0 when it does not fit into what is left of the budget."""
    fair = deadline.left() / groups_left - SHORTEST_S / 2 * len(members)
    box = min(protocol.time_box * len(members), max(fair, SHORTEST_S / 2))
    return box if deadline.left() > SHORTEST_S * len(members) else 0.0


def _out_of_budget(members: Sequence[Spec]) -> list[Outcome]:
    return [Skipped(spec=spec, reason="not measured: the budget was used up") for spec in members]


def _stored(
    store: Store,
    session_id: str,
    outcomes: Sequence[Outcome],
    command: str,
    protocol: Protocol,
    listener: Listener,
) -> list[dict[str, Any]]:
    documents = []
    for outcome in outcomes:
        document = stats.document(outcome, session=session_id, command=command, goal=protocol.precision_goal)
        store.append(session_id, outcome, document)
        listener.finished(document)
        documents.append(document)
    return documents
