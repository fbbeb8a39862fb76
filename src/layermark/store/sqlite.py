"""A store in one SQLite file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.pool import StaticPool

from layermark.errors import UserError
from layermark.store.engine import APPLICATION_ID, WAIT_S, Engine, is_writing

MEMORY = ":memory:"

_CAUSES = {
    "file is not a database": "this file is not a SQLite database; give --store another path",
    "unable to open database file": "the file cannot be created or opened; give --store another path",
    "attempt to write a readonly database": "the file cannot be written (readonly); give --store another path",
    "database is locked": f"another process has been writing for {WAIT_S} s; try again",
}


class SQLite(Engine):
    """One file, or memory that ends with the process."""

    name = "sqlite"

    def lock(self, db: sqlalchemy.Connection) -> None:
        """Do nothing: a transaction that writes begins with the lock (`_begin`)."""

    def has_table(self, db: sqlalchemy.Connection, name: str) -> bool:
        """Return whether the file has a table of this name."""
        found = db.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
        return found.first() is not None

    def foreign(self, db: sqlalchemy.Connection) -> bool:
        """Return whether the file holds tables without our mark."""
        tables = db.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
        return bool(tables) and db.exec_driver_sql("PRAGMA application_id").scalar_one() != APPLICATION_ID

    def claim(self, db: sqlalchemy.Connection) -> None:
        """Write our mark into the file's header."""
        db.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")

    def cause(self, error: BaseException) -> str:
        """Return what SQLite's message means."""
        return _CAUSES.get(str(error), str(error))

    def compact(self) -> None:
        """Write the file anew without its holes."""
        # Past SQLAlchemy, which would begin a transaction: a file cannot be written anew inside of one.
        connection = self._sql.raw_connection()
        try:
            connection.cursor().execute("VACUUM")
        except sqlite3.Error as error:
            raise UserError(f"store {self.shown}: its file keeps its size until another prune ({error})") from None
        finally:
            connection.close()


def opened(path: str) -> SQLite:
    """Return the engine of a file, whose folder is made if it is missing, or of memory."""
    file = path if path == MEMORY else str(Path(path).expanduser())
    if file != MEMORY:
        _make_folder(Path(file))
    url = sqlalchemy.URL.create("sqlite", database=file)
    # One connection for the life of the store: memory would be lost with it.
    sql = sqlalchemy.create_engine(
        url, poolclass=StaticPool, connect_args={"timeout": WAIT_S, "isolation_level": None, "check_same_thread": True}
    )
    event.listen(sql, "connect", _connected)
    event.listen(sql, "begin", _begin)
    return SQLite(path, sql)


def _connected(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(db: sqlalchemy.Connection) -> None:
    # Python's sqlite3 would begin late and without the lock: two writers could then both fail.
    db.exec_driver_sql("BEGIN IMMEDIATE" if is_writing(db) else "BEGIN")


def _make_folder(file: Path) -> None:
    if file.is_dir():
        raise UserError(f"store {file}: this is a folder; give the path of a file in it, such as {file / 'results.db'}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"store {file}: its folder cannot be created ({error.strerror}); give another path") from None
