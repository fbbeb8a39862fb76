"""The store in one SQLite file. Nothing that was measured is ever changed or deleted."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from layermark import outcome as outcomes_module
from layermark.errors import UserError
from layermark.outcome import Outcome, Run
from layermark.spec import Protocol, Spec
from layermark.store import blob
from layermark.store.migrate import migrate, transaction

MEMORY = ":memory:"
LATEST = "latest"

_WAIT_S = 30.0
_SPREADS_KEPT = 20
_NAMES_SHOWN = 5

# Of every group the last complete attempt, else the last one.
_COUNTED = """
    WITH attempts AS (
        SELECT o.comparison, coalesce(max(f.attempt), max(o.attempt)) AS attempt
        FROM outcomes o LEFT JOIN finished f ON f.session = o.session AND f.comparison = o.comparison
        WHERE o.session = :session GROUP BY o.comparison
    )
    SELECT o.*, s.format, s.data, d.version, d.document FROM outcomes o
    JOIN attempts a ON a.comparison = o.comparison AND a.attempt = o.attempt
    LEFT JOIN samples s ON s.outcome = o.number
    LEFT JOIN documents d ON d.outcome = o.number
    WHERE o.session = :session ORDER BY o.number
"""


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """What a session was asked for, where it ran, and which comparison groups are complete."""

    id: str
    created: str
    command: str
    specs: tuple[Spec, ...]
    protocol: Protocol
    environment: Mapping[str, Any]
    fingerprint: str
    finished_groups: frozenset[str]


class Store:
    """Append-only outcomes by session. A context manager; one instance serves one process."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._db = _connect(path)
        self._attempts: dict[tuple[int, str], int] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

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
        if session_id == LATEST or self._find(session_id):
            raise UserError(f"session {session_id!r} exists already; choose another name")
        with self._writing():
            self._insert(
                "sessions",
                id=session_id,
                created=_now(),
                command=command,
                specs=json.dumps([spec.to_json() for spec in specs]),
                protocol=json.dumps(protocol.to_json()),
                environment=json.dumps(dict(environment)),
                fingerprint=fingerprint,
            )

    def append(self, session_id: str, outcome: Outcome, document: Mapping[str, Any]) -> None:
        """Keep an outcome, its raw samples and the document derived from it, all or nothing."""
        from layermark.stats import DERIVED_VERSION

        session, rank = self._number(session_id), document["rank"]
        with self._writing():
            attempt = self._attempt(session, outcome.spec, rank)
            record = outcomes_module.to_json(outcome)
            blocks = record.pop("blocks", None)
            number = self._insert(
                "outcomes",
                session=session,
                comparison=outcome.spec.group,
                attempt=attempt,
                spec=outcome.spec.key,
                rank=rank,
                created=_now(),
                command=document["command"],
                noise_floor=document["noise_floor"],
                record=json.dumps(record),
            )
            if blocks is not None:
                self._insert("samples", outcome=number, format=blob.FORMAT, data=blob.pack(blocks))
            self._cache(number, DERIVED_VERSION, document)
        self._attempts[session, outcome.spec.group] = attempt

    def finish_group(self, session_id: str, group: str) -> None:
        """Mark a comparison group complete; a group without the mark is measured again on resume."""
        session = self._number(session_id)
        attempt = self._last_attempt(session, group)
        if not attempt:
            raise UserError(f"session {session_id}: group {group} has no outcomes and cannot be complete")
        with self._writing():
            self._db.execute("INSERT OR IGNORE INTO finished VALUES (?, ?, ?)", (session, group, attempt))

    def session(self, session_id: str) -> SessionRecord:
        """The record of a session; `latest` is the newest."""
        number = self._number(session_id)
        with self._reading():
            row = self._db.execute("SELECT * FROM sessions WHERE number = ?", (number,)).fetchone()
            return self._record(row)

    def sessions(self) -> list[SessionRecord]:
        """Every session, newest first."""
        with self._reading():
            rows = self._db.execute("SELECT * FROM sessions ORDER BY number DESC").fetchall()
            return [self._record(row) for row in rows]

    def outcomes(self, session_id: str) -> list[Outcome]:
        """What counts: of every group its last complete attempt, or its last attempt if none was completed."""
        return [self._outcome(row) for row in self._counted(session_id)]

    def documents(self, session_id: str) -> list[dict[str, Any]]:
        """The documents of the outcomes that count, derived again where they are of another version."""
        from layermark.stats import DERIVED_VERSION, samples

        rows = self._counted(session_id)
        if any(row["version"] != DERIVED_VERSION for row in rows):
            self._derive_again(self.session(session_id), rows)
            rows = self._counted(session_id)
        documents = []
        for row in rows:
            outcome = self._outcome(row)
            listed = samples(outcome) if isinstance(outcome, Run) else []
            documents.append({**json.loads(row["document"]), "samples": listed})
        return documents

    def record_spread(self, fingerprint: str, spread: float | None) -> None:
        """Keep the start-to-start spread that a comparison saw on a machine; None is nothing to keep."""
        if spread is None:
            return
        with self._writing():
            self._insert("spreads", created=_now(), fingerprint=fingerprint, spread=spread)

    def spread(self, fingerprint: str) -> float | None:
        """The start-to-start spread of a machine: root mean square of the latest; None where none was seen."""
        with self._reading():
            rows = self._db.execute(
                "SELECT spread FROM spreads WHERE fingerprint = ? ORDER BY number DESC LIMIT ?",
                (fingerprint, _SPREADS_KEPT),
            ).fetchall()
        return math.sqrt(sum(row["spread"] ** 2 for row in rows) / len(rows)) if rows else None

    def _insert(self, table: str, **values: Any) -> int:
        places = ", ".join("?" * len(values))
        added = self._db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))
        return int(added.lastrowid or 0)

    def _find(self, session_id: str) -> int | None:
        newest = "SELECT number FROM sessions ORDER BY number DESC LIMIT 1"
        with self._reading():
            if session_id == LATEST:
                row = self._db.execute(newest).fetchone()
            else:
                row = self._db.execute("SELECT number FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return int(row["number"]) if row else None

    def _number(self, session_id: str) -> int:
        found = self._find(session_id)
        if found is None:
            raise self._unknown(session_id)
        return found

    def _unknown(self, session_id: str) -> UserError:
        with self._reading():
            names = [row["id"] for row in self._db.execute("SELECT id FROM sessions ORDER BY number DESC")]
        if not names:
            return UserError(f"unknown session {session_id!r}; the store {self.url} holds no session yet")
        near = difflib.get_close_matches(session_id, names, n=3)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        return UserError(f"unknown session {session_id!r}; {hint}latest: {', '.join(names[:_NAMES_SHOWN])}")

    def _record(self, row: sqlite3.Row) -> SessionRecord:
        done = self._db.execute("SELECT comparison FROM finished WHERE session = ?", (row["number"],)).fetchall()
        return SessionRecord(
            id=row["id"],
            created=row["created"],
            command=row["command"],
            specs=tuple(Spec.from_json(spec) for spec in json.loads(row["specs"])),
            protocol=_protocol(json.loads(row["protocol"])),
            environment=json.loads(row["environment"]),
            fingerprint=row["fingerprint"],
            finished_groups=frozenset(each["comparison"] for each in done),
        )

    def _attempt(self, session: int, spec: Spec, rank: int) -> int:
        """The attempt that an outcome belongs to.

        A new one begins when this process first writes to the group, when the group was complete, and when
        the same spec and rank come again.
        """
        last = self._last_attempt(session, spec.group)
        if last == 0 or self._attempts.get((session, spec.group)) != last:
            return last + 1
        again = self._db.execute(
            "SELECT 1 FROM outcomes WHERE session = ? AND comparison = ? AND attempt = ? AND spec = ? AND rank = ? "
            "UNION SELECT 1 FROM finished WHERE session = ? AND comparison = ? AND attempt = ?",
            (session, spec.group, last, spec.key, rank, session, spec.group, last),
        ).fetchone()
        return last + 1 if again else last

    def _last_attempt(self, session: int, group: str) -> int:
        with self._reading():
            row = self._db.execute(
                "SELECT coalesce(max(attempt), 0) AS last FROM outcomes WHERE session = ? AND comparison = ?",
                (session, group),
            ).fetchone()
        return int(row["last"])

    def _counted(self, session_id: str) -> list[sqlite3.Row]:
        with self._reading():
            return self._db.execute(_COUNTED, {"session": self._number(session_id)}).fetchall()

    def _outcome(self, row: sqlite3.Row) -> Outcome:
        record = json.loads(row["record"])
        if row["data"] is not None:
            record["blocks"] = blob.unpack(row["format"], row["data"])
        return outcomes_module.from_json(record)

    def _derive_again(self, session: SessionRecord, rows: Sequence[sqlite3.Row]) -> None:
        from layermark.stats import DERIVED_VERSION, document

        with self._writing():
            for row in rows:
                derived = document(
                    self._outcome(row),
                    session=session.id,
                    rank=row["rank"],
                    command=row["command"],
                    goal=session.protocol.precision_goal,
                )
                self._cache(row["number"], DERIVED_VERSION, derived)

    def _cache(self, number: int, version: int, document: Mapping[str, Any]) -> None:
        # The list of samples is left out: the raw samples say the same in a fraction of the space.
        text = json.dumps({name: value for name, value in document.items() if name != "samples"})
        self._db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (number, version, text))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading(), transaction(self._db):
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UserError(f"store {self.url}: {error}") from None


def _connect(path: str) -> sqlite3.Connection:
    file = path if path == MEMORY else str(Path(path).expanduser())
    if file != MEMORY:
        _make_folder(Path(file))
    try:
        db = sqlite3.connect(file, timeout=_WAIT_S, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        migrate(db, path)
    except sqlite3.Error as error:
        raise UserError(f"store {path}: {_cause(error)}") from None
    return db


def _make_folder(file: Path) -> None:
    if file.is_dir():
        raise UserError(f"store {file}: this is a folder; give the path of a file in it, such as {file / 'results.db'}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"store {file}: its folder cannot be created ({error.strerror}); give another path") from None


def _cause(error: sqlite3.Error) -> str:
    causes = {
        "file is not a database": "this file is not a SQLite database; give --store another path",
        "unable to open database file": "the file cannot be created or opened; give --store another path",
        "attempt to write a readonly database": "the file cannot be written; give --store another path",
    }
    return causes.get(str(error), str(error))


def _protocol(doc: Mapping[str, Any]) -> Protocol:
    """The protocol as it was; fields that a later release dropped are left out."""
    known = {item.name for item in dataclasses.fields(Protocol)}
    return Protocol(**{name: value for name, value in doc.items() if name in known})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
