"""One measurement over sessions, read from columns that have an index, however many results there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, exists, select
from sqlalchemy.engine import RowMapping

from layermark.spec import Spec
from layermark.store import rows
from layermark.store.base import Point, Series
from layermark.store.engine import Engine
from layermark.store.tables import DOCUMENTS, FINISHED, MEASUREMENTS, OUTCOMES, SAMPLES, SESSIONS, SUMMARIES

_MACHINE = ("cpu", "cores", "memory_bytes")


class Wanted(NamedTuple):
    """Which measurements a history is asked for: none named means all; `key` is the beginning of a spec's key."""

    workloads: Sequence[str]
    backends: Sequence[str]
    key: str
    most: int


def read_series(engine: Engine, wanted: Wanted, last: int) -> list[Series]:
    """Return the measurements that were made latest, each with its last sessions, one series a machine."""
    with engine.reading() as db:
        chosen = db.execute(_measured_latest(wanted)).scalars().all()
        found = [_attempts(db, spec, last) for spec in chosen]
    if _refresh(engine, [row for each in found for row in each]):
        with engine.reading() as db:
            found = [_attempts(db, spec, last) for spec in chosen]
    with engine.reading() as db:
        return [series for attempts in found for series in _split(db, _counting(attempts))]


def _measured_latest(wanted: Wanted) -> Select[Any]:
    asked = select(MEASUREMENTS.c.spec)
    if wanted.workloads:
        asked = asked.where(MEASUREMENTS.c.workload.in_(wanted.workloads))
    if wanted.backends:
        asked = asked.where(MEASUREMENTS.c.backend.in_(wanted.backends))
    if wanted.key:
        asked = asked.where(MEASUREMENTS.c.spec.startswith(wanted.key, autoescape=True))
    newest = (MEASUREMENTS.c.created.desc(), MEASUREMENTS.c.session.desc(), MEASUREMENTS.c.spec)
    return asked.order_by(*newest).limit(wanted.most)


def _attempts(db: Connection, spec: str, last: int) -> list[RowMapping]:
    """Return the rows of a measurement's last sessions, in any order; a session may hold several attempts."""
    same = SUMMARIES.c.spec == spec
    when = (SUMMARIES.c.created.desc(), SUMMARIES.c.session.desc())
    newest = select(SUMMARIES.c.created, SUMMARIES.c.session).where(same).distinct().order_by(*when).limit(last)
    finished = exists().where(
        FINISHED.c.session == OUTCOMES.c.session,
        FINISHED.c.comparison == OUTCOMES.c.comparison,
        FINISHED.c.attempt == OUTCOMES.c.attempt,
    )
    asked = (
        select(SUMMARIES, OUTCOMES.c.attempt, OUTCOMES.c.noise_floor, DOCUMENTS.c.version, finished.label("finished"))
        .join(OUTCOMES, OUTCOMES.c.number == SUMMARIES.c.outcome)
        .join(DOCUMENTS, DOCUMENTS.c.outcome == SUMMARIES.c.outcome)
        .where(same, SUMMARIES.c.session.in_(select(newest.subquery().c.session)))
    )
    return list(db.execute(asked).mappings())


def _refresh(engine: Engine, found: Sequence[RowMapping]) -> bool:
    """Derive what is shown again where the rules have changed since; return whether anything was."""
    from layermark.stats import DERIVED_VERSION

    stale = [row for row in found if row["version"] != DERIVED_VERSION]
    if not stale:
        return False
    with engine.writing() as db:
        for session, members in groupby(sorted(stale, key=lambda row: int(row["session"])), lambda row: row["session"]):
            asked = (
                select(OUTCOMES, SAMPLES.c.format, SAMPLES.c.data)
                .outerjoin(SAMPLES, SAMPLES.c.outcome == OUTCOMES.c.number)
                .where(OUTCOMES.c.number.in_([row["outcome"] for row in members]))
            )
            rows.derive_again(db, db.execute(asked).mappings().all(), rows.session(db, session))
    return True


def _counting(attempts: Sequence[RowMapping]) -> list[RowMapping]:
    """Of every session the last complete attempt, else the last one; oldest first."""
    best: dict[int, RowMapping] = {}
    for row in attempts:
        held = best.get(row["session"])
        if held is None or (row["finished"], row["attempt"]) > (held["finished"], held["attempt"]):
            best[row["session"]] = row
    return sorted(best.values(), key=lambda row: (row["created"], row["session"]))


def _split(db: Connection, counting: Sequence[RowMapping]) -> list[Series]:
    """A machine's numbers are not another's: one series each, that of the newest session first."""
    sessions = _sessions(db, [row["session"] for row in counting])
    record = select(OUTCOMES.c.record).where(OUTCOMES.c.number == counting[-1]["outcome"])
    spec = Spec.from_json(json.loads(db.execute(record).scalar_one())["spec"])
    points: dict[str, list[Point]] = {}
    for row in counting:
        point = _point(row, sessions[row["session"]])
        points.setdefault(machine(point.environment), []).append(point)
    return [Series(spec=spec, machine=name, points=tuple(each)) for name, each in reversed(points.items())]


def _sessions(db: Connection, numbers: Sequence[int]) -> dict[int, RowMapping]:
    asked = select(SESSIONS.c.number, SESSIONS.c.id, SESSIONS.c.created, SESSIONS.c.environment)
    return {row["number"]: row for row in db.execute(asked.where(SESSIONS.c.number.in_(numbers))).mappings()}


def _point(row: RowMapping, session: RowMapping) -> Point:
    names = ("status", "throughput", "low", "high", "unit", "efficiency", "noise_floor")
    return Point(
        session=session["id"],
        created=session["created"],
        environment=json.loads(session["environment"]),
        **{name: row[name] for name in names},
    )


def machine(environment: Mapping[str, Any]) -> str:
    """Return a machine in a few words.

    >>> machine({"cpu": "Some CPU", "cores": 4, "memory_bytes": 17 * 10**9})
    'Some CPU, 4 CPUs, 17 GB'
    """
    cpu, cores, memory = (environment.get(name) for name in _MACHINE)
    words = [str(cpu or "unknown CPU")]
    words += [f"{cores} CPUs"] if cores else []
    words += [f"{memory / 1e9:.0f} GB"] if memory else []
    return ", ".join(words)
