"""`layermark import`: results of other machines, as `layermark export` wrote them."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP
from layermark.errors import UserError

SUMMARY = "take results of other machines into the store"

EPILOG = """examples:
  layermark import other-machine.jsonl
  ssh host layermark export | layermark import -

All files together are taken in, or nothing. What is in the store already is known by its content and passed over."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSON lines of `layermark export`; - is standard input"
    )
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Take the files in and print what was new."""
    from layermark.store import open_store

    with open_store(args.store) as store:
        done = store.take_in(record for file in args.files for record in records(file))
        print(f"imported {done.outcomes} results, {done.sessions} new sessions; {done.known} results were here already")
    return 0


def records(file: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every record of a file with its place, such as `a.jsonl:3`; raise `UserError` for what is not JSON."""
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file}:{number}", _record(line, f"{file}:{number}")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def _record(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    # A line nested without end is no result either.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error}); nothing was imported") from None
    if not isinstance(found, Mapping):
        raise UserError(f"{place}: expected an object, received {type(found).__name__}; nothing was imported")
    return found
