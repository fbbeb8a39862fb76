"""Options are declared once, on the fields of the records they fill.

A field made with `option` reaches the command line, the YAML suites, the documentation and the
result from its declaration; nothing else in the package spells its name again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layermark.errors import UserError

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Option:
    """How one field is typed: `parse` turns text (or a YAML value as text) into the field's value."""

    name: str
    help: str
    parse: Callable[[str], Any]
    default: Any
    metavar: str
    choices: tuple[str, ...] = ()
    axis: bool = True

    @property
    def flag(self) -> str:
        """The spelling on the command line, such as `--batch-size`."""
        return "--" + self.name.replace("_", "-")

    def read(self, text: str) -> Any:
        """Parse one value, or say what was received and what was expected."""
        try:
            return self.parse(text)
        except ValueError as error:
            raise UserError(f"{self.flag} {text}: {error}") from None


def option(
    default: Any,
    *,
    help: str,
    parse: Callable[[str], Any] | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    axis: bool = True,
) -> Any:
    """A dataclass field that is also an option; `axis` options take comma lists."""
    reader = choice(*choices) if choices else (parse or str)
    shown = metavar or ("|".join(choices) if choices else getattr(reader, "metavar", "TEXT"))
    metadata = {"option": {"help": help, "parse": reader, "choices": choices, "metavar": shown, "axis": axis}}
    return dataclasses.field(default=default, metadata=metadata)


def nested(record: type) -> dict[str, type]:
    """The metadata of a field that holds a record with options of its own."""
    return {"record": record}


def options_of(record: type) -> Iterator[Option]:
    """Every option declared on the fields of a record and of the records in it, in order."""
    for item in dataclasses.fields(record):
        if "record" in item.metadata:
            yield from options_of(item.metadata["record"])
        elif "option" in item.metadata:
            yield Option(name=item.name, default=item.default, **item.metadata["option"])


def read_record(record: type, values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the texts that belong to this record; names that do not belong are left out."""
    return {each.name: each.read(values[each.name]) for each in options_of(record) if each.name in values}


def _named(metavar: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    def mark(reader: Callable[[str], Any]) -> Callable[[str], Any]:
        reader.metavar = metavar  # type: ignore[attr-defined]
        return reader

    return mark


def choice(*names: str) -> Callable[[str], str]:
    """A reader that accepts exactly these words."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return text

    return read


def integer(at_least: int) -> Callable[[str], int]:
    """A reader of whole numbers with a lower bound."""

    @_named("N")
    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text.strip()):
            raise ValueError("expected a whole number")
        if int(text) < at_least:
            raise ValueError(f"expected a whole number of at least {at_least}")
        return int(text)

    return read


@_named("N")
def percentage(text: str) -> int:
    """A whole number from 1 to 100."""
    value = integer(1)(text)
    if value > 100:
        raise ValueError("expected a whole number from 1 to 100")
    return value


@_named("X")
def positive_float(text: str) -> float:
    """A number above zero, such as 0.01 or 1e-30."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("expected a number") from None
    if not 0 < value < float("inf"):
        raise ValueError("expected a finite number above zero")
    return value


@_named("X")
def number(text: str) -> float:
    """Any finite number, such as 0, 1 or -0.5."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("expected a number") from None
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


@_named("SHARE")
def share(text: str) -> float:
    """A number from 0 to 1."""
    value = number(text)
    if not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1")
    return float(value)


@_named("on|off")
def switch(text: str) -> bool:
    """A yes or no; on the command line the bare flag means yes."""
    words = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError("expected on or off")
    return words[text.lower()]


def size(at_least: int = 1) -> Callable[[str], Size]:
    """A reader of sizes that are one number (square) or HxW.

    >>> size()("3"), size()("1080x1920")
    ((3, 3), (1080, 1920))
    """

    @_named("N|HxW")
    def read(text: str) -> Size:
        match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
        if not match:
            raise ValueError("expected a whole number or HxW, such as 3 or 3x5")
        height, width = int(match[1]), int(match[2] or match[1])
        if min(height, width) < at_least:
            raise ValueError(f"expected sizes of at least {at_least}")
        return height, width

    return read


_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@_named("TIME")
def seconds(text: str) -> float:
    """A length of time such as 90, 90s, 5m or 1h30m.

    >>> seconds("1h30m")
    5400.0
    """
    pattern = r"(\d+(?:\.\d+)?)(ms|s|m|h|)"
    if not re.fullmatch(f"(?:{pattern})+", text.strip()):
        raise ValueError("expected a length of time such as 30s, 5m or 1h30m")
    total = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(pattern, text.strip()))
    if total <= 0:
        raise ValueError("expected a length of time above zero")
    return total


@_named("SIZE")
def byte_count(text: str) -> int:
    """An amount of memory such as 800M or 2G (powers of 1024).

    >>> byte_count("2G")
    2147483648
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip())
    if not match or float(match[1]) <= 0:
        raise ValueError("expected an amount of memory such as 800M or 2G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))
