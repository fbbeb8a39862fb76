"""`layermark report`: stored sessions as one HTML file."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.report.model import PastPoint, Report
    from layermark.store import Series, Store

HISTORIES, SESSIONS = 24, 50
"""Comparisons whose history is read, and sessions of each."""

SUMMARY = "write stored sessions as one HTML page that needs nothing else"

EPILOG = """examples:
  layermark report --open
  layermark report 20261118-074916-6747 -o lstm.html
  layermark report monday tuesday    (several sessions on one page)"""


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.usage, parser.epilog = "layermark report [SESSION ...] [-o FILE] [--open]", EPILOG
    parser.add_argument("sessions", nargs="*", metavar="SESSION", help="names of sessions (default: the newest)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: layermark-SESSION.html)")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Write the page and say where it is."""
    from layermark.report.html import page
    from layermark.report.summary import summarise
    from layermark.store import open_store

    with open_store(args.store) as store:
        report = _report(store, args.sessions or ["latest"])
    # A session of somebody else's may have any name; a file may not.
    name = re.sub(r"[^\w.-]", "_", report.sessions[-1])
    path = Path(args.output or f"layermark-{name}.html").absolute()
    _write(path, page(report))
    print(f"{summarise(report).headline}\nreport: {path}")
    if args.open:
        _open(path)
    return 0


def _report(store: Store, names: Sequence[str]) -> Report:
    """The results of these sessions, oldest first, whatever the order of typing."""
    from layermark.report.model import build

    records = {record.id: record for record in map(store.session, names)}
    ordered = sorted(records.values(), key=lambda record: record.created)
    documents = [each for record in ordered for each in store.documents(record.id)]
    if not documents:
        raise UserError(
            f"nothing was measured in {', '.join(records)}; expected a session with results (layermark run)"
        )
    spreads = [spread for record in ordered if (spread := store.spread(record.fingerprint)) is not None]
    report = build(documents, max(spreads, default=None))
    return replace(report, history=dict(_history(store, report, ordered[-1].created)))


def _history(store: Store, report: Report, until: str) -> Iterator[tuple[str, tuple[PastPoint, ...]]]:
    """What the store has of the page's measurements up to its newest session, as far as plots will show it."""
    from layermark.spec import Spec

    shown = [row for group in report.groups[:HISTORIES] for row in group.rows if row.status == "ok"]
    for row in shown:
        for series in store.series(key=Spec.from_json(row.document["spec"]).key, most=1, last=SESSIONS):
            # Another machine's numbers are a series of their own.
            if any(point.session == row.document["session"] for point in series.points):
                yield row.id, tuple(_past(series, until))


def _past(series: Series, until: str) -> Iterator[PastPoint]:
    from layermark.cli.history import changed_sessions
    from layermark.report.model import PastPoint

    changed = changed_sessions(series)
    for point in series.points:
        if point.status == "ok" and point.throughput and point.created <= until:
            yield PastPoint(
                session=point.session,
                created=point.created,
                value=point.throughput,
                low=point.low,
                high=point.high,
                change=changed.get(point.session),
            )


def _write(path: Path, words: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give -o another file") from None


def _open(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        print("no browser was found; open the file yourself")
