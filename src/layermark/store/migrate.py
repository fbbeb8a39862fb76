"""Numbered SQL files, applied in order, each inside a transaction and recorded in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import NamedTuple

from layermark.errors import UserError

APPLICATION_ID = 0x4C4D524B  # "LMRK": tells our files from other programs' databases.


class Migration(NamedTuple):
    """One numbered step of the schema."""

    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Every migration inside the package, in order."""
    folder = resources.files("layermark.store").joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [Migration(int(file.name[:4]), file.name, file.read_text(encoding="utf-8")) for file in files]


def migrate(db: sqlite3.Connection, url: str) -> None:
    """Bring a database to the newest schema; refuse one that is newer, or another program's."""
    _refuse_foreign(db, url)
    known = migrations()
    if _applied(db) == known[-1].number:
        return
    with transaction(db):
        _prepare(db)
        # Asked again inside the transaction: another process may have been quicker.
        for step in known[_applied(db) :]:
            for statement in statements(step.sql):
                db.execute(statement)
            db.execute("INSERT INTO migrations (number, name) VALUES (?, ?)", (step.number, step.name))
    _refuse_newer(_applied(db), known[-1].number, url)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, holding the write lock from the start."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def statements(sql: str) -> Iterator[str]:
    """The single statements of a script; a trigger's body stays whole."""
    text = ""
    for line in sql.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _refuse_foreign(db: sqlite3.Connection, url: str) -> None:
    owner = db.execute("PRAGMA application_id").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise UserError(f"store {url}: this database belongs to another program; give --store another path")
    if owner == APPLICATION_ID:
        _refuse_newer(_applied(db), migrations()[-1].number, url)


def _refuse_newer(found: int, newest: int, url: str) -> None:
    if found > newest:
        raise UserError(
            f"store {url}: written by a newer layermark (schema {found}, this one knows {newest}); upgrade it"
        )


def _applied(db: sqlite3.Connection) -> int:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone():
        return 0
    return int(db.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()[0])


def _prepare(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(
        "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
        "applied TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    )
