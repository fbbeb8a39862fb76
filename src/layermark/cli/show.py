"""`layermark show`: a stored session again, as a table, Markdown, LaTeX or CSV."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP
from layermark.errors import unknown

SUMMARY = "print a stored session again"

FORMATS = ("table", "markdown", "latex", "csv")

EPILOG = """examples:
  layermark show
  layermark show 20261118-074916-6747 --format markdown
  layermark show --format csv > results.csv
  layermark show --format latex > table.tex"""


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.usage, parser.epilog = "layermark show [SESSION] [options]", EPILOG
    parser.add_argument(
        "session", nargs="?", metavar="SESSION", default="latest", help="name of a session (default: the newest)"
    )
    parser.add_argument(
        "--format", metavar="FORM", default="table", help=f"one of {', '.join(FORMATS)} (default: table)"
    )
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print the session."""
    if args.format not in FORMATS:
        raise unknown("format", args.format, FORMATS)

    from layermark.report import csv, latex, markdown
    from layermark.report.model import build
    from layermark.report.profile import render_profiles
    from layermark.report.terminal import render_report
    from layermark.store import open_store

    with open_store(args.store) as store:
        record = store.session(args.session)
        report = build(store.documents(record.id), store.spread(record.fingerprint))
    if args.format == "table":
        render_report(report, file=sys.stdout)
        render_profiles([row.document for row in report.rows], sys.stdout)
    else:
        render = {"markdown": markdown.render, "latex": latex.render, "csv": csv.render}[args.format]
        sys.stdout.write(render(report))
    return 0
