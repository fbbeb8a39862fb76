"""The data of plots, made from a report. What draws them knows points, lines and axes only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from layermark.metric import Metric, metric
from layermark.report import text
from layermark.report.model import PastPoint, Report, Row
from layermark.report.text import Document

PLOTS_SHOWN = 24
HOVERED, HOVERED_IN_ALL = 8, 240
"""Points that answer to the pointer: of a long line, and of all long lines of a section together."""
POINTS_SHOWN = 2000
"""A page with more would be slow to open; the table has every result."""

_DATED = re.compile(r"\d{4}(\d\d)(\d\d)-(\d\d)(\d\d)")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One direction of a plot; `ticks` names the places that are labelled, where they are not just round numbers."""

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Point:
    """One result in a plot."""

    x: float
    y: float
    row: str
    """Where it leads to; empty where the page does not have the result."""
    label: str
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    """The most that it could have reached."""
    note: str = ""
    """A few characters that are drawn beside it."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The points of one contender; a long line has a `path` of its own, and points only where it says something."""

    runtime: str
    points: tuple[Point, ...]
    joined: bool = False
    path: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line that is no contender's: a ceiling, or the front of what nobody beats in both directions."""

    kind: Literal["roof", "front", "change"]
    points: tuple[tuple[float, float], ...]
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Axes and what lies between them."""

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """Plots of one kind."""

    key: str
    title: str
    intro: str
    plots: tuple[Plot, ...]
    left_out: int = 0


def sections(report: Report) -> list[Section]:
    """Every kind of plot that these results can fill."""
    found = [
        section(
            "batch",
            "Rate against batch size",
            "Where a larger batch stops paying. Whiskers are 95 % intervals over blocks.",
            _batch_plots(report),
        ),
        section(
            "latency",
            "Latency against rate",
            "Right and down is better; figures are batch sizes. Nothing measured beats the dashed front in both.",
            _latency_plots(report),
        ),
        section(
            "roofline",
            "Roofline",
            "Arithmetic per second against arithmetic per byte. The stem above a point ends at its own ceiling, "
            "measured in the same session for its type and working set; the roof is the highest of them.",
            _rooflines(report),
        ),
        spread(
            section(
                "history",
                "History",
                "The rate of the same request from session to session, with 95 % intervals. A dashed line is a change "
                "of level: of the ratio to the ceiling, where there is one.",
                _histories(report),
            )
        ),
    ]
    return [each for each in found if each.plots]


def section(key: str, title: str, intro: str, plots: Iterator[Plot]) -> Section:
    """As many plots as a page should hold."""
    given = list(plots)
    left_out = max(0, len(given) - PLOTS_SHOWN)
    return Section(key=key, title=title, intro=intro, plots=tuple(given[:PLOTS_SHOWN]), left_out=left_out)


def spread(given: Section) -> Section:
    """A section whose lines are one path each, with a few points that answer to the pointer, the last among them."""
    lines = [each for plot in given.plots for each in plot.series if each.points]
    most = max(1, min(HOVERED, HOVERED_IN_ALL // max(1, len(lines))))
    plots = tuple(replace(plot, series=tuple(_spread(each, most) for each in plot.series)) for plot in given.plots)
    return replace(given, plots=plots)


def _spread(series: Series, most: int) -> Series:
    stride = -(-len(series.points) // most) or 1
    told = tuple(point for at, point in enumerate(series.points[::-1]) if at % stride == 0 or point.note)[::-1]
    return replace(series, points=told, path=tuple((point.x, point.y) for point in series.points))


def by_family(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Results that differ in contender, batch size and session only."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.family, []).append(row)
    return found


def series(points: Sequence[tuple[str, Point]], *, joined: bool = False) -> tuple[Series, ...]:
    """Points by contender, each from left to right."""
    found: dict[str, list[Point]] = {}
    for runtime, point in points:
        found.setdefault(runtime, []).append(point)
    return tuple(
        Series(runtime=runtime, points=tuple(sorted(each, key=lambda point: point.x)), joined=joined)
        for runtime, each in found.items()
    )


def _label(row: Row, *values: Metric) -> str:
    return f"{row.title}: {', '.join(text.quantity(each) for each in values)}"


def _batch_plots(report: Report) -> Iterator[Plot]:
    for family, rows in by_family(report.latest).items():
        sizes = sorted({int(row.document["spec"]["batch_size"]) for row in rows})
        if len(sizes) > 1:
            rate = metric("throughput").read(rows[0].document)
            yield Plot(
                key=f"batch-{family}",
                title=family,
                x=Axis(label="batch size", log=True, ticks=tuple((size, str(size)) for size in sizes)),
                y=Axis(label=rate.unit, log=True),
                series=series(
                    [(row.runtime, _rate_point(row, row.document["spec"]["batch_size"])) for row in rows], joined=True
                ),
            )


def _rate_point(row: Row, x: float) -> Point:
    rate = metric("throughput").read(row.document)
    label = f"{_label(row, rate)}, {text.arms(row.document['throughput'])}"
    return Point(x=x, y=rate.value or 0.0, low=rate.low, high=rate.high, row=row.id, label=label)


def _latency_plots(report: Report) -> Iterator[Plot]:
    known = metric("latency_ms.p50")
    for family, rows in by_family(report.latest).items():
        points = [(row.runtime, _latency_point(row)) for row in rows if known.read(row.document).value is not None]
        if len(points) > 1:
            yield Plot(
                key=f"latency-{family}",
                title=family,
                x=Axis(label=metric("throughput").read(rows[0].document).unit, log=True),
                y=Axis(label=f"{known.name}, {known.unit}", log=True),
                series=series(points),
                lines=(Line(kind="front", points=front([(point.x, point.y) for _, point in points])),),
            )


def _latency_point(row: Row) -> Point:
    rate, latency = metric("throughput").read(row.document), metric("latency_ms.p50").read(row.document)
    size = str(row.document["spec"]["batch_size"])
    return Point(x=rate.value or 0.0, y=latency.value or 0.0, row=row.id, label=_label(row, rate, latency), note=size)


def front(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that no other beats with more x and less y, from left to right.

    >>> front([(1, 1), (2, 3), (3, 2), (3, 4)])
    ((1, 1), (3, 2))
    """
    kept: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (-point[0], point[1])):
        if not kept or y < kept[-1][1]:
            kept.append((x, y))
    return tuple(reversed(kept))


