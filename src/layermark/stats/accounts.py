"""Which operators account for the difference between two profiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Profile = Mapping[str, Any]

UNTIED = "tied to no node"
NAMED = 3
"""So many are named beside a verdict."""
_LEAST_SHARE = 0.1
"""Whoever has less of the difference is not named: a profiler's own noise is as large."""


@dataclass(frozen=True, kw_only=True)
class OperatorChange:
    """One node (or the nodes that either side fused) before and after: seconds of a batch on both sides."""

    nodes: tuple[str, ...]
    """Empty for time that is tied to no node; the operators then have the same name."""
    before: tuple[str, ...]
    """Kernels or primitives of the first side, the longest first."""
    after: tuple[str, ...]
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        """How much longer it takes in the second profile."""
        return self.after_s - self.before_s

    @property
    def name(self) -> str:
        """The nodes, else the operator."""
        return " + ".join(self.nodes) or (self.before or self.after)[0]


def operator_changes(before: Profile, after: Profile) -> list[OperatorChange]:
    """Return every piece of work of two profiles, those that account for most of the difference first.

    Runtimes fuse different nodes. What either side has in one row belongs together on both, so that times can be
    set beside each other; rows without nodes are matched by the operator's name.
    """
    sides = (before["operators"], after["operators"])
    part_of = _joined(row["node"] for rows in sides for row in rows)
    names: dict[str, list[str]] = {}
    for node, part in part_of.items():
        names.setdefault(part, []).append(node)
    pieces = [_by_part(rows, part_of) for rows in sides]
    found = [_change(key, names, *pieces) for key in dict.fromkeys([*pieces[0], *pieces[1]])]
    direction = 1.0 if sum(each.change_s for each in found) >= 0 else -1.0
    return sorted(found, key=lambda each: -direction * each.change_s)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The same work in several profiles: seconds of a batch in each, None where a profile has nothing of it."""

    name: str
    times_s: tuple[float | None, ...]


def side_by_side(profiles: Sequence[Profile]) -> list[Piece]:
    """Return every piece of work of several profiles of one graph, the longest first.

    What one of them has in one row belongs together in all. Time that is tied to no node is one piece.
    """
    part_of = _joined(row["node"] for profile in profiles for row in profile["operators"])
    names: dict[str, list[str]] = {}
    for node, part in part_of.items():
        names.setdefault(part, []).append(node)
    columns: list[dict[str, float]] = []
    for profile in profiles:
        column: dict[str, float] = {}
        for row in profile["operators"]:
            part = part_of[row["node"][0]] if row["node"] else ""
            column[part] = column.get(part, 0.0) + float(row["time_s"])
        columns.append(column)
    found = [
        Piece(name=" + ".join(names.get(part, ())) or UNTIED, times_s=tuple(each.get(part) for each in columns))
        for part in dict.fromkeys(part for column in columns for part in column)
    ]
    return sorted(found, key=lambda each: -max(time or 0.0 for time in each.times_s))


def accountable(before: Profile | None, after: Profile | None) -> list[OperatorChange]:
    """Return the few changes with most of the difference between two profiles; none where one is missing."""
    if not before or not after:
        return []
    found = operator_changes(before, after)
    total = sum(each.change_s for each in found)
    return [each for each in found[:NAMED] if total and each.change_s / total >= _LEAST_SHARE]


def told(change: OperatorChange) -> str:
    """Return a change in words.

    >>> told(OperatorChange(nodes=("fc",), before=("gemm",), after=("gemm",), before_s=0.001, after_s=0.0012))
    'fc 1 -> 1.2 ms (+20%)'
    """
    share = f"{change.after_s / change.before_s - 1:+.0%}" if change.before_s else "new"
    kernels = _kernels(change)
    return f"{change.name} {change.before_s * 1e3:.3g} -> {change.after_s * 1e3:.3g} ms ({share}{kernels})"


def _kernels(change: OperatorChange) -> str:
    if not (change.before and change.after) or change.before[0] == change.after[0]:
        return ""
    return f", {change.before[0]} -> {change.after[0]}"


def _joined(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return for every node the first of the nodes that it shares a row with, directly or through others."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for nodes in rows:
        for node in nodes:
            parent[root(node)] = root(nodes[0])
    return {node: root(node) for node in parent}


def _by_part(rows: Sequence[Row], part_of: Mapping[str, str]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -float(row["time_s"])):
        key = (part_of[row["node"][0]], "") if row["node"] else ("", str(row["operator"]))
        found.setdefault(key, []).append(row)
    return found


def _change(
    key: tuple[str, str], names: Mapping[str, Sequence[str]], *pieces: Mapping[tuple[str, str], Sequence[Row]]
) -> OperatorChange:
    before, after = (each.get(key, ()) for each in pieces)
    return OperatorChange(
        nodes=tuple(names[key[0]]) if key[0] else (),
        before=tuple(_operators(before)),
        after=tuple(_operators(after)),
        before_s=sum(float(row["time_s"]) for row in before),
        after_s=sum(float(row["time_s"]) for row in after),
    )


def _operators(rows: Sequence[Row]) -> Iterator[str]:
    yield from dict.fromkeys(str(row["operator"]) for row in rows)
