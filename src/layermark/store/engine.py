"""What differs between two databases, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import sqlalchemy
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from layermark.errors import UserError

APPLICATION_ID = 0x4C4D524B  # "LMRK": tells our databases and locks from other programs'.
WAIT_S = 30
"""How long one process waits for the others' writing before it gives up."""

_WRITING = "layermark_writing"


class Engine(ABC):
    """A database that was opened but may hold nothing yet."""

    name: ClassVar[str]
    """As the migrations name their sections for it."""
    words: ClassVar[Mapping[str, str]] = {}
    """Words of the migrations that it spells in another way, in the order in which they are replaced."""

    def __init__(self, shown: str, sql: sqlalchemy.Engine) -> None:
        self.shown = shown
        self._sql = sql

    @contextmanager
    def reading(self) -> Iterator[sqlalchemy.Connection]:
        """One view of what is stored."""
        with self._told(), self._sql.connect() as db, db.begin():
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlalchemy.Connection]:
        """All or nothing, holding the write lock from the start."""
        with self._told(), self._sql.connect() as db:
            marked = db.execution_options(**{_WRITING: True})
            with marked.begin():
                self.lock(marked)
                yield marked

    def close(self) -> None:
        """Let go of every connection."""
        self._sql.dispose()

    def translated(self, sql: str) -> str:
        """Return a statement of a migration in this database's words."""
        for word, own in self.words.items():
            sql = sql.replace(word, own)
        return sql

    @abstractmethod
    def lock(self, db: sqlalchemy.Connection) -> None:
        """Wait until nobody else writes, and keep it so until the transaction ends."""

    @abstractmethod
    def has_table(self, db: sqlalchemy.Connection, name: str) -> bool:
        """Return whether the store has a table of this name."""

    @abstractmethod
    def foreign(self, db: sqlalchemy.Connection) -> bool:
        """Return whether the place is in use by another program."""

    @abstractmethod
    def claim(self, db: sqlalchemy.Connection) -> None:
        """Mark the place as ours."""

    @abstractmethod
    def cause(self, error: BaseException) -> str:
        """Return what a driver's error means, in words that help."""

    @abstractmethod
    def compact(self) -> None:
        """Give the room of removed rows back."""

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An error of the database becomes one line that names the store."""
        try:
            yield
        except DBAPIError as error:
            raise UserError(f"store {self.shown}: {self.cause(error.orig or error)}") from None
        except SQLAlchemyError as error:
            raise UserError(f"store {self.shown}: {error}") from None


def is_writing(db: sqlalchemy.Connection) -> bool:
    """Return whether the transaction that begins on a connection is going to write."""
    return bool(db.get_execution_options().get(_WRITING))
