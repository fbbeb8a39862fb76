"""The views of a profile, made from its document: how far to trust it, the program tree, memory, comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layermark.report import text
from layermark.report.model import Report, Row
from layermark.stats.accounts import UNTIED, side_by_side

TREE_SHOWN, PIECES_SHOWN, ALIVE_SHOWN = 40, 20, 12
_LEAST_SHARE = 0.01
"""Branches with less of the time are summed up in their parent."""

_FACTS = {"operators", "sum_s", "step_s", "memory", "tied", "gap", "overhead", "batches", "insights"}

Profile = Mapping[str, Any]
Names = tuple[str, ...]
"""Where a branch is: the parts of names that lead to it."""
Table = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A part of the program: a node, or all nodes below a common beginning of their names."""

    name: str
    depth: int
    time_s: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Profiles of one network beside each other, per node or set of fused nodes; the first line is the header."""

    title: str
    rows: tuple[str, ...]
    """Ids of the results, in the order of the columns."""
    lines: Table
    left_out: int


def whole(profile: Profile) -> bool:
    """Whether a profile is one of ours, with all that the views need; documents of others may hold operators alone."""
    return set(profile) >= _FACTS and all({"node", "operator", "time_s"} <= set(row) for row in profile["operators"])


def tree(profile: Profile, most: int = TREE_SHOWN, levels: int | None = None) -> list[Branch]:
    """Return the program as a tree in the graph's order, with the time of everything below each branch.

    A fused row belongs to what its nodes have in common: `b1/conv` and `b1/relu` in one kernel are time of `b1`.
    Of more than `most` branches the deepest are left out first, of one level the shortest; a last branch sums them up.
    """
    total = float(profile["sum_s"]) or 1.0
    times = _times(profile)
    kept = [path for path in times if times[path] / total >= _LEAST_SHARE and len(path) <= (levels or len(path))]
    ranked = sorted(kept, key=lambda path: (len(path), -times[path]))
    shown = set(ranked if len(ranked) <= most else ranked[: most - 1])
    found = [_branch(path[-1], len(path) - 1, times[path], total) for path in _in_order(kept) if path in shown]
    left_out = set(kept) - shown
    return [*found, _rest(left_out, times, total)] if left_out else found


def _times(profile: Profile) -> dict[Names, float]:
    """The time of everything below each beginning of names."""
    times: dict[Names, float] = {}
    for row in _in_graph_order(profile):
        path = _common(row["node"])
        for depth in range(1, len(path) + 1):
            times[path[:depth]] = times.get(path[:depth], 0.0) + float(row["time_s"])
    return times


def _in_graph_order(profile: Profile) -> list[Mapping[str, Any]]:
    """The operators by the first of their nodes in the graph; what has none, or no known one, comes last.

    Profiles of earlier versions do not have the graph's order: theirs stay as they are.
    """
    place = {name: at for at, name in enumerate(profile.get("nodes") or ())}

    def first(row: Mapping[str, Any]) -> int:
        return min((place[name] for name in row["node"] if name in place), default=len(place))

    return sorted(profile["operators"], key=first)


def _branch(name: str, depth: int, time_s: float, total: float) -> Branch:
    return Branch(name=text.clean(name), depth=depth, time_s=time_s, share=time_s / total)


def _rest(left_out: Collection[Names], times: Mapping[Names, float], total: float) -> Branch:
    """All that was left out; the time of a branch holds that of what is below it already."""
    time_s = sum(times[path] for path in left_out if path[:-1] not in left_out)
    return _branch(f"{len(left_out)} more", 0, time_s, total)


def _common(nodes: Sequence[str]) -> Names:
    """The beginning that names have in common, part by part; single names keep their last part.

    >>> _common(["b1/conv", "b1/relu"]), _common(["stem", "pool"]), _common(["fc"]), _common([])
    (('b1', 'conv + relu'), ('stem + pool',), ('fc',), ('tied to no node',))
    """
    if not nodes:
        return (UNTIED,)
    paths = [tuple(name.split("/")) for name in nodes]
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    ends = ["/".join(path[shared:]) for path in paths]
    shown = ends if len(ends) <= 3 else [*ends[:2], f"{len(ends) - 2} more"]
    return (*paths[0][:shared], " + ".join(shown))


def _in_order(paths: Sequence[Names]) -> Iterator[Names]:
    """Parents before children, children in the order in which they were met."""
    below: dict[Names, list[Names]] = {}
    for path in paths:
        below.setdefault(path[:-1], []).append(path)

    def walk(parent: Names) -> Iterator[Names]:
        for path in below.get(parent, ()):
            yield path
            yield from walk(path)

    return walk(())


def facts(profile: Profile) -> dict[str, str]:
    """How far to trust a profile: its sum beside the timed step, its overhead, what is tied to nodes, the peak."""
    found = {
        "sum of operators": summed(profile),
        "profiler": overhead(profile),
        "tied to nodes": f"{text.percent(profile['tied'])} of the operators' time",
    }
    if profile["memory"]["peak_bytes"] is not None:
        found["most memory"] = text.size(profile["memory"]["peak_bytes"])
    return found


def summed(profile: Profile) -> str:
    """The sum of the operators beside the timed step."""
    gap = profile["gap"]
    if gap is None:
        return ms(profile["sum_s"])
    return f"{ms(profile['sum_s'])}, {gap:+.0%} beside the timed step of {ms(profile['step_s'])}"


def overhead(profile: Profile) -> str:
    """What the profiler costs."""
    share = profile["overhead"]
    if share is None:
        return "its own overhead is not known"
    return f"{share:+.0%} on the timed step, in a pass of its own of {profile['batches']} batches"


def phases(document: Mapping[str, Any]) -> dict[str, str]:
    """What came before the first timed step: import, build, first call, warm-up."""
    given = document.get("timings_s") or {}
    return {
        name.replace("_", " "): f"{text.digits(float(seconds))} s"
        for name, seconds in given.items()
        if isinstance(seconds, int | float) and seconds > 0
    }


def alive(profile: Profile) -> Table:
    """What was held at the peak of memory, the largest first: as the runtime told, else as the graph tells."""
    told = profile.get("liveness") or profile["memory"]
    held = sorted(told.get("alive") or (), key=lambda each: -each["bytes"])[:ALIVE_SHOWN]
    peak = told["peak_bytes"] or 0
    return tuple(
        (text.clean(str(each["node"])), text.size(each["bytes"]), text.percent(each["bytes"] / peak if peak else None))
        for each in held
    )


def comparisons(report: Report) -> list[Comparison]:
    """Profiles of the same comparison group beside each other."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        profile = row.document.get("profile")
        if profile and whole(profile):
            groups.setdefault((row.group, row.document["session"]), []).append(row)
    return [_comparison(members) for members in groups.values() if len(members) > 1]


def _comparison(members: Sequence[Row]) -> Comparison:
    pieces = side_by_side([row.document["profile"] for row in members])
    lines = [
        (_short(piece.name), *(ms(each) for each in piece.times_s), _spread(piece.times_s))
        for piece in pieces[:PIECES_SHOWN]
    ]
    return Comparison(
        title=members[0].family,
        rows=tuple(row.id for row in members),
        lines=(("node", *(row.runtime for row in members), "longest / shortest"), *lines),
        left_out=max(0, len(pieces) - PIECES_SHOWN),
    )


def _spread(times_s: Sequence[float | None]) -> str:
    held = [each for each in times_s if each]
    return f"{max(held) / min(held):.1f} x" if len(held) == len(times_s) and held else text.MISSING


def _short(name: str) -> str:
    parts = text.clean(name).split(" + ")
    return name if len(parts) <= 3 else f"{' + '.join(parts[:2])} + {len(parts) - 2} more"


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds."""
    return text.MISSING if seconds is None else f"{text.digits(seconds * 1e3)} ms"