def _rooflines(report: Report) -> Iterator[Plot]:
    held = [row for row in report.measured if row.document["efficiency"] and row.document["ceiling"]["intensity"]]
    kinds: dict[str, list[Row]] = {}
    for row in held[:POINTS_SHOWN]:
        kinds.setdefault(row.document["spec"]["precision"], []).append(row)
    for precision, rows in kinds.items():
        points = [(row.runtime, _roof_point(row)) for row in rows]
        yield Plot(
            key=f"roofline-{precision}",
            title=f"precision {precision}",
            x=Axis(label="FLOP per byte", log=True),
            y=Axis(label="FLOP/s", log=True),
            series=series(points),
            lines=(_roof([row.document for row in rows]),),
            wide=True,
        )


def _roof_point(row: Row) -> Point:
    ceiling, share = row.document["ceiling"], metric("efficiency").read(row.document)
    limit = min(ceiling["flops_per_s"], ceiling["intensity"] * ceiling["bytes_per_s"])
    attained = (share.value or 0.0) * limit
    reached = f"{text.scaled(attained, 'FLOP/s')}, {text.number(share)} of its ceiling"
    label = f"{row.title}: {reached}, bound by {ceiling['bound']}"
    return Point(x=ceiling["intensity"], y=attained, limit=limit, row=row.id, label=label)


