"""The store on a database. Nothing that was measured is ever changed; whole sessions leave through one door."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, exists, insert, select

from layermark import outcome as outcomes_module
from layermark.errors import UserError
from layermark.outcome import Outcome, Run
from layermark.spec import Protocol, Spec
from layermark.store import rows, transfer
from layermark.store.base import LATEST, POINTS, SERIES, Imported, Series, SessionRecord, Store
from layermark.store.engine import Engine
from layermark.store.history import Wanted, read_series
from layermark.store.migrate import migrate
from layermark.store.tables import (
    DOCUMENTS,
    FINISHED,
    MEASUREMENTS,
    OUTCOMES,
    PRUNING,
    SAMPLES,
    SESSIONS,
    SPREADS,
    SUMMARIES,
)

_SPREADS_KEPT = 20
_RESULTS_LOOKED_AT = 50
_NAMES_SHOWN = 5
_NEWEST_FIRST = (SESSIONS.c.created.desc(), SESSIONS.c.number.desc())


class Database(Store):
    """Outcomes in the tables of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.url = engine.shown
        self._engine = engine
        self._attempts: dict[tuple[int, str], int] = {}
        migrate(engine)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.close()

    def begin(
        self,
        session_id: str,
        *,
        command: str,
        specs: Sequence[Spec],
        protocol: Protocol,
        environment: Mapping[str, Any],
        fingerprint: str,
    ) -> None:
        """Write down a new session before anything is measured."""
        with self._engine.writing() as db:
            if session_id == LATEST or _find(db, session_id):
                raise UserError(f"session {session_id!r} exists already; choose another name")
            rows.add(
                db,
                SESSIONS,
                id=session_id,
                created=rows.now(),
                command=command,
                specs=json.dumps([spec.to_json() for spec in specs]),
                protocol=json.dumps(protocol.to_json()),
                environment=json.dumps(dict(environment)),
                fingerprint=fingerprint,
            )

    def append(self, session_id: str, outcome: Outcome, document: Mapping[str, Any]) -> None:
        """Keep an outcome, its raw samples and the document derived from it, all or nothing."""
        with self._engine.writing() as db:
            session, rank = self._number(db, session_id), document["rank"]
            attempt = self._attempt(db, session, outcome.spec, rank)
            rows.add_outcome(
                db,
                outcomes_module.to_json(outcome),
                document,
                session=session,
                comparison=outcome.spec.group,
                attempt=attempt,
                spec=outcome.spec.key,
                rank=rank,
                created=rows.now(),
                command=document["command"],
            )
        self._attempts[session, outcome.spec.group] = attempt

    def finish_group(self, session_id: str, group: str) -> None:
        """Mark a comparison group complete; a group without the mark is measured again on resume."""
        with self._engine.writing() as db:
            session = self._number(db, session_id)
            attempt = rows.last_attempt(db, session, group)
            if not attempt:
                raise UserError(f"session {session_id}: group {group} has no outcomes and cannot be complete")
            if not _is_finished(db, session, group, attempt):
                db.execute(insert(FINISHED).values(session=session, comparison=group, attempt=attempt))

    def session(self, session_id: str) -> SessionRecord:
        """Return the record of a session; `latest` is the newest."""
        with self._engine.reading() as db:
            return rows.session(db, self._number(db, session_id))

    def sessions(self) -> list[SessionRecord]:
        """Return every session, newest first."""
        with self._engine.reading() as db:
            found = db.execute(select(SESSIONS).order_by(*_NEWEST_FIRST)).mappings().all()
            done = rows.finished_groups(db)
            return [rows.session_record(row, done.get(row["number"], frozenset())) for row in found]

    def outcomes(self, session_id: str) -> list[Outcome]:
        """Return what counts: of every group its last complete attempt, or its last attempt if none was completed."""
        with self._engine.reading() as db:
            return [rows.outcome(row) for row in rows.counted(db, self._number(db, session_id))]

    def documents(self, session_id: str) -> list[dict[str, Any]]:
        """Return the documents of the outcomes that count, derived again where they are of another version."""
        from layermark.stats import DERIVED_VERSION, samples

        with self._engine.reading() as db:
            found = rows.counted(db, self._number(db, session_id))
        if any(row["version"] != DERIVED_VERSION for row in found):
            with self._engine.writing() as db:
                number = self._number(db, session_id)
                rows.derive_again(db, found, rows.session(db, number))
                found = rows.counted(db, number)
        documents = []
        for row in found:
            outcome = rows.outcome(row)
            listed = samples(outcome) if isinstance(outcome, Run) else []
            documents.append({**json.loads(row["document"]), "samples": listed})
        return documents

    def settings(self, key: str, fingerprint: str) -> list[tuple[str, dict[str, Any]]]:
        """Return session and settings of the latest good results of a spec's key on a machine, newest first."""
        wanted = (
            select(SESSIONS.c.id, OUTCOMES.c.record)
            .join(SUMMARIES, SUMMARIES.c.outcome == OUTCOMES.c.number)
            .join(SESSIONS, SESSIONS.c.number == SUMMARIES.c.session)
            .where(SUMMARIES.c.spec == key, SUMMARIES.c.status == "ok", SESSIONS.c.fingerprint == fingerprint)
            .order_by(SUMMARIES.c.created.desc(), OUTCOMES.c.number.desc())
        )
        with self._engine.reading() as db:
            found = db.execute(wanted.limit(_RESULTS_LOOKED_AT)).all()
        return [(session, json.loads(record)["settings"]) for session, record in found]

    def record_spread(self, fingerprint: str, spread: float | None) -> None:
        """Keep the start-to-start spread that a comparison saw on a machine; None is nothing to keep."""
        if spread is None:
            return
        with self._engine.writing() as db:
            rows.add(db, SPREADS, created=rows.now(), fingerprint=fingerprint, spread=spread)

    def spread(self, fingerprint: str) -> float | None:
        """Return the start-to-start spread of a machine: root mean square of the latest; None where none was seen."""
        asked = select(SPREADS.c.spread).where(SPREADS.c.fingerprint == fingerprint)
        with self._engine.reading() as db:
            found = db.execute(asked.order_by(SPREADS.c.number.desc()).limit(_SPREADS_KEPT)).scalars().all()
        return math.sqrt(sum(each**2 for each in found) / len(found)) if found else None

    def series(
        self,
        workloads: Sequence[str] = (),
        *,
        backends: Sequence[str] = (),
        key: str = "",
        most: int = SERIES,
        last: int = POINTS,
    ) -> list[Series]:
        """Return measurements over sessions: those measured latest come first, of each the last sessions."""
        return read_series(self._engine, Wanted(workloads, backends, key, most), last)

    def lines(self, session_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield everything raw about sessions as plain records, each session before its outcomes."""
        for session_id in session_ids:
            with self._engine.reading() as db:
                number = self._number(db, session_id)
                found = transfer.session_lines(db, number)
            yield from found

    def take_in(self, lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Imported:
        """Keep the records that `lines` gave elsewhere, each named by where it was read, all or nothing."""
        with self._engine.writing() as db:
            return transfer.take_in(db, lines)

    def prune(self, session_ids: Sequence[str]) -> None:
        """Remove whole sessions with all that belongs to them, in one transaction."""
        if not session_ids:
            return
        with self._engine.writing() as db:
            for number in [self._number(db, each) for each in session_ids]:
                _remove(db, number)

    def compact(self) -> None:
        """Give the room of removed sessions back; raise `UserError` where others are using the store."""
        self._engine.compact()

    def _number(self, db: Connection, session_id: str) -> int:
        found = _find(db, session_id)
        if found is None:
            raise self._unknown(db, session_id)
        return found

    def _unknown(self, db: Connection, session_id: str) -> UserError:
        names = db.execute(select(SESSIONS.c.id).order_by(*_NEWEST_FIRST)).scalars().all()
        if not names:
            return UserError(f"the store {self.url} holds no session yet; begin with: layermark run --suite quick")
        near = difflib.get_close_matches(session_id, names, n=3)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        return UserError(f"unknown session {session_id!r}; {hint}latest: {', '.join(names[:_NAMES_SHOWN])}")

    def _attempt(self, db: Connection, session: int, spec: Spec, rank: int) -> int:
        """Return the attempt that an outcome belongs to.

        A new one begins when this process first writes to the group, when the group was complete, and when
        the same spec and rank come again.
        """
        last = rows.last_attempt(db, session, spec.group)
        if last == 0 or self._attempts.get((session, spec.group)) != last:
            return last + 1
        same = (OUTCOMES.c.session == session, OUTCOMES.c.comparison == spec.group, OUTCOMES.c.attempt == last)
        again = select(OUTCOMES.c.number).where(*same, OUTCOMES.c.spec == spec.key, OUTCOMES.c.rank == rank)
        begins = _is_finished(db, session, spec.group, last) or db.execute(again.limit(1)).first() is not None
        return last + 1 if begins else last


def _find(db: Connection, session_id: str) -> int | None:
    asked = select(SESSIONS.c.number)
    if session_id == LATEST:
        asked = asked.order_by(*_NEWEST_FIRST).limit(1)
    else:
        asked = asked.where(SESSIONS.c.id == session_id)
    found = db.execute(asked).scalar()
    return None if found is None else int(found)


def _is_finished(db: Connection, session: int, group: str, attempt: int) -> bool:
    same = (FINISHED.c.session == session, FINISHED.c.comparison == group, FINISHED.c.attempt == attempt)
    return bool(db.execute(select(exists().where(*same))).scalar())


def _remove(db: Connection, session: int) -> None:
    """The triggers let rows go only of sessions that `pruning` names."""
    own = select(OUTCOMES.c.number).where(OUTCOMES.c.session == session)
    newest = db.execute(select(MEASUREMENTS.c.spec).where(MEASUREMENTS.c.session == session)).scalars().all()
    db.execute(insert(PRUNING).values(session=session))
    for table in (DOCUMENTS, SUMMARIES, SAMPLES):
        db.execute(delete(table).where(table.c.outcome.in_(own)))
    for table in (MEASUREMENTS, FINISHED, OUTCOMES):
        db.execute(delete(table).where(table.c.session == session))
    db.execute(delete(SESSIONS).where(SESSIONS.c.number == session))
    db.execute(delete(PRUNING).where(PRUNING.c.session == session))
    _measured_before(db, newest)


def _measured_before(db: Connection, specs: Sequence[str]) -> None:
    """Note the newest session that is left of specs whose newest is gone."""
    names = ("spec", "workload", "backend", "session", "created")
    newest = (SUMMARIES.c.created.desc(), SUMMARIES.c.session.desc())
    for spec in specs:
        left = select(*(SUMMARIES.c[name] for name in names)).where(SUMMARIES.c.spec == spec)
        db.execute(insert(MEASUREMENTS).from_select(names, left.order_by(*newest).limit(1)))
