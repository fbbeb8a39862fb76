"""The table that ends a run."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TextIO

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layermark.report import text, together
from layermark.report.columns import Column
from layermark.report.model import Group, Mark, Notice, Report, Row, build
from layermark.report.text import Document
from layermark.stats import PROMISED, Verdict

PIPE_WIDTH = 100
_NAMES_SHOWN = 3
_UNBOUNDED = 10_000
_LONGEST_UNIT = 12
"""A longer one stands in the cells or in the heading of its group, not above its column."""

# Only ASCII, so that every terminal and every log shows the same.
_PLAIN = Box("    \n    \n -- \n    \n    \n -- \n    \n    \n", ascii=True)

_SIGNS: dict[Mark, str] = {"fastest": "*", "cannot tell": "?", "FAILED": "!", "": ""}
_STYLES: dict[Mark, str] = {"fastest": "bold green", "FAILED": "red"}


def render(
    documents: Sequence[Document],
    console_width: int | None = None,
    file: TextIO | None = None,
    *,
    start_spread: float | None = None,
    details: Collection[str] = (),
) -> None:
    """Print results: the table, what was skipped and why, failures with their last lines, warnings, and totals.

    `details` are keys of columns that a terminal does not show otherwise.
    """
    render_report(build(documents, start_spread), console_width, file, details)


def render_report(
    report: Report, console_width: int | None = None, file: TextIO | None = None, details: Collection[str] = ()
) -> None:
    """Print a model of results."""
    target = file or sys.stdout
    console = _console(target, console_width or _width(target))
    if report.groups:
        _print_table(console, report, details)
    for line in (*_together(report), *_skips(report), *_failures(report), *_warnings(report), report.totals):
        console.print(Text(line), soft_wrap=True)
    _write(console, target)


def render_verdict(verdict: Verdict, file: TextIO | None = None, *, a: str = "A", b: str = "B") -> str:
    """Print and return one sentence with the interval: B is faster or slower than A, or it cannot be told."""
    change = abs(verdict.ratio - 1)
    if verdict.answer == "cannot tell":
        head = f"cannot tell: {b} / {a} = {verdict.ratio:.4f}, {_power(verdict)}"
    else:
        head = f"{b} is {text.percent(change)} {verdict.answer} than {a} ({verdict.ratio:.4g} x)"
    line = (
        f"{head}; {100 * verdict.confidence:g}% interval {verdict.low - 1:+.1%} to {verdict.high - 1:+.1%}, "
        f"{verdict.starts[0]} + {verdict.starts[1]} starts, {verdict.rounds} rounds"
    )
    _emit(line + "\n", file or sys.stdout)
    return line


def _power(verdict: Verdict) -> str:
    """Which difference would have been seen, and what to do where that is more than is promised."""
    if verdict.detectable is None:
        return f"differences below {verdict.noise_floor:.1%} do not show"
    words = f"a difference of {verdict.detectable:.1%} would have been found in 95 of 100 cases"
    if verdict.keeps_the_promise or verdict.starts == (1, 1):
        return words
    return f"{words}; the noise did not allow {PROMISED:.0%}, try a longer --budget or more --starts"


def _print_table(console: Console, report: Report, details: Collection[str]) -> None:
    """One table if it fits, else one heading per comparison group with what its rows share."""
    rows = report.measured
    shown = [index for index, column in enumerate(report.columns) if not column.detail or column.key in details]
    lifted = [index for index in shown if report.columns[index].shared and _agree(rows, index)]
    table = _wide(report, [index for index in shown if index not in lifted])
    if console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum > console.width:
        _print_narrow(console, report, [index for index in shown if not report.columns[index].of_group])
        return
    if lifted:
        above = ", ".join(f"{report.columns[index].header} {rows[0].cells[index].text}" for index in lifted)
        console.print(Text(above), soft_wrap=True)
    console.print(table)


def _agree(rows: Sequence[Row], index: int) -> bool:
    return len(rows) > 1 and len({row.cells[index].text for row in rows}) == 1


def _wide(report: Report, shown: Sequence[int]) -> Table:
    table = _empty(padding=1)
    for index in shown:
        column = report.columns[index]
        header = column.unit if _unit_above(column) else column.header
        table.add_column(header, justify=column.justify, no_wrap=True)
    table.add_column("", no_wrap=True)
    for group in report.groups:
        for row in group.rows:
            cells = [Text(_with_unit(report.columns[index], row, index)) for index in shown]
            table.add_row(*cells, Text(row.mark), style=_STYLES.get(row.mark, ""))
        table.add_section()
    return table


def _unit_above(column: Column) -> bool:
    return 0 < len(column.unit) <= _LONGEST_UNIT


def _with_unit(column: Column, row: Row, index: int) -> str:
    cell = row.cells[index]
    return cell.text if _unit_above(column) or not cell.unit else f"{cell.text} {cell.unit}"


def _print_narrow(console: Console, report: Report, shown: Sequence[int]) -> None:
    widths = [max(len(row.cells[index].text) for row in report.measured) for index in shown]
    for number, group in enumerate(report.groups):
        console.print(Text(_heading(group), style="bold"), soft_wrap=True)
        table = _empty(padding=0)
        table.show_header = number == 0
        table.add_column("", no_wrap=True, width=1)
        for index, width in zip(shown, widths, strict=True):
            column = report.columns[index]
            needed = max(width, *map(len, column.header.split()))
            table.add_column(column.header, justify=column.justify, width=needed, overflow="fold")
        for row in group.rows:
            cells = [Text(row.cells[index].text) for index in shown]
            table.add_row(Text(_SIGNS[row.mark]), *cells, style=_STYLES.get(row.mark, ""))
        console.print(table)


def _heading(group: Group) -> str:
    names = ", ".join(text.execution(row.document) for row in group.leaders)
    return f"{group.title}, {group.unit}" + (f"; {group.verdict}: {names}" if names else "")


def _empty(padding: int) -> Table:
    return Table(box=_PLAIN, pad_edge=False, padding=(0, padding, 0, 0), show_edge=False, header_style="bold")


def _together(report: Report) -> Iterator[str]:
    """What ranks that worked together have to say, each under the name of its result."""
    for row in report.measured:
        for number, line in enumerate(together.lines(row.document)):
            if number == 0:
                yield f"{report.titles([row.id])[0]}:"
            yield f"  {line}"


def _skips(report: Report) -> list[str]:
    return [f"skipped: {_listed(report.titles(each.rows))}: {each.text}" for each in report.skips]


def _failures(report: Report) -> Iterator[str]:
    for each in report.failures:
        (title,) = report.titles([each.row])
        yield f"FAILED: {title}: {each.reason}"
        yield from (f"    | {line}" for line in each.log)


def _warnings(report: Report) -> list[str]:
    return [_warning(each, report) for each in report.warnings]


def _warning(notice: Notice, report: Report) -> str:
    (title,), more = report.titles(notice.rows[:1]), len(notice.rows) - 1
    return f"warning: {title}: {notice.text}" + (f" (and {more} more like it)" if more else "")


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
