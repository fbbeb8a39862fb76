"""What an option of a seed script is: declared once, in a table, with the mark that says what it means here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from layermark.options import Option, choice, integer

Mark = Literal["=", "~", "sim"]


@dataclass(frozen=True, kw_only=True)
class SeedOption:
    """One option of a script.

    Marks: `=` means the same here, `~` has the equivalent that the help names, `sim` is checked and recorded only.
    """

    name: str
    help: str
    default: Any
    mark: Mark = "="
    parse: Callable[[str], Any] | None = None
    """None for a flag, which takes no value."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    sets: str = ""
    """The value that a flag sets, if it is another option's (`--no-train` sets train)."""
    to: Any = True
    """What a flag sets it to."""
    aside: bool = False
    """Whether its name steps aside, so that it never makes an abbreviation of another option ambiguous."""

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return f"--{self.name}"

    @property
    def dest(self) -> str:
        """The name of the value."""
        return (self.sets or self.name).replace("-", "_")


def count(name: str, default: int, help: str, *, at_least: int = 1, mark: Mark = "=") -> SeedOption:
    """An option that takes a whole number."""
    return SeedOption(name=name, help=help, default=default, mark=mark, parse=integer(at_least), metavar="N")


def flag(
    name: str,
    help: str,
    *,
    default: bool = False,
    mark: Mark = "=",
    sets: str = "",
    to: bool = True,
    aside: bool = False,
) -> SeedOption:
    """An option that takes no value."""
    return SeedOption(name=name, help=help, default=default, mark=mark, sets=sets, to=to, aside=aside)


def text(name: str, help: str, parse: Callable[[str], Any], *, metavar: str, mark: Mark = "=") -> SeedOption:
    """An option that takes a value and has no default."""
    return SeedOption(name=name, help=help, default=None, mark=mark, parse=parse, metavar=metavar)


def words(name: str, default: str, choices: tuple[str, ...], help: str) -> SeedOption:
    """An option that takes one of a few words."""
    shown = "|".join(choices)
    return SeedOption(name=name, help=help, default=default, parse=choice(*choices), metavar=shown, choices=choices)


def planner(name: str, of: str) -> SeedOption:
    """A JSON object of settings for a planner that this device does not have."""
    return text(name, f"planner settings of {of}, as a JSON object", json_object, metavar="JSON", mark="sim")


def of_workload(option: Option, default: Any) -> SeedOption:
    """A workload's own option with the script's default."""
    meaning = option.help.split(" (")[0]
    name = option.name.replace("_", "-")
    return SeedOption(name=name, help=meaning, default=default, parse=option.parse, metavar="N")


def extra(name: str, help: str, parse: Callable[[str], Any], metavar: str, default: Any = None) -> SeedOption:
    """An option that the seeds did not have."""
    return SeedOption(name=name, help=help, default=default, parse=parse, metavar=metavar, aside=True)


def json_object(text: str) -> Mapping[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"expected a JSON object, received broken JSON ({error.msg} at column {error.colno})"
        ) from None
    if not isinstance(found, dict):
        raise ValueError('expected a JSON object such as {"availableMemoryProportion": "0.2"}')
    return found


def truth(text: str) -> bool:
    """Any text but the empty one is true, as in the seeds' programs."""
    return bool(text)
