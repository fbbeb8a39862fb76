"""What a table or a page of results shows, made from result documents only: old results can be shown again.

Renderers (terminal, HTML, Markdown, CSV) turn these records into characters. They know no metric by its name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from layermark.report import text
from layermark.report.columns import CONTENDING, Column, FilledColumn, TableCell, filled_columns
from layermark.report.text import Document
from layermark.stats import leaders

Mark = Literal["fastest", "cannot tell", "FAILED", ""]

LOG_LINES = 5
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result: its cells in the order of the columns, its mark, and the document that it came from."""

    id: str
    """The same for the same document; `#result-<id>` leads to it in a page."""
    title: str
    family: str
    """Workload, mode and options: what results of several batch sizes have in common."""
    runtime: str
    """The contender: the backend, and whatever else was asked for that tells contenders apart."""
    group: str
    status: str
    mark: Mark
    cells: tuple[TableCell, ...]
    document: Document

    @property
    def measured(self) -> bool:
        """Whether there is a rate, be it of a run that failed its verification."""
        return self.document["throughput"]["value"] is not None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Results that were measured in alternation, the fastest first."""

    title: str
    unit: str
    rows: tuple[Row, ...]

    @property
    def leaders(self) -> tuple[Row, ...]:
        """The winner, or those that the noise keeps from being told apart; empty where nothing was compared."""
        return tuple(row for row in self.rows if row.mark in ("fastest", "cannot tell"))

    @property
    def verdict(self) -> str:
        """What the leaders have in common, in words."""
        if not self.leaders:
            return ""
        return "fastest" if self.leaders[0].mark == "fastest" else "cannot tell apart"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that was said of several results: why they were skipped, or why to doubt them."""

    code: str
    text: str
    rows: tuple[str, ...]
    """Ids of the results, in order."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A result that failed: why, and the last lines of its worker."""

    row: str
    reason: str
    log: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PastPoint:
    """The rate of a request in one session."""

    session: str
    created: str
    """When, in a form whose order is that of time."""
    value: float
    low: float | None = None
    high: float | None = None
    row: str = ""
    """The result in this report; empty where it is of a session that the report does not hold."""
    change: float | None = None
    """By which factor the level changed with this session, where it did."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a table shows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    skips: tuple[Notice, ...]
    failures: tuple[Failure, ...]
    warnings: tuple[Notice, ...]
    sessions: tuple[str, ...]
    counts: Mapping[str, int]
    start_spread: float | None = None
    history: Mapping[str, tuple[PastPoint, ...]] = field(default_factory=dict)
    """By a result's id, what a store has of the same request on the same machine, oldest first."""

    @property
    def measured(self) -> tuple[Row, ...]:
        """The rows of all groups, in order."""
        return tuple(row for group in self.groups for row in group.rows)

    @property
    def latest(self) -> tuple[Row, ...]:
        """Of every request that was measured the last session: what is true of one moment needs no earlier ones."""
        found = {(row.title, row.runtime, row.document["rank"]): row for row in self.measured if row.status == "ok"}
        return tuple(found.values())

    @property
    def totals(self) -> str:
        """How many results there are, by status, and of which sessions."""
        parts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        named = f"; session {', '.join(self.sessions)}" if self.sessions else ""
        count = len(self.rows)
        return f"{count} result{'' if count == 1 else 's'}: {parts or 'nothing measured'}{named}"

    def titles(self, ids: Sequence[str]) -> list[str]:
        """The titles of these results."""
        known = {row.id: row.title for row in self.rows}
        return [known[each] for each in ids]


def build(documents: Sequence[Document], start_spread: float | None = None) -> Report:
    """The model of these results; `start_spread` is by how much two starts of one program differ on their machine."""
    names = text.varying(documents)
    read = filled_columns(documents, names)
    rows = _ordered(_rows(documents, read, names, start_spread))
    return Report(
        columns=tuple(each.column for each in read),
        rows=tuple(rows),
        groups=tuple(_groups(rows)),
        skips=tuple(_skips(rows)),
        failures=tuple(_failures(rows)),
        warnings=tuple(_warnings(rows)),
        sessions=tuple(dict.fromkeys(each["session"] for each in documents)),
        counts={status: sum(row.status == status for row in rows) for status in ("ok", "skipped", "failed")},
        start_spread=start_spread,
    )


def marks(group: Sequence[Document], start_spread: float | None = None) -> list[Mark]:
    """What each result of a comparison group is marked with: the winner, or those that cannot be told apart."""
    found: list[Mark] = ["" if each["status"] == "ok" else "FAILED" for each in group]
    fit = [index for index, each in enumerate(group) if each["status"] == "ok"]
    if len(fit) < 2:
        return found
    best = leaders([group[index] for index in fit], start_spread)
    for index in best:
        found[fit[index]] = "fastest" if len(best) == 1 else "cannot tell"
    return found


