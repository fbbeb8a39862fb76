"""Results as a LaTeX table for a paper, with the lines of `booktabs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layermark.report.model import Report, Row

# What LaTeX would take for its own, and how to write it.
_SPECIAL = re.compile(r"[\\{}$&#^_%~<>|\"]")
_WRITTEN = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def render(report: Report) -> str:
    """A `tabular` of every measured result, a block per comparison group; the caption's facts come as comments."""
    return "\n".join([*_comments(report), *_table(report)]) + "\n"


def _comments(report: Report) -> Iterator[str]:
    yield f"% {_line(report.totals)}"
    yield r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}"


def _table(report: Report) -> Iterator[str]:
    shown = [index for index, column in enumerate(report.columns) if not column.detail]
    columns = [report.columns[index] for index in shown]
    yield rf"\begin{{tabular}}{{{''.join(column.justify[0] for column in columns)}l}}"
    yield r"\toprule"
    yield _cells([*(column.unit or column.header for column in columns), ""])
    for group in report.groups:
        yield r"\midrule"
        yield from (_cells([*(_cell(report, row, index) for index in shown), row.mark]) for row in group.rows)
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _cell(report: Report, row: Row, index: int) -> str:
    cell = row.cells[index]
    return f"{cell.text} {cell.unit}" if cell.unit and not report.columns[index].unit else cell.text


def _cells(cells: Sequence[str]) -> str:
    return " & ".join(map(_plain, cells)) + r" \\"


def _line(words: str) -> str:
    return " ".join(words.split())


def _plain(words: str) -> str:
    return _SPECIAL.sub(lambda found: _WRITTEN.get(found[0], f"\\{found[0]}"), _line(words))
