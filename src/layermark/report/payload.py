"""What the script of a page reads: every result with its cells, and what its panel shows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from layermark.metric import KNOWN, metrics
from layermark.report import extras, over_time, profiles, text
from layermark.report.columns import TableCell
from layermark.report.model import Report, Row, warnings
from layermark.report.profile_views import comparison_data, lanes_data, profile_data
from layermark.report.text import Document

SAMPLES_SHOWN, SAMPLES_IN_ALL = 400, 12_000
"""Samples drawn of a result and of all results of a page, evenly spread over each run; the store has them all."""
_FEWEST = 100


class _Pool:
    """Texts that many results share, each once."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        """Where the text of a value stands; it is written only the first time."""
        key = json.dumps(value, default=str)
        if key not in self._places:
            found = (
                [self._pair(each) for each in _flat(value)] if isinstance(value, Mapping) else text.clean(str(value))
            )
            self._places[key] = len(self.texts)
            self.texts.append(found)
        return self._places[key]

    def _pair(self, pair: list[str]) -> int:
        """Where a name and its value stand: requests differ in few of them."""
        key = json.dumps(pair)
        if key not in self._places:
            self._places[key] = len(self.texts)
            self.texts.append(pair)
        return self._places[key]


def embedded(report: Report, styles: Mapping[str, int]) -> str:
    """The data as JSON for a script element: `<` is escaped, so nothing in it can end the element."""
    pool = _Pool()
    most = max(_FEWEST, min(SAMPLES_SHOWN, SAMPLES_IN_ALL // max(1, len(report.rows))))
    rows = [_row(row, styles, pool, most) for row in report.rows]
    columns = [
        {
            "header": column.unit if column.unit and len(column.unit) < 16 else column.header,
            "help": column.help,
            "left": column.justify == "left",
            "best": column.better,
        }
        for column in report.columns
    ]
    known = [[each.name, each.help] for each in KNOWN]
    data = {"columns": columns, "metrics": known, "rows": rows, **_drawn(report, pool), "pool": pool.texts}
    return json.dumps(data, separators=(",", ":"), allow_nan=False, default=str).replace("<", "\\u003c")


def _drawn(report: Report, pool: _Pool) -> dict[str, Any]:
    """What the script draws when it is opened: lanes, comparisons and profiles in their order on the page."""
    return {
        "lanes": [lanes_data(each.drawn, pool.place) for each in over_time.row_lanes(report)[0]],
        "comparisons": [comparison_data(each, pool.place) for each in profiles.comparisons(report)],
        "profiles": [profile_data(each, pool.place) for each in extras.operators(report)[0]],
    }


def thinned(samples: Sequence[Mapping[str, Any]], most: int = SAMPLES_SHOWN) -> list[Mapping[str, Any]]:
    """As many samples as are drawn, evenly spread, the slowest always among them."""
    if len(samples) <= most:
        return list(samples)
    step = len(samples) / (most - 1)
    chosen = {int(index * step) for index in range(most - 1)}
    slowest = max(range(len(samples)), key=lambda index: _per_batch(samples[index]))
    return [samples[index] for index in sorted(chosen | {slowest})]


def _row(row: Row, styles: Mapping[str, int], pool: _Pool, most: int) -> dict[str, Any]:
    document = row.document
    return {
        "id": row.id,
        "title": row.title,
        "runtime": row.runtime,
        "style": styles[row.runtime],
        "status": row.status,
        "mark": row.mark,
        "cells": [each.text if not each.unit else [each.text, each.unit] for each in row.cells],
        "keys": [_sort_key(each) for each in row.cells],
        "metrics": _metrics(row),
        "reason": text.clean(document["reason"] or ""),
        "log": text.clean(document["log"] or ""),
        "warnings": [words for _, words in warnings(document)],
        "facts": _facts(document, pool),
        "samples": _samples(document, most),
    }


def _metrics(row: Row) -> list[list[Any]]:
    """The place among the known metrics, the value and the interval of each that this result has."""
    return [
        [place, text.quantity(each), _range(each.low, each.high)]
        for place, each in enumerate(metrics(row.document))
        if each.value is not None
    ]


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{text.human(low)} to {text.human(high)}"


def _facts(document: Document, pool: _Pool) -> list[list[int]]:
    """What stands below the numbers: the places of a title and its text in the pool, since many results share them."""
    spec = {name: value for name, value in document["spec"].items() if value not in ("", None)}
    ceiling = {name: value for name, value in document["ceiling"].items() if value is not None}
    verified = {name: value for name, value in document["verified"].items() if value not in ("", None)}
    found = {
        "Command": document["command"],
        "What ran": _without_curve(document["settings"]),
        "Verification": verified,
        "Ceiling": ceiling,
        "Stages before": document.get("timings_s"),
        "Request": spec,
        "Environment": document["environment"],
    }
    return [[pool.place(name), pool.place(value)] for name, value in found.items() if value]


def _without_curve(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the curve of a training run, which is a plot and may be long."""
    training = settings.get("training")
    if not isinstance(training, Mapping):
        return dict(settings)
    return {**settings, "training": {name: each for name, each in training.items() if name != "curve"}}


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    """Names and values as they are read, nested ones with dots."""
    lines: list[list[str]] = []
    for name, each in value.items():
        if isinstance(each, Mapping):
            lines += _flat(each, f"{prefix}{name}.")
        else:
            lines.append([f"{prefix}{name}", _written(each)])
    return lines


def _written(value: Any) -> str:
    if isinstance(value, float):
        return text.human(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return text.MISSING if value is None else text.clean(str(value))


def _samples(document: Document, most: int) -> dict[str, Any] | None:
    """Milliseconds per batch in the order of their taking, and how many of them each block holds."""
    given = document.get("samples") or []
    if not given:
        return None
    shown = thinned(given, most)
    return {
        "ms": [float(f"{1000 * _per_batch(each):.4g}") for each in shown],
        "blocks": [len(list(members)) for _, members in groupby(shown, key=lambda each: each["block"])],
        "taken": len(given),
    }


def _per_batch(sample: Mapping[str, Any]) -> float:
    return float(sample["seconds"]) / max(1, int(sample["batches"]))


def _sort_key(cell: TableCell) -> float | str | None:
    """What sorts a cell; true where its text does."""
    if isinstance(cell.key, float):
        return float(f"{cell.key:.6g}") if math.isfinite(cell.key) else None
    return True if cell.key == cell.text else cell.key
