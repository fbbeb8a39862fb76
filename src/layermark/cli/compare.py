"""`layermark compare`: faster, slower, or cannot tell."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser
from layermark.cli.request import (
    BUDGET,
    STORE_HELP,
    add_protocol,
    add_setting,
    read,
    read_budget,
    read_protocol,
    setting_texts,
)
from layermark.cli.setting import are_settings, check_answers, setting
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.session.compare import Compared
    from layermark.stats.pairing import Alone

BUDGET_S = 60.0
CANNOT_TELL = "cannot tell"
SUMMARY = "compare two settings measured alternately, or two stored sessions or files"

EPILOG = """examples:
  layermark compare "dense --execution eager" "dense --execution compile"
  layermark compare "lstm --threads 1" "lstm --threads 2" --backend torch --batch-size 64
  layermark compare SESSION_A SESSION_B
  layermark compare here.jsonl there.jsonl

Options after the two settings apply to both. A and B are measured in alternating blocks, each in
several processes, since one process can be a percent off for its whole life. Without settings, A and B are stored
sessions, or files of `layermark export` or of `layermark run --json`."""


def configure(parser: Parser) -> None:
    """Declare the options; a setting takes those of `run`."""
    parser.usage, parser.epilog = "layermark compare A B [options]", EPILOG
    parser.add_argument("a", metavar="A", help="a quoted setting, or a stored session or file")
    parser.add_argument("b", metavar="B", help="the other one")
    parser.add_argument("--starts", metavar="N", default="6", help="processes started for each side (default: 6)")
    parser.add_argument(
        "--budget", metavar="TIME", help=f"wall time for the whole command (default: ${BUDGET}, else 60s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per comparison")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)
    add_setting(parser)
    add_protocol(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print one verdict per pair, and what has no partner."""
    if are_settings(args.a, args.b):
        _measured(args)
    else:
        _stored(args)
    return 0


def _measured(args: Namespace) -> None:
    from layermark import session
    from layermark.cli.progress import listening
    from layermark.options import integer
    from layermark.stats import MIN_STARTS
    from layermark.store import open_store

    starts, budget_s = read("--starts", integer(MIN_STARTS), args.starts), read_budget(args.budget) or BUDGET_S
    shared = setting_texts(args)
    a, b = setting(args.a, shared), setting(args.b, shared)
    check_answers(a, b)
    protocol = read_protocol(args)
    with open_store(args.store) as store, listening(as_json=False) as listener:
        found = session.compare_settings(
            a, b, protocol, starts=starts, budget_s=budget_s, store=store, listener=listener
        )
    _print(found, {"a": a.to_json(), "b": b.to_json()}, args)


def _stored(args: Namespace) -> None:
    from layermark import environment, session
    from layermark.cli.stored import note_new, two_sides
    from layermark.store import open_store

    if setting_texts(args):
        raise UserError("stored results are compared as they were measured; leave the settings out")
    with open_store(args.store) as store:
        a, b = two_sides(store, args.a, args.b)
        spread = store.spread(environment.fingerprint(environment.record()))
    found = session.compare_stored(a, b, spread)
    for each in found.compared:
        _print(each, {"a": args.a, "b": args.b, "spec": each.spec.to_json()}, args)
    for one in found.alone:
        _print_alone(one, args)
    note_new(found.new, "B")


def _print(found: Compared, facts: dict[str, Any], args: Namespace) -> None:
    if args.json:
        import dataclasses

        operators = [dataclasses.asdict(each) for each in found.operators]
        told = {"operators": operators, "differences": list(found.differences)}
        print(json.dumps({**facts, **told, **dataclasses.asdict(found.verdict)}), flush=True)
        return
    from layermark.cli.progress import title
    from layermark.report.terminal import render_verdict
    from layermark.report.text import clean
    from layermark.stats.accounts import told as words

    if "spec" in facts:
        print(f"{title(found.spec)}:")
    render_verdict(found.verdict, file=sys.stdout, a=args.a, b=args.b)
    for each in found.operators:
        print(clean(f"    {words(each)}"))
    if found.differences:
        print(clean(f"    differs: {'; '.join(found.differences)}"))


def _print_alone(one: Alone, args: Namespace) -> None:
    if args.json:
        facts = {"a": args.a, "b": args.b, "spec": one.spec.to_json(), "operators": [], "differences": []}
        print(json.dumps({**facts, "answer": CANNOT_TELL, "code": one.code, "reason": one.reason}), flush=True)
        return
    from layermark.cli.progress import title
    from layermark.report.text import clean

    print(clean(f"{title(one.spec)}:\n{CANNOT_TELL}: {one.reason}"))
