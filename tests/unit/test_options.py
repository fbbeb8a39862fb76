from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from layermark import options
from layermark.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Record:
    width: int = options.option(8, parse=options.integer(1), help="how wide")
    kind: str = options.option("a", choices=("a", "b"), help="which kind", axis=False)
    bias: bool = options.option(True, parse=options.switch, help="add a bias")
    hidden: int = 0


def test_options_come_from_the_fields_in_order() -> None:
    assert [(each.name, each.flag, each.metavar, each.axis) for each in options.options_of(Record)] == [
        ("width", "--width", "N", True),
        ("kind", "--kind", "a|b", False),
        ("bias", "--bias", "on|off", True),
    ]


def test_read_record_takes_what_belongs_to_it() -> None:
    assert options.read_record(Record, {"width": "3", "bias": "off", "other": "1"}) == {"width": 3, "bias": False}


def test_errors_name_the_flag_the_value_and_what_was_expected() -> None:
    with pytest.raises(UserError, match=r"^--width -1: expected a whole number of at least 1$"):
        options.read_record(Record, {"width": "-1"})


@pytest.mark.parametrize(
    ("reader", "text", "expected"),
    [
        (options.integer(0), "+7", 7),
        (options.positive_float, "1e-30", 1e-30),
        (options.switch, "YES", True),
        (options.switch, "0", False),
        (options.size(), "3", (3, 3)),
        (options.size(), "1080x1920", (1080, 1920)),
        (options.size(0), "0", (0, 0)),
        (options.seconds, "90", 90.0),
        (options.seconds, "1h30m", 5400.0),
        (options.seconds, "250ms", 0.25),
        (options.byte_count, "800M", 800 << 20),
        (options.byte_count, "2GiB", 2 << 30),
        (options.choice("x", "y"), "y", "y"),
    ],
)
def test_readers_accept(reader: Callable[[str], Any], text: str, expected: Any) -> None:
    assert reader(text) == expected


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (options.integer(1), "0"),
        (options.integer(1), "1.5"),
        (options.integer(1), ""),
        (options.positive_float, "0"),
        (options.positive_float, "inf"),
        (options.positive_float, "nan"),
        (options.positive_float, "much"),
        (options.switch, "maybe"),
        (options.size(), "3x"),
        (options.size(), "-3"),
        (options.size(), "0"),
        (options.seconds, "0s"),
        (options.seconds, "soon"),
        (options.seconds, "-5"),
        (options.byte_count, "0"),
        (options.byte_count, "2X"),
        (options.choice("x", "y"), "z"),
    ],
)
def test_readers_refuse(reader: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        reader(text)
