"""`layermark import`: results of other machines, as `layermark export` wrote them."""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

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

    with open_store(args.store) as store, ExitStack() as stack:
        pipes = [file for file in args.files if file == "-" or not Path(file).is_file()]
        spooled = {file: stack.enter_context(_spooled(file)) for file in dict.fromkeys(pipes)}
        done = store.take_in(record for file in args.files for record in records(file, spooled.get(file)))
        print(f"imported {done.outcomes} results, {done.sessions} new sessions; {done.known} results were here already")
    return 0


@contextmanager
def _spooled(file: str) -> Iterator[IO[bytes]]:
    """Give all of a pipe: one that is slow must not be read while the store is locked."""
    with tempfile.TemporaryFile() as whole:
        try:
            with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as pipe:
                shutil.copyfileobj(pipe, whole)
            whole.seek(0)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}") from None
        yield whole


def records(file: str, spooled: Iterable[bytes] | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every record of a file with its place, such as `a.jsonl:3`; raise `UserError` for what is not JSON.

    `spooled` are its lines where they were read before.
    """
    try:
        with open(file, "rb") if spooled is None else nullcontext(spooled) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file}:{number}", _record(line, f"{file}:{number}")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def _record(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line, parse_constant=_finite, parse_float=_finite)
    # A line nested without end is no result either.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error}); nothing was imported") from None
    if not isinstance(found, Mapping):
        raise UserError(f"{place}: expected an object, received {type(found).__name__}; nothing was imported")
    return found


def _finite(text: str) -> float:
    """Python reads NaN and Infinity as well, and 1e999 as the latter; no result has them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
