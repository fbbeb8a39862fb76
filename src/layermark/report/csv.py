"""Results as comma-separated values: one line per result, every known metric raw, with its interval and unit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from layermark.metric import KNOWN, Metric, metrics
from layermark.report import text
from layermark.report.model import Report, Row

_PARTS = ("value", "low", "high", "unit")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_HEAD = ("id", "session", "status", "mark", "reason")


def render(report: Report) -> str:
    """The lines, headed by names that are those of `docs/results.md`."""
    options = list(dict.fromkeys(name for row in report.rows for name in _options(row)))
    fields = _fields(report.rows)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    named = (tag if part == "value" else f"{tag}.{part}" for tag, part in fields)
    writer.writerow([*_HEAD, *map(defused, options), *named])
    for row in report.rows:
        document, given = row.document, _options(row)
        facts = [row.id, document["session"], row.status, row.mark, text.clean(document["reason"] or "")]
        cells = [*facts, *(given.get(name, "") for name in options), *_numbers(row, fields)]
        writer.writerow(map(defused, cells))
    return file.getvalue()


def defused(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; numbers stay numbers.

    >>> defused("=1+1"), defused("-2.5"), defused("lstm"), defused(-2.5)
    ("'=1+1", '-2.5', 'lstm', -2.5)
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _options(row: Row) -> dict[str, str]:
    """What was asked for, and the execution that really ran."""
    spec = row.document["spec"]
    named = ("workload", "mode", "backend", "precision", "batch_size")
    ran = row.document["settings"].get("execution") or spec["execution"]
    given = {**{name: spec[name] for name in named}, "execution": ran, **text.flatten(row.document)}
    return {name: text.clean(str(value)) for name, value in given.items()}


def _fields(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Which parts of which metrics are known of any of these results."""
    held = {(each.tag, part) for row in rows for each in metrics(row.document) for part in _PARTS if _has(each, part)}
    return [(each.tag, part) for each in KNOWN for part in _PARTS if part == "value" or (each.tag, part) in held]


def _has(found: Metric, part: str) -> bool:
    return getattr(found, part) not in (None, "")


def _numbers(row: Row, fields: Sequence[tuple[str, str]]) -> Iterator[float | str | None]:
    found = {each.tag: each for each in metrics(row.document)}
    yield from (getattr(found[tag], part) for tag, part in fields)
