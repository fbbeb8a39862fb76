"""Sessions as plain records that travel between stores, known again by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, exists, insert, select
from sqlalchemy.engine import RowMapping

from layermark import outcome as outcomes_module
from layermark.errors import UserError
from layermark.spec import Spec
from layermark.store import rows
from layermark.store.base import LATEST, Imported
from layermark.store.tables import FINISHED, OUTCOMES, SAMPLES, SESSIONS

FORMAT = 1
KIND = "layermark"
"""The key that tells our records from anything else; its value is `session` or `outcome`."""

_SESSION: Mapping[str, type] = {
    "id": str,
    "created": str,
    "command": str,
    "specs": list,
    "protocol": dict,
    "environment": dict,
    "fingerprint": str,
}
_OUTCOME: Mapping[str, type] = {
    "session": str,
    "attempt": int,
    "complete": bool,
    "rank": int,
    "created": str,
    "command": str,
    "record": dict,
}
# Nothing of these is what was measured: the name may be another here, and a group is completed later.
_NOT_CONTENT = ("session", "complete")

# Whatever a record of the right form but of nonsense makes the reading of it run into.
_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UserError)


def session_lines(db: Connection, number: int) -> list[dict[str, Any]]:
    """Return a session and the outcomes that count, as records."""
    session = _session_line(rows.session_row(db, number))
    finished = select(FINISHED.c.comparison, FINISHED.c.attempt).where(FINISHED.c.session == number)
    done = {(group, attempt) for group, attempt in db.execute(finished)}
    outcomes = [
        {KIND: "outcome", "format": FORMAT, "session": session["id"]}
        | {"complete": (row["comparison"], row["attempt"]) in done}
        | _outcome_content(row)
        for row in rows.counted(db, number)
    ]
    return [session, *outcomes]


def content(line: Mapping[str, Any]) -> str:
    """Return the hash by which a record is known again, whatever its session is called and however far it had got."""
    kept = {name: value for name, value in line.items() if name not in _NOT_CONTENT}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def take_in(db: Connection, lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Imported:
    """Insert the records that are new; raise `UserError` with the place of the first that is not right."""
    arrival = _Arrival(db)
    for place, line in lines:
        try:
            arrival.take(line)
        except _NONSENSE as error:
            raise UserError(f"{place}: {_reason(error)}; nothing was imported") from None
    return Imported(sessions=arrival.new_sessions, outcomes=arrival.new_outcomes, known=arrival.known)


class _Arrival:
    """An import that is under way."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._sessions: dict[str, _Place] = {}
        self.new_sessions = self.new_outcomes = self.known = 0

    def take(self, line: Mapping[str, Any]) -> None:
        """Insert one record, unless it is here."""
        kind = line.get(KIND)
        if kind not in ("session", "outcome"):
            raise UserError("not a record of `layermark export --format jsonl`")
        if not isinstance(line.get("format"), int) or line["format"] > FORMAT:
            raise UserError(f"format {line.get('format')!r}: this release reads up to {FORMAT}; upgrade layermark")
        if kind == "session":
            self._take_session({KIND: kind, "format": FORMAT} | _checked(line, _SESSION))
        else:
            self._take_outcome({KIND: kind, "format": FORMAT} | _checked(line, _OUTCOME))

    def _take_session(self, line: Mapping[str, Any]) -> None:
        line = {**line, "created": _time(line["created"])}
        name, digest = line["id"], content(line)
        if name == LATEST or not name.isprintable():
            raise UserError(f"session {name!r}: not a name that a session can have")
        for spec in line["specs"]:
            _spec(spec)
        rows.protocol(line["protocol"])
        # Two machines may give one name: the second is told apart by its content, in every import alike.
        for candidate in (name, f"{name}-{digest[:8]}"):
            here = self._db.execute(select(SESSIONS).where(SESSIONS.c.id == candidate)).mappings().first()
            if here is None:
                self._sessions[name] = _Place(self._add_session(line, candidate), candidate, line, set())
                return
            if content(_session_line(here) | {"id": name}) == digest:
                self._sessions[name] = _Place(here["number"], candidate, line, _contents(self._db, here["number"]))
                return
        raise UserError(f"session {name!r}: this name is in use for another session")

    def _add_session(self, line: Mapping[str, Any], name: str) -> int:
        self.new_sessions += 1
        texts = {each: json.dumps(line[each]) for each in ("specs", "protocol", "environment")}
        columns = {each: line[each] for each in ("created", "command", "fingerprint")}
        return rows.add(self._db, SESSIONS, id=name, **columns, **texts)

    def _take_outcome(self, line: Mapping[str, Any]) -> None:
        if line["session"] not in self._sessions:
            raise UserError(f"session {line['session']!r}: its own record must come first")
        place = self._sessions[line["session"]]
        digest = content(line)
        spec = _spec(line["record"]["spec"])
        _storable(line["record"].get("item", ""))
        if digest in place.contents:
            self.known += 1
        else:
            self._add_outcome(line, place, spec)
            place.contents.add(digest)
        if line["complete"]:
            _finish(self._db, place.number, spec.group, line["attempt"])

    def _add_outcome(self, line: Mapping[str, Any], place: _Place, spec: Spec) -> None:
        from layermark import stats

        document = stats.document(
            outcomes_module.from_json(line["record"], rows.protocol(place.line["protocol"]).precision_goal),
            session=place.name,
            rank=line["rank"],
            command=line["command"],
        )
        columns = {name: line[name] for name in ("attempt", "rank", "created", "command")}
        kept = {"session": place.number, "comparison": spec.group, "spec": spec.key}
        rows.add_outcome(self._db, line["record"], document, **columns, **kept)
        self.new_outcomes += 1