def warnings(document: Document) -> list[tuple[str, str]]:
    """Code and text of every warning; one without a code has its words, numbers left out, instead."""
    given = document["warnings"]
    codes = document.get("warning_codes") or [None] * len(given)
    return [_warning(code, each) for code, each in zip(codes, given, strict=True)]


def _warning(code: str | None, given: str | Mapping[str, Any]) -> tuple[str, str]:
    words = given if isinstance(given, str) else str(given["text"])
    known = code or (None if isinstance(given, str) else str(given["code"]))
    return known or _NUMBER.sub("#", words).split(":")[0], text.clean(words)


def _rows(
    documents: Sequence[Document], columns: Sequence[FilledColumn], names: Sequence[str], spread: float | None
) -> Iterator[Row]:
    contending, shared = _contending(documents), [name for name in names if name not in CONTENDING]
    ids, found = _ids(documents), _marks(documents, spread)
    for index, document in enumerate(documents):
        yield Row(
            id=ids[index],
            title=text.clean(text.title(document, names)),
            family=text.clean(f"{text.workload(document, shared)}, {document['spec']['mode']}"),
            runtime=text.clean(_runtime(document, contending[document["spec"]["backend"]])),
            group=f"{document['session']} {document['group']}",
            status=document["status"],
            mark=found[index],
            cells=tuple(each.read(document) for each in columns),
            document=document,
        )


def _marks(documents: Sequence[Document], spread: float | None) -> list[Mark]:
    found: list[Mark] = ["" for _ in documents]
    members: dict[tuple[str, str], list[int]] = {}
    for index, each in enumerate(documents):
        if each["throughput"]["value"] is not None:
            members.setdefault((each["session"], each["group"]), []).append(index)
    for indices in members.values():
        for index, mark in zip(indices, marks([documents[each] for each in indices], spread), strict=True):
            found[index] = mark
    return found


def _ids(documents: Sequence[Document]) -> list[str]:
    """A short hash of what was asked for and when; equal ones are numbered."""
    found: dict[str, int] = {}
    ids = []
    for each in documents:
        asked = json.dumps([each["session"], each["rank"], each["spec"]], sort_keys=True, default=str)
        short = hashlib.sha256(asked.encode()).hexdigest()[:10]
        found[short] = found.get(short, 0) + 1
        ids.append(short if found[short] == 1 else f"{short}-{found[short]}")
    return ids


def _contending(documents: Sequence[Document]) -> dict[str, list[str]]:
    """By backend, what tells its contenders apart."""
    asked: dict[str, dict[str, set[str]]] = {}
    for each in documents:
        seen = asked.setdefault(each["spec"]["backend"], {name: set() for name in CONTENDING})
        for name, values in seen.items():
            values.add(str(each["spec"].get(name)))
    return {backend: [name for name in CONTENDING if len(seen[name]) > 1] for backend, seen in asked.items()}


def _runtime(document: Document, contending: Sequence[str]) -> str:
    spec = document["spec"]
    return " ".join([str(spec["backend"]), *(str(spec.get(name)) for name in contending)])


def _ordered(rows: Iterator[Row]) -> list[Row]:
    """By comparison group in the order of their first members; within one, the fastest first."""
    given = list(rows)
    order = {row.group: index for index, row in reversed(list(enumerate(given)))}
    return sorted(given, key=lambda row: (order[row.group], -(row.document["throughput"]["value"] or 0)))


def _groups(rows: Sequence[Row]) -> Iterator[Group]:
    for _, members in groupby((row for row in rows if row.measured), key=lambda row: row.group):
        found = tuple(members)
        first = found[0].document
        title = f"{found[0].family}, batch {first['spec']['batch_size']}"
        yield Group(title=title, unit=first["throughput"]["unit"], rows=found)


def _skips(rows: Sequence[Row]) -> list[Notice]:
    """One per reason."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "skipped":
            by_reason.setdefault(text.clean(row.document["reason"]), []).append(row.id)
    return [Notice(code="skipped", text=reason, rows=tuple(ids)) for reason, ids in by_reason.items()]


def _failures(rows: Sequence[Row]) -> Iterator[Failure]:
    for row in rows:
        if row.status == "failed":
            log = text.clean(row.document["log"] or "").strip().splitlines()[-LOG_LINES:]
            yield Failure(row=row.id, reason=text.clean(row.document["reason"]), log=tuple(log))


def _warnings(rows: Sequence[Row]) -> list[Notice]:
    """One per code, with the words that it was given first."""
    kinds: dict[str, tuple[str, list[str]]] = {}
    for row in rows:
        for code, words in warnings(row.document):
            kinds.setdefault(code, (words, []))[1].append(row.id)
    return [Notice(code=code, text=words, rows=tuple(ids)) for code, (words, ids) in kinds.items()]
