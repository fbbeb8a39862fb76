"""What happened over time, as a page draws it: lanes of pipelines, one batch of a profile, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layermark.report import text
from layermark.report.model import Report

FIGURES_SHOWN, LANES_SHOWN, BARS_SHOWN = 16, 16, 256
"""Pictures of lanes on a page, lanes of a picture and bars of all its lanes: the store has the rest."""

SOURCES = {
    "allocator": "as the runtime's allocator told",
    "graph": "derived from the graph: in its order, nothing fused, nothing written in place",
}
MOMENTS_SHOWN, TIMELINE_SHOWN = 60, 60
"""Points of memory and operators over time of one profile; fewer where there are many profiles."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One piece of work in a lane."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Pieces of work over time, one lane below the other."""

    lanes: Mapping[str, tuple[Bar, ...]]
    note: str = ""
    """What was left out."""


@dataclass(frozen=True, kw_only=True)
class RowLanes:
    """What the stages or ranks of one result did."""

    row: str
    title: str
    drawn: Lanes


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes held over time, and where the numbers are from."""

    source: str
    unit: str
    points: tuple[tuple[float, int], ...]
    peak_bytes: int
    peak_at: float

    @property
    def label(self) -> str:
        """The curve in words."""
        at = f"{text.digits(self.peak_at * 1e3)} ms" if self.unit == "s" else f"{self.unit} {self.peak_at:.0f}"
        return f"at most {text.size(self.peak_bytes)}, at {at}; {self.source}"


def row_lanes(report: Report) -> tuple[list[RowLanes], int]:
    """Return the lanes of the first results that have them, and how many more have."""
    rows = [row for row in report.rows if row.document.get("lanes")]
    shown = [RowLanes(row=each.id, title=each.title, drawn=lanes(each.document["lanes"])) for each in rows]
    return shown[:FIGURES_SHOWN], max(0, len(rows) - FIGURES_SHOWN)


def lanes(given: Sequence[Mapping[str, Any]], left_out: int = 0) -> Lanes:
    """Return as many lanes and bars as a picture holds: the first lanes, of each the first bars.

    `left_out` counts bars that were left out before.
    """
    found: dict[str, list[Bar]] = {}
    for each in given:
        bar = Bar(
            name=text.clean(str(each.get("name", ""))), start_s=float(each["start_s"]), end_s=float(each["end_s"])
        )
        found.setdefault(text.clean(str(each["lane"])), []).append(bar)
    kept = dict(list(found.items())[:LANES_SHOWN])
    most = BARS_SHOWN // max(1, len(kept))
    shown = {name: tuple(sorted(bars, key=lambda bar: bar.start_s)[:most]) for name, bars in kept.items()}
    pieces = left_out + sum(map(len, kept.values())) - sum(map(len, shown.values()))
    return Lanes(lanes=shown, note=_left_out({"lanes": len(found) - len(kept), "pieces of work": pieces}))


def timeline(profile: Mapping[str, Any], room: float = 1.0) -> Lanes | None:
    """Return one batch of a profile over time; None where nothing was kept of it. `room` is a share of the usual."""
    told = profile.get("timeline")
    if not told or not told["bars"]:
        return None
    longest = sorted(told["bars"], key=lambda each: each["start_s"] - each["end_s"])
    shown = sorted(longest[: round(TIMELINE_SHOWN * room)], key=lambda each: float(each["start_s"]))
    return lanes(shown, int(told["left_out"]) + len(longest) - len(shown))


def memory(profile: Mapping[str, Any], room: float = 1.0) -> Memory | None:
    """Return what a pass held over time; None where nothing was kept of it. `room` is a share of the usual."""
    told = profile.get("liveness")
    if not told:
        return None
    return Memory(
        source=SOURCES.get(str(told["source"]), text.clean(str(told["source"]))),
        unit=text.clean(str(told["unit"])),
        points=tuple((float(x), int(held)) for x, held in _highest(told["points"], round(MOMENTS_SHOWN * room))),
        peak_bytes=int(told["peak_bytes"]),
        peak_at=float(told["peak_at"]),
    )


def _highest(points: Sequence[Sequence[float]], most: int) -> Iterable[Sequence[float]]:
    """So few points that a page holds many pictures, of neighbours the highest."""
    stride = -(-len(points) // most)
    return (max(points[at : at + stride], key=lambda point: point[1]) for at in range(0, len(points), stride or 1))


def _left_out(counts: Mapping[str, int]) -> str:
    said = [f"{count} more {what}" for what, count in counts.items() if count]
    return f"{' and '.join(said)} left out" if said else ""
