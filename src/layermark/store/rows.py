"""Rows to records and back: sessions, outcomes that count, and the documents derived from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from layermark import outcome as outcomes_module
from layermark.outcome import Outcome
from layermark.spec import Protocol, Spec
from layermark.store import blob
from layermark.store.base import SessionRecord
from layermark.store.tables import DOCUMENTS, FINISHED, MEASUREMENTS, OUTCOMES, SAMPLES, SESSIONS, SUMMARIES


def now() -> str:
    """Return the time as the store writes it."""
    return written(datetime.now(UTC))


def written(time: datetime) -> str:
    """Return a time as the store writes all of them, so that the order of the texts is that of the times.

    >>> written(datetime.fromisoformat("2026-01-01T00:30:00.5+01:00"))
    '2025-12-31T23:30:00+00:00'
    """
    return time.astimezone(UTC).isoformat(timespec="seconds")


def add(db: Connection, table: Table, **values: Any) -> int:
    """Insert a row and return its number."""
    key = db.execute(insert(table).values(**values)).inserted_primary_key
    return int(key[0]) if key else 0


def add_outcome(db: Connection, record: Mapping[str, Any], document: Mapping[str, Any], **columns: Any) -> int:
    """Insert an outcome, its raw samples and its document; `record` is what `outcome.to_json` gives."""
    from layermark.stats import DERIVED_VERSION

    kept = {name: value for name, value in record.items() if name != "blocks"}
    number = add(db, OUTCOMES, record=json.dumps(kept), noise_floor=document["noise_floor"], **columns)
    if record.get("blocks") is not None:
        add(db, SAMPLES, outcome=number, format=blob.FORMAT, data=blob.pack(record["blocks"]))
    cache(db, {"number": number, **columns}, DERIVED_VERSION, document)
    return number


def cache(db: Connection, row: Mapping[str, Any], version: int, document: Mapping[str, Any]) -> None:
    """Put a document, and what histories read of it, in the place of older ones."""
    # The list of samples is left out: the raw samples say the same in a fraction of the space.
    text = json.dumps({name: value for name, value in document.items() if name != "samples"})
    db.execute(delete(DOCUMENTS).where(DOCUMENTS.c.outcome == row["number"]))
    db.execute(insert(DOCUMENTS).values(outcome=row["number"], version=version, document=text))
    if row["rank"] == 0:
        created = db.execute(select(SESSIONS.c.created).where(SESSIONS.c.number == row["session"])).scalar_one()
        db.execute(delete(SUMMARIES).where(SUMMARIES.c.outcome == row["number"]))
        db.execute(insert(SUMMARIES).values(created=created, **_summary(row, document)))
        _measured(db, row, created, document["spec"])


def _measured(db: Connection, row: Mapping[str, Any], created: str, spec: Mapping[str, Any]) -> None:
    """Note the newest session that measured a spec."""
    same, this = MEASUREMENTS.c.spec == row["spec"], {"session": row["session"], "created": created}
    held = db.execute(select(MEASUREMENTS.c.created, MEASUREMENTS.c.session).where(same)).first()
    if held is None:
        names = {name: spec[name] for name in ("workload", "backend")}
        db.execute(insert(MEASUREMENTS).values(spec=row["spec"], **this, **names))
    elif tuple(held) < (created, row["session"]):
        db.execute(update(MEASUREMENTS).where(same).values(**this))


def _summary(row: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    rate = document["throughput"] if isinstance(document["throughput"], Mapping) else {}
    return {
        "outcome": row["number"],
        "session": row["session"],
        "workload": document["spec"]["workload"],
        "backend": document["spec"]["backend"],
        "spec": row["spec"],
        "status": document["status"],
        "throughput": rate.get("value"),
        "low": rate.get("low"),
        "high": rate.get("high"),
        "unit": rate.get("unit"),
        "efficiency": document["efficiency"],
    }


def counted(db: Connection, session: int) -> Sequence[RowMapping]:
    """Return what counts of a session: of every group the last complete attempt, else the last one."""
    done = FINISHED.alias()
    attempts = (
        select(
            OUTCOMES.c.comparison, func.coalesce(func.max(done.c.attempt), func.max(OUTCOMES.c.attempt)).label("last")
        )
        .outerjoin(done, (done.c.session == OUTCOMES.c.session) & (done.c.comparison == OUTCOMES.c.comparison))
        .where(OUTCOMES.c.session == session)
        .group_by(OUTCOMES.c.comparison)
        .subquery()
    )
    chosen = (attempts.c.comparison == OUTCOMES.c.comparison) & (attempts.c.last == OUTCOMES.c.attempt)
    found = (
        select(OUTCOMES, SAMPLES.c.format, SAMPLES.c.data, DOCUMENTS.c.version, DOCUMENTS.c.document)
        .join(attempts, chosen)
        .outerjoin(SAMPLES, SAMPLES.c.outcome == OUTCOMES.c.number)
        .outerjoin(DOCUMENTS, DOCUMENTS.c.outcome == OUTCOMES.c.number)
        .where(OUTCOMES.c.session == session)
        .order_by(OUTCOMES.c.number)
    )
    return db.execute(found).mappings().all()


def last_attempt(db: Connection, session: int, group: str) -> int:
    """Return the number of a group's last attempt; 0 before the first."""
    asked = select(func.max(OUTCOMES.c.attempt)).where(OUTCOMES.c.session == session, OUTCOMES.c.comparison == group)
    return int(db.execute(asked).scalar() or 0)


