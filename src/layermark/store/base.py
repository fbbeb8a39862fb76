"""The store as its users see it: append-only outcomes by session, on whichever database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from layermark.outcome import Outcome
from layermark.spec import Protocol, Spec

LATEST = "latest"
"""The name under which the newest session can be asked for: the one that was created last."""

SERIES = 20
POINTS = 50
"""How many measurements a history shows, and how many sessions of each, unless more are asked for."""


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


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement of a history; numbers are None where the session did not get any."""

    session: str
    created: str
    status: str
    throughput: float | None
    low: float | None
    high: float | None
    unit: str | None
    efficiency: float | None
    noise_floor: float | None
    environment: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One measurement on one machine, over sessions, oldest first."""

    spec: Spec
    machine: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import found new and what was there before."""

    sessions: int
    outcomes: int
    known: int


class Store(ABC):
    """Append-only outcomes by session. A context manager; one instance serves one process."""

    url: str
    """Where it is, without a password, as messages show it."""

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of the database."""

    @abstractmethod
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

    @abstractmethod
    def append(self, session_id: str, outcome: Outcome, document: Mapping[str, Any]) -> None:
        """Keep an outcome, its raw samples and the document derived from it, all or nothing."""

    @abstractmethod
    def finish_group(self, session_id: str, group: str) -> None:
        """Mark a comparison group complete; a group without the mark is measured again on resume."""

    @abstractmethod
    def session(self, session_id: str) -> SessionRecord:
        """Return the record of a session; `latest` is the newest."""

    @abstractmethod
    def sessions(self) -> list[SessionRecord]:
        """Return every session, newest first."""

    @abstractmethod
    def outcomes(self, session_id: str) -> list[Outcome]:
        """Return what counts: of every group its last complete attempt, or its last attempt if none was completed."""

    @abstractmethod
    def documents(self, session_id: str) -> list[dict[str, Any]]:
        """Return the documents of the outcomes that count, derived again where they are of another version."""

    @abstractmethod
    def settings(self, key: str, fingerprint: str) -> list[tuple[str, dict[str, Any]]]:
        """Return session and settings of the latest good results of a spec's key on a machine, newest first."""

    @abstractmethod
    def record_spread(self, fingerprint: str, spread: float | None) -> None:
        """Keep the start-to-start spread that a comparison saw on a machine; None is nothing to keep."""

    @abstractmethod
    def spread(self, fingerprint: str) -> float | None:
        """Return the start-to-start spread of a machine: root mean square of the latest; None where none was seen."""

    @abstractmethod
    def series(
        self,
        workloads: Sequence[str] = (),
        *,
        backends: Sequence[str] = (),
        key: str = "",
        most: int = SERIES,
        last: int = POINTS,
    ) -> list[Series]:
        """Return measurements over sessions: those measured latest come first, of each the last sessions.

        `key` is the beginning of a spec's key.
        """

    @abstractmethod
    def lines(self, session_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield everything raw about sessions as plain records, each session before its outcomes."""

    @abstractmethod
    def take_in(self, lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Imported:
        """Keep the records that `lines` gave elsewhere, each named by where it was read, all or nothing.

        A record that is here already, by its content, is passed over.
        """

    @abstractmethod
    def prune(self, session_ids: Sequence[str]) -> None:
        """Remove whole sessions with all that belongs to them, in one transaction."""

    @abstractmethod
    def compact(self) -> None:
        """Give the room of removed sessions back; raise `UserError` where others are using the store."""
