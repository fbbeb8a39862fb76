"""`layermark export`: stored results as JSON lines, CSV or Parquet."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.store import Store

SUMMARY = "write stored results to JSON lines, CSV or Parquet"

EPILOG = """examples:
  layermark export --output all.jsonl
  layermark export latest --format csv
  layermark export SESSION_A SESSION_B --format parquet --output two.parquet

JSON lines hold everything raw: `layermark import` takes them into another store. CSV and Parquet hold one row per
result, for a spreadsheet or a data frame."""

FORMATS = ("jsonl", "csv", "parquet")

Row = dict[str, Any]


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument("sessions", nargs="*", metavar="SESSION", help="sessions to write (default: all of them)")
    parser.add_argument(
        "--format", metavar="NAME", help=f"one of {', '.join(FORMATS)} (default: as --output ends, else jsonl)"
    )
    parser.add_argument("--output", metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Write the results, oldest session first."""
    from layermark.store import open_store

    form = _format(args)
    with open_store(args.store) as store:
        names = args.sessions or [record.id for record in reversed(store.sessions())]
        if form == "parquet":
            _replacing(args.output, lambda path: _write_parquet(store, names, path))
        elif args.output:
            _replacing(args.output, lambda path: _write_file(store, names, form, path))
        else:
            _write(store, names, form, sys.stdout)
    return 0


def _format(args: Namespace) -> str:
    ending = Path(args.output or "").suffix.removeprefix(".")
    form = str(args.format or (ending if ending in FORMATS else "jsonl"))
    if form not in FORMATS:
        raise UserError(f"--format {form}: expected one of {', '.join(FORMATS)}")
    if form == "parquet" and not args.output:
        raise UserError("Parquet cannot be written to a terminal; add --output FILE.parquet")
    if form == "parquet":
        from importlib.util import find_spec

        if find_spec("pyarrow") is None:
            raise UserError("Parquet needs pyarrow; type: pip install 'layermark[parquet]'")
    return form


def _replacing(output: str, write: Callable[[Path], None]) -> None:
    """Nobody finds half a file: it gets its name when it is complete."""
    part = Path(f"{output}.part")
    try:
        write(part)
        os.replace(part, output)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}; give another path") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _write_file(store: Store, names: Sequence[str], form: str, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        _write(store, names, form, file)


def _write(store: Store, names: Sequence[str], form: str, file: TextIO) -> None:
    if form == "jsonl":
        file.writelines(json.dumps(line) + "\n" for line in store.lines(names))
        return
    import csv

    from layermark.report.csv import defused

    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: defused(value) for name, value in row.items()} for row in rows(store, names))


def _write_parquet(store: Store, names: Sequence[str], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    types = {float: pyarrow.float64(), int: pyarrow.int64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[kind]) for name, (kind, _) in COLUMNS.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        for name in names:
            found = list(rows(store, [name]))
            if found:
                writer.write_table(pyarrow.Table.from_pylist(found, schema=schema))


def rows(store: Store, names: Sequence[str]) -> Iterator[Row]:
    """Yield a flat row for every result of the sessions."""
    for name in names:
        created = store.session(name).created
        for document in store.documents(name):
            found = {column: _converted(kind, value(document)) for column, (kind, value) in COLUMNS.items()}
            yield found | {"created": created}


def _converted(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)


def _at(*path: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(document: Mapping[str, Any]) -> Any:
        found: Any = document
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    return read


def _key(document: Mapping[str, Any]) -> str:
    from layermark.spec import Spec

    return Spec.from_json(document["spec"]).key


COLUMNS: dict[str, tuple[type, Callable[[Mapping[str, Any]], Any]]] = {
    "session": (str, _at("session")),
    "created": (str, _at("created")),
    "group": (str, _at("group")),
    "key": (str, _key),
    "rank": (int, _at("rank")),
    "status": (str, _at("status")),
    "reason": (str, _at("reason")),
    **{name: (str, _at("spec", name)) for name in ("workload", "mode", "backend", "device", "precision")},
    "execution": (str, _at("settings", "execution")),
    **{name: (int, _at("spec", name)) for name in ("batch_size", "batches_per_step", "threads")},
    "params": (str, lambda document: json.dumps(document["spec"]["params"], sort_keys=True)),
    "throughput": (float, _at("throughput", "value")),
    "throughput_low": (float, _at("throughput", "low")),
    "throughput_high": (float, _at("throughput", "high")),
    "unit": (str, _at("throughput", "unit")),
    "sustained": (float, _at("sustained", "value")),
    **{f"latency_{name}_ms": (float, _at("latency_ms", name)) for name in ("p50", "p90", "p99")},
    "compile_s": (float, _at("compile_s")),
    "peak_rss_bytes": (int, _at("memory", "peak_rss_bytes")),
    "efficiency": (float, _at("efficiency")),
    "noise_floor": (float, _at("noise_floor")),
    "verified": (bool, _at("verified", "ok")),
    "max_error": (float, _at("verified", "max_error")),
    "cpu": (str, _at("environment", "cpu")),
    "cores": (int, _at("environment", "cores")),
    "kernel": (str, _at("environment", "kernel")),
    "command": (str, _at("command")),
    "warnings": (str, lambda document: "; ".join(map(str, document["warnings"]))),
}
"""The columns of a row: their type and how a document fills them."""