def derive_again(db: Connection, rows: Sequence[RowMapping], session: SessionRecord) -> None:
    """Derive the documents of these outcomes of a session with today's rules."""
    from layermark.stats import DERIVED_VERSION, document

    for row in rows:
        derived = document(
            outcomes_module.from_json(raw(row), session.protocol.precision_goal),
            session=session.id,
            rank=row["rank"],
            command=row["command"],
        )
        cache(db, {name: row[name] for name in ("number", "session", "spec", "rank")}, DERIVED_VERSION, derived)


def raw(row: RowMapping) -> dict[str, Any]:
    """Return everything raw of an outcome, as `outcome.to_json` gave it."""
    record: dict[str, Any] = json.loads(row["record"])
    if row["data"] is not None:
        record["blocks"] = blob.unpack(row["format"], row["data"])
    return record


def outcome(row: RowMapping) -> Outcome:
    """Return the outcome of a row, its samples included."""
    return outcomes_module.from_json(raw(row))


def session(db: Connection, number: int) -> SessionRecord:
    """Return the record of a session that exists."""
    done = db.execute(select(FINISHED.c.comparison).where(FINISHED.c.session == number)).scalars()
    return session_record(session_row(db, number), frozenset(done))


def session_record(row: RowMapping, finished: frozenset[str]) -> SessionRecord:
    """Return the record of a session's row and of the groups that are complete."""
    return SessionRecord(
        id=row["id"],
        created=row["created"],
        command=row["command"],
        specs=tuple(Spec.from_json(spec) for spec in json.loads(row["specs"])),
        protocol=protocol(json.loads(row["protocol"])),
        environment=json.loads(row["environment"]),
        fingerprint=row["fingerprint"],
        finished_groups=finished,
    )


def finished_groups(db: Connection) -> dict[int, frozenset[str]]:
    """Return the complete groups of every session that has any."""
    found: dict[int, set[str]] = {}
    for number, group in db.execute(select(FINISHED.c.session, FINISHED.c.comparison)):
        found.setdefault(number, set()).add(group)
    return {number: frozenset(groups) for number, groups in found.items()}


def session_row(db: Connection, number: int) -> RowMapping:
    """Return the row of a session that exists."""
    return db.execute(select(SESSIONS).where(SESSIONS.c.number == number)).mappings().one()


def protocol(doc: Mapping[str, Any]) -> Protocol:
    """Return the protocol as it was; fields that a later release dropped are left out."""
    known = {item.name for item in dataclasses.fields(Protocol)}
    return Protocol(**{name: value for name, value in doc.items() if name in known})
