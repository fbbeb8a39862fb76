"""Numbered SQL files, applied in order, all inside one transaction and recorded in the database.

A file is written once, in SQLite's words; an engine translates the few that it spells in another way. What cannot be
said in common, such as triggers, stands in sections that begin with a line `-- [sqlite]` or `-- [postgresql]`. A
statement ends with the first line that ends in a semicolon outside of quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import sqlalchemy

from layermark.errors import UserError
from layermark.store.engine import Engine
from layermark.store.tables import MIGRATIONS

_SECTION = re.compile(r"-- \[(\w+)\]$")
_RECORD = (
    "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
    "applied TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
)


class Migration(NamedTuple):
    """One numbered step of the schema."""

    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Return every migration inside the package, in order."""
    folder = resources.files("layermark.store").joinpath("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [Migration(int(file.name[:4]), file.name, file.read_text(encoding="utf-8")) for file in files]


def migrate(engine: Engine) -> None:
    """Bring a database to the newest schema; refuse one that is newer, or another program's."""
    known = migrations()
    with engine.reading() as db:
        if engine.foreign(db):
            raise UserError(
                f"store {engine.shown}: this database belongs to another program; give --store another place"
            )
        applied = _applied(engine, db)
    _refuse_newer(applied, known[-1].number, engine)
    if applied < known[-1].number:
        _apply(engine, known)


def statements(sql: str, engine: str) -> Iterator[str]:
    """Yield the single statements of a file that concern an engine."""
    text, section = "", ""
    for line in sql.splitlines():
        mark = _SECTION.match(line)
        section = mark[1] if mark else section
        if mark or section not in ("", engine) or not (text or line.strip()) or line.lstrip().startswith("--"):
            continue
        text += f"{line}\n"
        if line.endswith(";") and text.count("'") % 2 == 0:
            yield text
            text = ""


def _apply(engine: Engine, known: list[Migration]) -> None:
    with engine.writing() as db:
        engine.claim(db)
        db.exec_driver_sql(engine.translated(_RECORD))
        # Asked again inside the transaction: another process may have been quicker.
        for step in known[_applied(engine, db) :]:
            for statement in statements(step.sql, engine.name):
                db.exec_driver_sql(engine.translated(statement))
            db.execute(sqlalchemy.insert(MIGRATIONS).values(number=step.number, name=step.name))
        applied = _applied(engine, db)
    _refuse_newer(applied, known[-1].number, engine)


def _refuse_newer(found: int, newest: int, engine: Engine) -> None:
    if found > newest:
        raise UserError(
            f"store {engine.shown}: written by a newer layermark (schema {found}, this one knows {newest}); upgrade it"
        )


def _applied(engine: Engine, db: sqlalchemy.Connection) -> int:
    if not engine.has_table(db, MIGRATIONS.name):
        return 0
    return int(db.execute(sqlalchemy.select(sqlalchemy.func.max(MIGRATIONS.c.number))).scalar() or 0)
