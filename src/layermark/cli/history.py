"""`layermark history`: a measurement over sessions, and when it changed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP, read
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.stats import Change
    from layermark.store import Point, Series

SUMMARY = "show measurements over sessions, and when they changed"

EPILOG = """examples:
  layermark history
  layermark history lstm conv --backend torch
  layermark history --key 3f2a

One measurement is shown in full, several in a line each. A change is told where the ratio to the ceiling (the rate,
where sessions lack a ceiling) stands at another level for at least three sessions: a machine that was slower on some
days moves the rate, and hardly this ratio."""

SERIES, POINTS = 20, 50
_KEY = 8


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="show these only (default: what was measured last)"
    )
    parser.add_argument("--backend", metavar="NAME,...", help="show these backends only")
    parser.add_argument("--key", metavar="KEY", default="", help="show the measurement whose key begins like this")
    parser.add_argument("--last", metavar="N", default=str(POINTS), help=f"sessions of each (default: {POINTS})")
    parser.add_argument("--most", metavar="N", default=str(SERIES), help=f"measurements (default: {SERIES})")
    parser.add_argument("--json", action="store_true", help="print one JSON document per measurement")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print the measurements."""
    from layermark.options import integer
    from layermark.store import open_store

    last, most = read("--last", integer(1), args.last), read("--most", integer(1), args.most)
    workloads = [name for text in args.workloads for name in text.split(",")]
    backends = args.backend.split(",") if args.backend else []
    with open_store(args.store) as store:
        found = store.series(workloads, backends=backends, key=args.key, most=most, last=last)
        if not found:
            raise UserError(_nothing(args, store.url))
    if args.json:
        print(*(json.dumps(_document(each)) for each in found), sep="\n")
    else:
        print(_detail(found[0]) if len(found) == 1 else _overview(found))
    return 0


def _nothing(args: Namespace, url: str) -> str:
    if args.workloads or args.backend or args.key:
        return f"store {url}: no such measurement; layermark history shows what was measured last"
    return f"the store {url} holds no measurement yet; begin with: layermark run --suite quick"


def _overview(found: Sequence[Series]) -> str:
    from layermark.cli.plain import printable, small_plot, table, titles

    header = ["key", "measurement", "sessions", "rate", "since first", "ceiling", "changes", "over time"]
    rows = []
    for series, name in zip(found, titles([each.spec for each in found]), strict=True):
        rates = [point.throughput for point in _measured(series)]
        rows.append(
            [
                series.spec.key[:_KEY],
                name,
                str(len(series.points)),
                _rate(series.points[-1]),
                f"{rates[-1] / rates[0] - 1:+.1%}" if rates and rates[0] and rates[-1] else "-",
                _share(series.points[-1].efficiency),
                str(len(_changes(series))),
                small_plot(_levels(series)),
            ]
        )
    lines = [table(header, rows, left=["key", "measurement", "over time"])]
    machines = {printable(series.machine) for series in found}
    return "\n".join([*lines, *(f"on {each}" for each in sorted(machines)), "one in full: layermark history --key KEY"])


def _detail(series: Series) -> str:
    from layermark.cli.plain import plot, printable, table, titles
    from layermark.report.text import human

    rows = [
        [each.session, each.created[:16], each.status, _rate(each), _arm(each), _share(each.efficiency)]
        for each in series.points
    ]
    header = ["session", "when", "status", "rate", "+-", "ceiling"]
    lines = [f"{titles([series.spec])[0]}  key {series.spec.key[:_KEY]}", f"on {printable(series.machine)}", ""]
    lines += [table(header, rows, left=["session", "when", "status"])]
    ratios = [point.efficiency for point in series.points]
    lines += ["", "rate", plot([point.throughput for point in series.points], human)]
    lines += ["", "ratio to the ceiling", plot(ratios, _share)] if any(ratios) else []
    return "\n".join([*lines, *_change_lines(series)])


def _change_lines(series: Series) -> list[str]:
    from layermark.report.text import one_line

    measured = _measured(series)
    lines = (
        f"changed by {change.ratio - 1:+.1%} with session {measured[change.index].session}"
        f"{_explained(measured[change.index - 1], measured[change.index])}"
        for change in _changes(series)
    )
    return list(map(one_line, lines))


def _explained(before: Point, after: Point) -> str:
    from layermark.stats import differences

    found = differences(before.environment, after.environment)
    return f"; what else changed: {'; '.join(found)}" if found else ""


def _document(series: Series) -> dict[str, Any]:
    import dataclasses

    measured = _measured(series)
    changed = [
        {"session": measured[each.index].session, "before": each.before, "after": each.after, "ratio": each.ratio}
        for each in _changes(series)
    ]
    points = [dataclasses.asdict(point) for point in series.points]
    for point in points:
        del point["environment"]
    head = {"key": series.spec.key, "spec": series.spec.to_json(), "machine": series.machine}
    return {**head, "points": points, "changes": changed}


def _measured(series: Series) -> list[Point]:
    """The points that a change is looked for in: those with the number that is looked at."""
    ok = [point for point in series.points if point.status == "ok" and point.throughput]
    return [point for point in ok if point.efficiency] if _by_ceiling(series) else ok


def _by_ceiling(series: Series) -> bool:
    """Whether the ratio to the ceiling is looked at, in all of a series: else the rate.

    Points without a ceiling are left out then, so they must be fewer than could make a change.
    """
    from layermark.stats import MIN_SEGMENT

    ok = [point for point in series.points if point.status == "ok" and point.throughput]
    lacking = sum(not point.efficiency for point in ok)
    return lacking < min(MIN_SEGMENT, len(ok))


def _changes(series: Series) -> list[Change]:
    from layermark.stats import changes

    by_ceiling = _by_ceiling(series)
    return changes([value for point in _measured(series) if (value := _level(point, by_ceiling))])


def _levels(series: Series) -> list[float | None]:
    by_ceiling = _by_ceiling(series)
    return [_level(point, by_ceiling) if point.status == "ok" else None for point in series.points]


def _level(point: Point, by_ceiling: bool) -> float | None:
    return point.efficiency if by_ceiling else point.throughput


def _rate(point: Point) -> str:
    from layermark.report.text import human

    return f"{human(point.throughput)} {point.unit}" if point.throughput else point.status


def _arm(point: Point) -> str:
    if not point.throughput or point.low is None or point.high is None:
        return "-"
    return f"{max(point.high - point.throughput, point.throughput - point.low) / point.throughput:.1%}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def changed_sessions(series: Series) -> dict[str, float]:
    """Return the sessions with which a measurement's level changed, and by which factor."""
    measured = _measured(series)
    return {measured[each.index].session: each.ratio for each in _changes(series)}
