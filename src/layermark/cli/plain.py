"""Tables, plots and names in plain ASCII, the same on every terminal and in every log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layermark.spec import Spec

HEIGHT = 6
LEVELS = "_.-=*#"
"""From the lowest to the highest sixth of a small plot."""
MISSING = "-"

_NAMED = ("workload", "mode", "precision", "batch_size", "backend", "execution", "params", "loading", "plan")


def printable(text: str) -> str:
    """Return text in which nothing moves the cursor or changes a colour: names may come from anywhere."""
    return "".join(each if each.isprintable() else "?" for each in text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> str:
    """Return lines in columns; those named in `left` begin at the left, all others end at the right.

    >>> print(table(["name", "rate"], [["a", "12"], ["long", "3"]], left=["name"]))
    name  rate
    a       12
    long     3
    """
    cells = [list(map(printable, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pads: list[Callable[[str, int], str]] = [str.ljust if name in left else str.rjust for name in header]
    lines = ("  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def plot(values: Sequence[float | None], shown: Callable[[float], str], height: int = HEIGHT) -> str:
    """Return a column for every value, a star each, between the lowest and the highest.

    >>> print(plot([1.0, 2.0, None, 3.0], "{:.0f}".format, height=3))
    3 |   *
      | *
    1 |*
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    height = height if high > low else 1
    places = [None if value is None else _level(value, low, high, height) for value in values]
    labels = {height - 1: shown(high), 0: shown(low)}
    width = max(map(len, labels.values()))
    lines = []
    for level in reversed(range(height)):
        stars = "".join("*" if place == level else " " for place in places)
        lines.append(f"{labels.get(level, ''):>{width}} |{stars}".rstrip())
    return "\n".join(lines)


def small_plot(values: Sequence[float | None]) -> str:
    """Return one character a value.

    >>> small_plot([1.0, 2.0, None, 3.0, 6.0])
    '_. -#'
    """
    known = [value for value in values if value is not None]
    return "".join(
        " " if value is None else LEVELS[_level(value, min(known), max(known), len(LEVELS))] for value in values
    )


def titles(specs: Sequence[Spec]) -> list[str]:
    """Return measurements in a few words, with the options in which those of one workload differ.

    >>> titles([Spec(workload="dense", backend="torch", batch_size=8, params={"size": size}) for size in (4, 16)])
    ['dense size=4 infer batch 8 on torch', 'dense size=16 infer batch 8 on torch']
    """
    return [_title(spec, _varying([each for each in specs if each.workload == spec.workload])) for spec in specs]


def _title(spec: Spec, names: Sequence[str]) -> str:
    options = _options(spec)
    words = [
        spec.workload,
        *(f"{name.replace('_', '-')}={options[name]}" for name in names if name in options),
        spec.mode,
    ]
    words += [spec.precision] if spec.precision != "32.32" else []
    backend = spec.backend if spec.execution == "auto" else f"{spec.backend}/{spec.execution}"
    return printable(" ".join([*words, f"batch {spec.batch_size} on {backend}"]))


def _varying(specs: Sequence[Spec]) -> list[str]:
    found = [_options(spec) for spec in specs]
    names = dict.fromkeys(name for options in found for name in options)
    return [name for name in names if len({options.get(name) for options in found}) > 1]


def _options(spec: Spec) -> dict[str, str]:
    doc = spec.to_json()
    rest = {name: value for name, value in doc.items() if name not in _NAMED}
    return {name: _short(value) for name, value in {**doc["params"], **rest, **doc["plan"]}.items()}


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _level(value: float, low: float, high: float, levels: int) -> int:
    if high == low:
        return levels // 2
    return min(int((value - low) / (high - low) * levels), levels - 1)
