"""The table that ends a run. It reads result documents only, so that old results can be drawn again."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TextIO

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layermark.metric import metric
from layermark.report import text
from layermark.report.text import MISSING, Document
from layermark.stats import Verdict, leaders

PIPE_WIDTH = 100
LOG_LINES = 5
_NAMES_SHOWN = 3
_UNBOUNDED = 10_000

# Only ASCII, so that every terminal and every log shows the same.
_PLAIN = Box("    \n    \n -- \n    \n    \n -- \n    \n    \n", ascii=True)


_SIGNS = {"fastest": "*", "cannot tell": "?", "FAILED": "!", "": ""}
_STYLES = {"fastest": "bold green", "FAILED": "red"}
# Equal in all rows of a comparison group, so that a narrow table says them once, above.
_GROUP_SHARES = ("workload", "mode", "batch")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: how a document fills it, and whether it may move above the table when rows agree in it."""

    header: str
    cell: Callable[[Document], str]
    justify: Literal["left", "right"] = "right"
    shared: bool = False


def render(
    documents: Sequence[Document],
    console_width: int | None = None,
    file: TextIO | None = None,
    *,
    start_spread: float | None = None,
) -> None:
    """Print results: the table, what was skipped and why, failures with their last lines, warnings, and totals."""
    target = file or sys.stdout
    width = console_width or _width(target)
    names = text.varying(documents)
    console = _console(target, width)
    measured = [each for each in documents if each["throughput"]["value"] is not None]
    if measured:
        _print_table(console, measured, start_spread)
    sections = (_skips(documents, names), _failures(documents, names), _warnings(documents, names))
    for lines in (*sections, [_totals(documents)]):
        for line in lines:
            console.print(Text(line), soft_wrap=True)
    _write(console, target)


def render_verdict(verdict: Verdict, file: TextIO | None = None, *, a: str = "A", b: str = "B") -> str:
    """Print (and answer) one sentence with the interval: B is faster or slower than A, or it cannot be told."""
    change = abs(verdict.ratio - 1)
    if verdict.answer == "cannot tell":
        head = f"cannot tell: {b} / {a} = {verdict.ratio:.4f}, differences below {verdict.noise_floor:.1%} do not show"
    else:
        head = f"{b} is {text.percent(change)} {verdict.answer} than {a} ({verdict.ratio:.4g} x)"
    line = (
        f"{head}; {verdict.confidence:.0%} interval {verdict.low - 1:+.1%} to {verdict.high - 1:+.1%}, "
        f"{verdict.starts[0]} + {verdict.starts[1]} starts, {verdict.rounds} rounds"
    )
    _emit(line + "\n", file or sys.stdout)
    return line


def columns(names: Sequence[str], unit: str, quantised: bool = False) -> list[Column]:
    """The columns of the table; `names` are the options that tell rows apart, `unit` is shown if all rows share it.

    What quantising lost has a column where something was quantised.
    """
    return [
        Column(header="workload", cell=lambda d: text.workload(d, names), justify="left"),
        Column(header="mode", cell=lambda d: d["spec"]["mode"], justify="left", shared=True),
        Column(header="backend", cell=text.execution, justify="left"),
        Column(header="precision", cell=lambda d: d["spec"]["precision"], justify="left", shared=True),
        Column(header="batch", cell=lambda d: str(d["spec"]["batch_size"]), shared=True),
        Column(header=unit or "rate", cell=lambda d: _rate(d, unit)),
        Column(header="+-", cell=lambda d: text.arms(d["throughput"]).removeprefix("+-")),
        Column(header="p50/p99 ms", cell=_latency),
        _number("ceiling", "efficiency", text.percent),
        Column(header="verified", cell=_verified, justify="left"),
        *([Column(header="lost/same top", cell=_accuracy)] if quantised else []),
        _number("compile s", "compile_s", text.digits),
    ]


def _number(header: str, tag: str, shown: Callable[[float | None], str]) -> Column:
    return Column(header=header, cell=lambda document: shown(metric(tag).read(document).value))


