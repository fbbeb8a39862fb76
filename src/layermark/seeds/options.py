"""What an option of a seed script is: declared once, in a table, with the mark that says what it means here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from layermark.errors import UserError
from layermark.options import Option, choice, integer, number

Mark = Literal["=", "~", "sim", "training"]


@dataclass(frozen=True, kw_only=True)
class SeedOption:
    """One option of a script.

    Marks: `=` means the same here, `~` has the equivalent that the help names, `sim` is checked and recorded only,
    `training` is checked and recorded by a program that does not train.
    """

    name: str
    help: str
    default: Any
    mark: Mark = "="
    parse: Callable[[str], Any] | None = None
    """None for a flag, which takes no value."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Further names, which other releases of the program used."""
    many: bool = False
    """Whether it takes all the values up to the next option."""
    bare: str | None = None
    """What the option without a value means, where it may have one."""
    sets: str = ""
    """The value that a flag sets, if it is another option's (`--no-train` sets train)."""
    to: Any = True
    """What a flag sets it to."""
    group: str = "options of the benchmark"
    """The title above it in the help."""
    variable: str = ""
    """A variable of the environment that holds its default, if it is set."""
    aside: bool = False
    """Whether its name steps aside, so that it never makes an abbreviation of another option ambiguous."""

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return f"--{self.name}"

    @property
    def flags(self) -> tuple[str, ...]:
        """All spellings on the command line."""
        return self.flag, *(f"--{each}" for each in self.aliases)

    @property
    def keys(self) -> tuple[str, ...]:
        """All spellings in a file of named sets."""
        return tuple(each.replace("-", "_") for each in (self.name, *self.aliases))

    @property
    def dest(self) -> str:
        """The name of the value."""
        return (self.sets or self.name).replace("-", "_")

    def read(self, given: str | list[str]) -> Any:
        """The value that a text (or a list of them) stands for, or `UserError`."""
        if isinstance(given, list):
            return tuple(self.read(each) for each in given)
        try:
            return self.parse(given) if self.parse else given
        except ValueError as error:
            raise UserError(f"{self.flag} {given}: {error}") from None

    def usual(self, environment: Mapping[str, str]) -> Any:
        """Return the value where nothing is typed: that of its variable, else the default."""
        text = environment.get(self.variable, "") if self.variable else ""
        try:
            return self.read(text) if text.strip() else self.default
        except UserError as error:
            raise UserError(f"{self.variable}: {error}") from None


def count(name: str, default: int | None, help: str, *, at_least: int = 1, mark: Mark = "=", **more: Any) -> SeedOption:
    """An option that takes a whole number."""
    return SeedOption(name=name, help=help, default=default, mark=mark, parse=integer(at_least), metavar="N", **more)


def real(
    name: str, default: float | None, help: str, parse: Callable[[str], float] = number, mark: Mark = "=", **more: Any
) -> SeedOption:
    """An option that takes a number."""
    return SeedOption(name=name, help=help, default=default, mark=mark, parse=parse, metavar="X", **more)


def flag(
    name: str,
    help: str,
    *,
    default: bool = False,
    mark: Mark = "=",
    sets: str = "",
    to: bool = True,
    **more: Any,
) -> SeedOption:
    """An option that takes no value."""
    return SeedOption(name=name, help=help, default=default, mark=mark, sets=sets, to=to, **more)


def text(
    name: str, help: str, parse: Callable[[str], Any] = str, *, metavar: str = "TEXT", mark: Mark = "=", **more: Any
) -> SeedOption:
    """An option that takes a value; without another default it has none."""
    return SeedOption(name=name, help=help, mark=mark, parse=parse, metavar=metavar, **({"default": None} | more))


def words(
    name: str, default: str | None, choices: tuple[str, ...], help: str, mark: Mark = "=", **more: Any
) -> SeedOption:
    """An option that takes one of a few words."""
    facts: dict[str, Any] = {"parse": choice(*choices), "metavar": "|".join(choices), "choices": choices}
    return SeedOption(name=name, help=help, default=default, mark=mark, **(facts | more))


def planner(name: str, of: str) -> SeedOption:
    """A JSON object of settings for a planner that this device does not have."""
    return text(name, f"planner settings of {of}, as a JSON object", json_object, metavar="JSON", mark="sim")


def of_workload(option: Option, default: Any) -> SeedOption:
    """A workload's own option with the script's default."""
    meaning = option.help.split(" (")[0]
    name = option.name.replace("_", "-")
    return SeedOption(name=name, help=meaning, default=default, parse=option.parse, metavar="N")


def extra(
    name: str, help: str, parse: Callable[[str], Any], metavar: str, default: Any = None, variable: str = ""
) -> SeedOption:
    """An option that the seeds did not have."""
    facts: dict[str, Any] = {"parse": parse, "metavar": metavar, "variable": variable}
    return SeedOption(name=name, help=help, default=default, aside=True, **facts)


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
