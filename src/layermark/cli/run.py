"""`layermark run`: measure workloads on runtimes, over every combination of the given values."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, NamedTuple

from layermark.cli import INTERRUPTED
from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP, add_protocol, add_setting, read, read_protocol, setting_texts
from layermark.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layermark.spec import Protocol, Spec
    from layermark.store import Store

SUMMARY = "measure layers on every installed runtime, verified, and against the machine's ceilings"

EPILOG = """examples:
  layermark run --suite quick
  layermark run lstm --batch-size 1,64 --mode infer,train
  layermark run conv --execution eager,compile --budget 5m --json

exit status: 0 all ok or skipped, 1 something failed, 2 the request was wrong, 130 interrupted"""


class Asked(NamedTuple):
    """What is to be measured, how, and what the user should know first."""

    specs: Sequence[Spec]
    protocol: Protocol
    notes: Sequence[str] = ()
    record: Any = None


def configure(parser: Parser) -> None:
    """Declare the options; all but a few come from the records that they fill."""
    parser.usage, parser.epilog = "layermark run [WORKLOAD ...] [--suite NAME|FILE] [options]", EPILOG
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="layers to measure (layermark list workloads)")
    parser.add_argument("--suite", metavar="NAME|FILE", help="measure what a suite lists; other options override it")
    parser.add_argument("--json", action="store_true", help="print one JSON document per line and outcome")
    parser.add_argument("--budget", metavar="TIME", help="wall time for the whole command, such as 90s or 5m")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)
    parser.add_argument("--resume", metavar="SESSION", help="go on with a session that was interrupted")
    add_setting(parser)
    add_protocol(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Measure, keep and print; answer 1 if something failed."""
    from layermark.options import seconds

    budget_s = read("--budget", seconds, args.budget)
    # A wrong request is refused before the slow imports and before a store is touched.
    asked = None if args.resume else _asked(args)

    from layermark import session
    from layermark.store import open_store

    with open_store(args.store) as store:
        try:
            documents = _measured(asked or _resumed(args, store), store, budget_s, args, argv)
        except session.Interrupted as stop:
            _print(stop.documents, store, args)
            print(f"interrupted; go on with: layermark run --resume {stop.session_id}", file=sys.stderr)
            return INTERRUPTED
        _print(documents, store, args)
    return int(any(document["status"] == "failed" for document in documents))


def _measured(
    asked: Asked, store: Store, budget_s: float | None, args: Namespace, argv: Sequence[str]
) -> list[dict[str, Any]]:
    from layermark.cli.progress import listening
    from layermark.session import run_session

    with listening(as_json=args.json) as listener:
        for note in asked.notes:
            listener.note(note)
        documents = run_session(
            asked.specs,
            asked.protocol,
            store=store,
            budget_s=budget_s,
            command=shlex.join(["layermark", "run", *argv]),
            resume=asked.record,
            listener=listener,
        )
        listener.rest(documents)
    return documents


def _asked(args: Namespace) -> Asked:
    from layermark.axes import expand, load_suite

    values = setting_texts(args)
    workloads = [name for text in args.workloads for name in text.split(",")]
    if args.suite:
        suite = load_suite(args.suite)
        expansion = suite.expand(values, workloads)
        return Asked(expansion.specs, read_protocol(args, suite.protocol), expansion.notes)
    if not workloads:
        raise UserError(
            "nothing to measure; type a workload (layermark run lstm) or a suite (layermark run --suite quick)"
        )
    expansion = expand(workloads, values)
    return Asked(expansion.specs, read_protocol(args), expansion.notes)


def _resumed(args: Namespace, store: Store) -> Asked:
    if args.workloads or args.suite or setting_texts(args):
        raise UserError("--resume goes on with what the session was asked for; leave out workloads, suite and settings")
    record = store.session(args.resume)
    return Asked(record.specs, record.protocol, record=record)


def _print(documents: Sequence[dict[str, Any]], store: Store, args: Namespace) -> None:
    if args.json:
        return
    from layermark.report.terminal import render
    from layermark.worker import environment

    spread = store.spread(environment.fingerprint(environment.record()))
    render(documents, file=sys.stdout, start_spread=spread)
    print(f"results: {store.url}")