def marks(group: Sequence[Document], start_spread: float | None = None) -> list[str]:
    """What each row of a comparison group is marked with: the winner, or those that cannot be told apart."""
    found = ["" if each["status"] == "ok" else "FAILED" for each in group]
    fit = [index for index, each in enumerate(group) if each["status"] == "ok"]
    if len(fit) < 2:
        return found
    best = leaders([group[index] for index in fit], start_spread)
    for index in best:
        found[fit[index]] = "fastest" if len(best) == 1 else "cannot tell"
    return found


def _print_table(console: Console, rows: Sequence[Document], spread: float | None) -> None:
    """One table if it fits, else one heading per comparison group with what its rows share."""
    names, groups = text.varying(rows), _groups(rows)
    units = {each["throughput"]["unit"] for each in rows}
    unit = units.pop() if len(units) == 1 else ""
    shown = columns(names, unit if len(unit) <= 12 else "", any(map(_quantised, rows)))
    lifted = [each for each in shown if each.shared and len(rows) > 1 and len({each.cell(row) for row in rows}) == 1]
    table = _wide([each for each in shown if each not in lifted], groups, spread)
    if console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum > console.width:
        _print_narrow(console, names, groups, spread)
        return
    if lifted:
        console.print(Text(", ".join(f"{each.header} {each.cell(rows[0])}" for each in lifted)), soft_wrap=True)
    console.print(table)


def _groups(rows: Sequence[Document]) -> list[list[Document]]:
    """Rows by comparison group in the order of their first members; within one, the fastest first."""
    order = {each["group"]: index for index, each in reversed(list(enumerate(rows)))}
    ranked = sorted(rows, key=lambda row: (order[row["group"]], -row["throughput"]["value"]))
    return [list(members) for _, members in groupby(ranked, key=lambda row: str(row["group"]))]


def _wide(shown: Sequence[Column], groups: Iterable[Sequence[Document]], spread: float | None) -> Table:
    table = _empty(padding=1)
    for column in shown:
        table.add_column(column.header, justify=column.justify, no_wrap=True)
    table.add_column("", no_wrap=True)
    for group in groups:
        for document, mark in zip(group, marks(group, spread), strict=True):
            table.add_row(*_cells(shown, document), Text(mark), style=_STYLES.get(mark, ""))
        table.add_section()
    return table


def _print_narrow(
    console: Console, names: Sequence[str], groups: Sequence[Sequence[Document]], spread: float | None
) -> None:
    quantised = any(_quantised(row) for group in groups for row in group)
    shown = [each for each in columns(names, "rate", quantised) if each.header not in _GROUP_SHARES]
    widths = [max(len(each.cell(row)) for group in groups for row in group) for each in shown]
    for index, group in enumerate(groups):
        found = marks(group, spread)
        console.print(Text(_heading(group, found, names), style="bold"), soft_wrap=True)
        table = _empty(padding=0)
        table.show_header = index == 0
        table.add_column("", no_wrap=True, width=1)
        for column, width in zip(shown, widths, strict=True):
            needed = max(width, *map(len, column.header.split()))
            table.add_column(column.header, justify=column.justify, width=needed, overflow="fold")
        for document, mark in zip(group, found, strict=True):
            table.add_row(Text(_SIGNS[mark]), *_cells(shown, document), style=_STYLES.get(mark, ""))
        console.print(table)


def _heading(group: Sequence[Document], found: Sequence[str], names: Sequence[str]) -> str:
    first = group[0]["spec"]
    shared = f"{text.workload(group[0], names)}, {first['mode']}, batch {first['batch_size']}"
    leaders = [
        text.execution(row) for row, mark in zip(group, found, strict=True) if mark in ("fastest", "cannot tell")
    ]
    verdict = "fastest" if "fastest" in found else "cannot tell apart"
    unit = group[0]["throughput"]["unit"]
    return f"{shared}, {unit}" + (f"; {verdict}: {', '.join(leaders)}" if leaders else "")