def _roof(documents: Sequence[Document]) -> Line:
    ceilings = [each["ceiling"] for each in documents]
    peak, bandwidth = (max(each[name] for each in ceilings) for name in ("flops_per_s", "bytes_per_s"))
    ridge, places = peak / bandwidth, [each["intensity"] for each in ceilings]
    left, right = min(ridge / 2, *places, ridge) / 2, max(ridge * 2, *places, ridge) * 2
    label = f"{text.scaled(peak, 'FLOP/s')}, {text.scaled(bandwidth, 'B/s')}"
    return Line(kind="roof", points=((left, left * bandwidth), (ridge, peak), (right, peak)), label=label)


def _histories(report: Report) -> Iterator[Plot]:
    for title, rows in _requests(report).items():
        lines = _past(report, rows)
        order = sorted({(each.created, each.session) for _, points in lines for each in points})
        if len(order) > 1:
            place = {session: float(index) for index, (_, session) in enumerate(order)}
            unit = metric("throughput").read(rows[0].document).unit
            yield Plot(
                key=f"history-{title}",
                title=title,
                x=Axis(label="session", ticks=tuple((index, session_label(name)) for name, index in place.items())),
                y=Axis(label=unit, log=True),
                series=tuple(_history(title, runtime, points, place) for runtime, points in lines),
                lines=tuple(_changes(lines, place)),
            )


def _past(report: Report, rows: Sequence[Row]) -> list[tuple[str, tuple[PastPoint, ...]]]:
    """The sessions of every contender: those that the store has of it, else those of the page."""
    found: dict[str, dict[str, PastPoint]] = {}
    order = {session: index for index, session in enumerate(report.sessions)}
    for row in rows:
        held = found.setdefault(row.runtime, {})
        held |= {each.session: each for each in report.history.get(row.id, ()) if each.session not in held}
        session = row.document["session"]
        rate = metric("throughput").read(row.document)
        known = held.get(session)
        created = known.created if known else f"{order[session]:09}"
        ratio = known.change if known else None
        held[session] = PastPoint(
            session=session,
            created=created,
            value=rate.value or 0.0,
            low=rate.low,
            high=rate.high,
            row=row.id,
            change=ratio,
        )
    return [(runtime, tuple(sorted(held.values(), key=lambda each: each.created))) for runtime, held in found.items()]


def _history(title: str, runtime: str, points: Sequence[PastPoint], place: Mapping[str, float]) -> Series:
    def point(each: PastPoint) -> Point:
        changed = "" if each.change is None else f"{each.change - 1:+.1%}"
        words = f"{title} on {runtime}: {text.human(each.value)}, session {each.session}"
        return Point(
            x=place[each.session],
            y=each.value,
            low=each.low,
            high=each.high,
            row=each.row,
            label=text.clean(f"{words}, changed by {changed}" if changed else words),
            note=changed,
        )

    return Series(runtime=runtime, points=tuple(map(point, points)), joined=True)


def _changes(lines: Sequence[tuple[str, Sequence[PastPoint]]], place: Mapping[str, float]) -> Iterator[Line]:
    """A line from the lowest to the highest rate wherever a level changed."""
    values = [each.value for _, points in lines for each in points]
    for at in sorted({place[each.session] for _, points in lines for each in points if each.change is not None}):
        yield Line(kind="change", points=((at, min(values)), (at, max(values))))


def _requests(report: Report) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for group in report.groups:
        found.setdefault(group.title, []).extend(row for row in group.rows if row.status == "ok")
    return found


def session_label(session: str) -> str:
    """Day and time of a session that is named after them, else the head of its name.

    >>> session_label("20261118-074916-6747"), session_label("before-the-change")
    ('11-18 07:49', 'before-the-c')
    """
    dated = _DATED.match(session)
    return "{}-{} {}:{}".format(*dated.groups()) if dated else session[:12]
