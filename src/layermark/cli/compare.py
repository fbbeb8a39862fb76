"""`layermark compare`: faster, slower, or cannot tell."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser, parse
from layermark.cli.request import STORE_HELP, add_protocol, add_setting, read, read_protocol, setting_texts
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.spec import Spec
    from layermark.stats import Verdict

SUMMARY = "compare two settings measured alternately, or two stored sessions"

EPILOG = """examples:
  layermark compare "dense --execution eager" "dense --execution compile"
  layermark compare "lstm --threads 1" "lstm --threads 2" --backend torch --batch-size 64
  layermark compare SESSION_A SESSION_B

Options after the two settings apply to both. A and B are measured in alternating blocks, each in
several processes, since one process can be a percent off for its whole life."""


def configure(parser: Parser) -> None:
    """Declare the options; a setting takes those of `run`."""
    parser.usage, parser.epilog = "layermark compare A B [options]", EPILOG
    parser.add_argument("a", metavar="A", help="a quoted setting, or the name of a stored session")
    parser.add_argument("b", metavar="B", help="the other one")
    parser.add_argument("--starts", metavar="N", default="6", help="processes started for each side (default: 6)")
    parser.add_argument(
        "--budget", metavar="TIME", default="60s", help="wall time for the whole command (default: 60s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per comparison")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)
    add_setting(parser)
    add_protocol(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print one verdict per pair."""
    settings = [_is_setting(args.a), _is_setting(args.b)]
    if any(settings) and not all(settings):
        raise UserError(f"cannot compare a setting with a stored session: {args.a!r} and {args.b!r}")
    verdicts = _measured(args) if all(settings) else _stored(args)
    for verdict, facts in verdicts:
        _print(verdict, facts, args)
    return 0


def setting(text: str, shared: dict[str, str]) -> Spec:
    """The one spec that a quoted setting and the shared options describe."""
    from layermark.axes import expand

    parser = Parser(prog="layermark compare", description=SUMMARY)
    parser.add_argument("workload")
    add_setting(parser)
    try:
        args = parse(parser, shlex.split(text))
        expansion = expand([args.workload], {**shared, **setting_texts(args)})
    except (UserError, ValueError) as error:
        raise UserError(f"setting {text!r}: {error}") from None
    if len(expansion.specs) != 1:
        names = ", ".join(sorted({spec.backend for spec in expansion.specs}))
        raise UserError(
            f"setting {text!r}: expected one measurement, received {len(expansion.specs)} (backends: {names})"
        )
    return expansion.specs[0]


def _is_setting(text: str) -> bool:
    from layermark import registry

    words = text.split()
    return len(words) > 1 or (bool(words) and words[0] in registry.modules("workloads"))


def _measured(args: Namespace) -> list[tuple[Verdict, dict[str, Any]]]:
    from layermark import session
    from layermark.cli.progress import listening
    from layermark.options import integer, seconds
    from layermark.stats import MIN_STARTS
    from layermark.store import open_store

    starts, budget_s = read("--starts", integer(MIN_STARTS), args.starts), read("--budget", seconds, args.budget)
    shared = setting_texts(args)
    a, b = setting(args.a, shared), setting(args.b, shared)
    if a.quantised != b.quantised:
        raise UserError(
            f"{a.precision} and {b.precision} give other answers, so neither is just faster; "
            f"layermark run --precision {a.precision},{b.precision} shows both, and what was lost"
        )
    protocol = read_protocol(args)
    with open_store(args.store) as store, listening(as_json=False) as listener:
        verdict = session.compare_settings(
            a, b, protocol, starts=starts, budget_s=budget_s, store=store, listener=listener
        )
    return [(verdict, {"a": a.to_json(), "b": b.to_json()})]


def _stored(args: Namespace) -> list[tuple[Verdict, dict[str, Any]]]:
    from layermark import session
    from layermark.store import open_store

    if setting_texts(args):
        raise UserError("stored sessions are compared as they were measured; leave the settings out")
    with open_store(args.store) as store:
        pairs = session.compare_stored(store, args.a, args.b)
    return [(verdict, {"a": args.a, "b": args.b, "spec": spec.to_json()}) for spec, verdict in pairs]


def _print(verdict: Verdict, facts: dict[str, Any], args: Namespace) -> None:
    if args.json:
        import dataclasses

        print(json.dumps({**facts, **dataclasses.asdict(verdict)}), flush=True)
        return
    from layermark.cli.progress import title
    from layermark.report.terminal import render_verdict
    from layermark.spec import Spec

    if "spec" in facts:
        print(f"{title(Spec.from_json(facts['spec']))}:")
    render_verdict(verdict, file=sys.stdout, a=args.a, b=args.b)