def _empty(padding: int) -> Table:
    return Table(box=_PLAIN, pad_edge=False, padding=(0, padding, 0, 0), show_edge=False, header_style="bold")


def _cells(shown: Sequence[Column], document: Document) -> list[Text]:
    return [Text(text.clean(each.cell(document))) for each in shown]


def _rate(document: Document, unit: str) -> str:
    rate = document["throughput"]
    return text.human(rate["value"]) + ("" if unit else f" {rate['unit']}")


def _latency(document: Document) -> str:
    latency = document["latency_ms"]
    return f"{text.digits(latency['p50'])}/{text.digits(latency['p99'])}"


def _quantised(document: Document) -> bool:
    return bool((document.get("accuracy") or {}).get("items"))


def _accuracy(document: Document) -> str:
    """The error of quantised outputs as a share of their spread, and how often the largest is the same."""
    if not _quantised(document):
        return MISSING
    accuracy = document["accuracy"]
    return f"{text.percent(accuracy['relative_error'])}/{text.percent(accuracy['top1_agreement'])}"


def _verified(document: Document) -> str:
    verified = document["verified"]
    if verified["ok"] is None:
        return MISSING
    error = "" if verified["max_error"] is None else f" {verified['max_error']:.0e}"
    return ("ok" if verified["ok"] else "WRONG") + error


def _skips(documents: Sequence[Document], names: Sequence[str]) -> list[str]:
    """One line per reason, with the measurements that it kept from being made."""
    by_reason: dict[str, list[str]] = {}
    for each in documents:
        if each["status"] == "skipped":
            by_reason.setdefault(text.clean(each["reason"]), []).append(text.title(each, names))
    return [f"skipped: {_listed(titles)}: {reason}" for reason, titles in by_reason.items()]


def _failures(documents: Sequence[Document], names: Sequence[str]) -> list[str]:
    lines = []
    for each in documents:
        if each["status"] == "failed":
            lines.append(f"FAILED: {text.title(each, names)}: {text.clean(each['reason'])}")
            last = text.clean(each["log"] or "").strip().splitlines()[-LOG_LINES:]
            lines += [f"    | {line}" for line in last]
    return lines


def _warnings(documents: Sequence[Document], names: Sequence[str]) -> list[str]:
    """One line per kind of warning; two are of a kind when they differ in their numbers only."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for each in documents:
        for warning in each["warnings"]:
            kind = re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "#", warning).split(":")[0]
            kinds.setdefault(kind, []).append((text.clean(warning), text.title(each, names)))
    return [_warning(found) for found in kinds.values()]


def _warning(found: Sequence[tuple[str, str]]) -> str:
    warning, title = found[0]
    return f"warning: {title}: {warning}" + (f" (and {len(found) - 1} more like it)" if len(found) > 1 else "")


def _totals(documents: Sequence[Document]) -> str:
    counts = {status: sum(each["status"] == status for each in documents) for status in ("ok", "skipped", "failed")}
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing measured"
    sessions = list(dict.fromkeys(each["session"] for each in documents))
    named = f"; session {', '.join(sessions)}" if sessions else ""
    return f"{len(documents)} result{'' if len(documents) == 1 else 's'}: {parts}{named}"


def _listed(titles: Sequence[str]) -> str:
    more = len(titles) - _NAMES_SHOWN
    return ", ".join(titles[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _width(file: TextIO) -> int:
    if not file.isatty():
        return PIPE_WIDTH
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns


def _console(file: TextIO, width: int) -> Console:
    """Draws into memory: what comes out is then fitted to the encoding of the real file."""
    colour = file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Console(file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, highlight=False)


def _write(console: Console, file: TextIO) -> None:
    drawn = console.file
    if isinstance(drawn, io.StringIO):
        _emit("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n", file)


def _emit(words: str, file: TextIO) -> None:
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(words.encode(encoding, "replace").decode(encoding))
