"""Results as Markdown, to be put into a page or a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layermark.report.model import Notice, Report, Row

# What Markdown or the HTML within it would take for its own.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def render(report: Report) -> str:
    """A table of every measured result, then what was skipped, what failed, and the warnings."""
    parts = [*_table(report), *_notices(report), "", f"{plain(report.totals)}"]
    return "\n".join(parts).strip("\n") + "\n"


def _table(report: Report) -> Iterator[str]:
    if not report.groups:
        return
    shown = [index for index, column in enumerate(report.columns) if not column.detail]
    columns = [report.columns[index] for index in shown]
    yield _line([column.unit or column.header for column in columns] + [""])
    yield "| " + " | ".join("---" if column.justify == "left" else "---:" for column in columns) + " | --- |"
    for row in report.measured:
        yield _line([*(_cell(report, row, index) for index in shown), row.mark])


def _cell(report: Report, row: Row, index: int) -> str:
    cell = row.cells[index]
    return f"{cell.text} {cell.unit}" if cell.unit and not report.columns[index].unit else cell.text


def _notices(report: Report) -> Iterator[str]:
    yield ""
    for failure in report.failures:
        yield f"- failed: {_titles(report, [failure.row])}: {plain(failure.reason)}"
    yield from (f"- skipped: {_notice(report, each)}" for each in report.skips)
    yield from (f"- warning: {_notice(report, each)}" for each in report.warnings)


def _notice(report: Report, notice: Notice) -> str:
    more = f" (and {len(notice.rows) - 1} more)" if len(notice.rows) > 1 else ""
    return f"{_titles(report, notice.rows[:1])}{more}: {plain(notice.text)}"


def _titles(report: Report, ids: Sequence[str]) -> str:
    return plain(", ".join(report.titles(ids)))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


def plain(words: str) -> str:
    """Return words that Markdown shows as they are: no markup, no new cell, no new line.

    >>> print(plain("a|b <i> [x](http://y)"))
    a\\|b \\<i\\> \\[x\\](http://y)
    """
    return _SPECIAL.sub(r"\\\1", " ".join(words.splitlines()))
