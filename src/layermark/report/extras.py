"""What only some documents carry: training curves and profiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layermark.report import over_time, profiles, text
from layermark.report.model import Report, Row
from layermark.report.plots import Axis, Plot, Point, Section, Series, by_family, section, spread

PROFILES_SHOWN, PROFILES_WHOLE = 100, 40
"""Profiles of a page; so many of them have all of their room, more share it."""
OPERATORS_SHOWN, TREE_SHOWN = 24, 24
CURVE_SHOWN, CURVES_ENTRIES = 100, 6_000
"""So many entries of a curve, and of all curves of a page, are drawn: evenly spread and with the last among them."""
_FEWEST = 12

# How the numbers of a curve are counted; the first that a curve has is its x axis.
_COUNTERS = ("step", "update", "iteration", "epoch", "time_s")


@dataclass(frozen=True, kw_only=True)
class Operators:
    """The views of one profile. Of the operators the longest come first; the header names what the profiler told."""

    row: str
    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    left_out: int
    facts: Mapping[str, str]
    """How far to trust it: sums, overhead, what is tied to nodes, the peak of memory."""
    phases: Mapping[str, str]
    insights: tuple[str, ...]
    tree: tuple[profiles.Branch, ...]
    alive: profiles.Table
    memory: over_time.Memory | None
    timeline: over_time.Lanes | None
    trace: str
    """The path of its trace; empty where there is none."""


def curves(report: Report) -> Section:
    """Loss, accuracy and whatever else a training run wrote down, over its steps."""
    rows = [row for row in report.rows if _whole_curve(row.document)]
    return spread(
        section("curves", "Training curves", "What a training run wrote down as it went.", _curve_plots(rows))
    )


def _whole_curve(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What a training run wrote down: its own (`settings.training.curve`), or one that a document carries."""
    training = (document.get("settings") or {}).get("training") or {}
    return document.get("curve") or training.get("curve") or ()


def curve(document: Mapping[str, Any], most: int = CURVE_SHOWN) -> Sequence[Mapping[str, Any]]:
    """Return what is drawn of a document's curve."""
    found = _whole_curve(document)
    stride = -(-len(found) // most) or 1
    return found[::-stride][::-1]


def operators(report: Report) -> tuple[list[Operators], int]:
    """Return the profiles of the first results that have one, and how many more have."""
    rows = [(row, (row.document.get("profile") or {}).get("operators")) for row in report.rows]
    profiled = [(row, found) for row, found in rows if found]
    room = min(1.0, PROFILES_WHOLE / max(1, min(PROFILES_SHOWN, len(profiled))))
    shown = [_operators(row, found, room) for row, found in profiled[:PROFILES_SHOWN]]
    return shown, len(profiled) - len(shown)


def _curve_plots(rows: Sequence[Row]) -> Iterator[Plot]:
    numbers = sum(len(_whole_curve(row.document)[0]) for row in rows)
    most = max(_FEWEST, min(CURVE_SHOWN, CURVES_ENTRIES // max(1, numbers)))
    for family, members in by_family(rows).items():
        drawn = {row.id: curve(row.document, most) for row in members}
        first = drawn[members[0].id][0]
        counter = next((name for name in _COUNTERS if name in first), None)
        for name in dict.fromkeys(name for entries in drawn.values() for entry in entries for name in entry):
            points = [(row.runtime, list(_curve_points(row, drawn[row.id], counter, name))) for row in members]
            if name != counter and any(each for _, each in points):
                yield Plot(
                    key=f"curve-{family}-{name}",
                    title=f"{family}: {name}",
                    x=Axis(label=counter or "entry"),
                    y=Axis(label=name),
                    series=tuple(Series(runtime=runtime, points=tuple(each), joined=True) for runtime, each in points),
                )


def _curve_points(row: Row, entries: Sequence[Mapping[str, Any]], counter: str | None, name: str) -> Iterator[Point]:
    for index, entry in enumerate(entries):
        value: Any = entry.get(name)
        x: Any = entry.get(counter) if counter else index
        # A loss that is no longer finite has no place on an axis.
        if all(isinstance(each, int | float) and math.isfinite(each) for each in (value, x)):
            label = f"{row.title}: {name} {text.digits(value)} at {counter or 'entry'} {x:g}"
            yield Point(x=float(x), y=float(value), row=row.id, label=label)


def _operators(row: Row, found: Sequence[Mapping[str, Any]], room: float) -> Operators:
    header = tuple(dict.fromkeys(name for each in found for name in each))
    ranked = sorted(found, key=lambda each: -float(each.get("time_s") or 0.0))
    lines = [tuple(_cell(each.get(name)) for name in header) for each in ranked[: round(OPERATORS_SHOWN * room)]]
    left_out = len(found) - len(lines)
    return Operators(
        row=row.id, title=row.title, header=header, lines=tuple(lines), left_out=left_out, **_views(row.document, room)
    )


def _views(document: Mapping[str, Any], room: float) -> dict[str, Any]:
    """What a profile says besides its operators."""
    profile = document["profile"]
    whole = profiles.whole(profile)
    return {
        "facts": profiles.facts(profile) if whole else {},
        "phases": profiles.phases(document),
        "insights": tuple(text.clean(str(each["text"])) for each in profile["insights"]) if whole else (),
        "tree": tuple(profiles.tree(profile, round(TREE_SHOWN * room))) if whole else (),
        "alive": profiles.alive(profile)[: round(profiles.ALIVE_SHOWN * room)] if whole else (),
        "memory": over_time.memory(profile, room),
        "timeline": over_time.timeline(profile, room),
        "trace": next((text.clean(str(path)) for path in profile.get("files", ()) if _is_trace(path)), ""),
    }


def _is_trace(path: Any) -> bool:
    return str(path).endswith(".trace.json")


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return text.MISSING if value is None else str(value).lower()
    if isinstance(value, list):
        return text.clean(", ".join(map(str, value))) or text.MISSING
    if isinstance(value, int):
        return text.human(value) if value >= 10_000 else str(value)
    return text.human(value) if isinstance(value, float) else text.clean(str(value))