class _Place:
    """Where the outcomes of a session go, and which of them are there."""

    def __init__(self, number: int, name: str, line: Mapping[str, Any], contents: set[str]) -> None:
        self.number, self.name, self.line, self.contents = number, name, line, contents


def _session_line(row: RowMapping) -> dict[str, Any]:
    columns = {name: row[name] for name in ("id", "command", "fingerprint")} | {"created": _time(row["created"])}
    texts = {name: json.loads(row[name]) for name in ("specs", "protocol", "environment")}
    return {KIND: "session", "format": FORMAT, **columns, **texts}


def _outcome_content(row: RowMapping) -> dict[str, Any]:
    from layermark.stats import finite

    # An import takes no infinities.
    return {name: row[name] for name in ("attempt", "rank", "created", "command")} | {"record": finite(rows.raw(row))}


def _contents(db: Connection, session: int) -> set[str]:
    asked = select(OUTCOMES, SAMPLES.c.format, SAMPLES.c.data)
    asked = asked.outerjoin(SAMPLES, SAMPLES.c.outcome == OUTCOMES.c.number).where(OUTCOMES.c.session == session)
    head = {KIND: "outcome", "format": FORMAT}
    return {content(head | _outcome_content(row)) for row in db.execute(asked).mappings()}


def _finish(db: Connection, session: int, group: str, attempt: int) -> None:
    same = (FINISHED.c.session == session, FINISHED.c.comparison == group, FINISHED.c.attempt == attempt)
    if not db.execute(select(exists().where(*same))).scalar():
        db.execute(insert(FINISHED).values(session=session, comparison=group, attempt=attempt))


def _checked(line: Mapping[str, Any], fields: Mapping[str, type]) -> dict[str, Any]:
    for name, kind in fields.items():
        if type(line.get(name)) is not kind:
            raise UserError(f"{name!r}: expected {_WORDS[kind]}, received {_shown(line.get(name))}")
        if kind is str:
            _storable(line[name])
    return {name: line[name] for name in fields}


def _storable(text: str) -> None:
    """Raise if a text cannot be kept in a column of its own on every database."""
    if not isinstance(text, str) or "\0" in text:
        raise UserError(f"expected a text without zero bytes, received {_shown(text)}")
    text.encode()


def _time(text: str) -> str:
    """A time as the store writes it."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise UserError(f"'created': expected a time with its zone, received {text}")
    return rows.written(found)


def _spec(doc: Mapping[str, Any]) -> Spec:
    spec = Spec.from_json(doc)
    _storable(spec.workload)
    _storable(spec.backend)
    return spec


_WORDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return "nothing" if value is None else text if len(text) <= 40 else f"{text[:37]}..."


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"malformed record ({type(error).__name__}: {error})"
