"""Parsers of the seed scripts: argparse's own rules, abbreviations included, and one line for what is wrong."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from layermark.axes import as_text
from layermark.errors import UserError
from layermark.seeds.configs import configured
from layermark.seeds.options import SeedOption

_NOTES = {"=": "", "~": "", "sim": " [no effect on this device]", "training": " [for training: no effect here]"}
CONFIG = "config"


class Spoken(Protocol):
    """What must be known of a program to read its command line."""

    @property
    def about(self) -> str:
        """One sentence for the help."""
        ...

    @property
    def options(self) -> tuple[SeedOption, ...]:
        """The options of the seeds' program."""
        ...

    @property
    def extras(self) -> tuple[SeedOption, ...]:
        """The options that Layermark adds."""
        ...

    @property
    def short_help(self) -> bool:
        """Whether `-h` is an option too."""
        ...


@dataclass(frozen=True, kw_only=True)
class Typed:
    """All values of a script by name, and the names of those that were typed."""

    values: dict[str, Any]
    typed: tuple[str, ...]


class SeedParser(argparse.ArgumentParser):
    """Raises `UserError`; options that step aside lose against the others where an abbreviation fits both."""

    def __init__(self, prog: str, description: str, aside: Iterable[str] = (), *, short_help: bool = True) -> None:
        super().__init__(prog=prog, description=description, argument_default=argparse.SUPPRESS, add_help=short_help)
        self._aside = frozenset(aside)
        if not short_help:
            self.add_argument("--help", action="help", help="show this help message and exit")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; the caller decides how the process ends."""
        raise UserError(f"{message.removeprefix('argument ')}; {self.prog} --help lists the options")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        kept = [each for each in found if not self._aside.intersection(each[0].option_strings)] or found
        # Two names of one option are no reason to doubt which option is meant.
        return list({id(each[0]): each for each in reversed(kept)}.values())[::-1]


def parser(script: Spoken, prog: str) -> SeedParser:
    """The parser of a script."""
    aside = [name for each in (*script.options, *script.extras) if each.aside for name in each.flags]
    made = SeedParser(prog, script.about, aside, short_help=script.short_help)
    for title in dict.fromkeys(each.group for each in script.options):
        _add(made.add_argument_group(title), [each for each in script.options if each.group == title])
    _add(made.add_argument_group("options of Layermark"), script.extras)
    return made


def _add(group: argparse._ArgumentGroup, options: Sequence[SeedOption]) -> None:
    for each in options:
        facts: dict[str, Any] = {"dest": each.dest, "help": _help(each)}
        if each.parse is None:
            facts |= {"action": "store_const", "const": each.to}
        else:
            facts |= {"metavar": each.metavar or None}
        if each.many:
            facts["nargs"] = "+"
        if each.bare is not None:
            facts |= {"nargs": "?", "const": each.bare}
        group.add_argument(*each.flags, **facts)


def _help(option: SeedOption) -> str:
    shown = option.default if option.parse is not None else None
    default = "" if shown in (None, ()) else f" (default: {as_text(shown)})"
    return f"{option.help}{_NOTES[option.mark]}{default}".replace("%", "%%")


def parse(
    script: Spoken,
    prog: str,
    argv: Sequence[str],
    configs: Path | None = None,
    ignored: Collection[str] = (),
) -> Typed:
    """Read a command line; every value is checked. What is typed wins over a named set, which wins over defaults.

    `ignored` are names that a set may hold for another program.
    """
    options = (*script.options, *script.extras)
    texts = vars(parser(script, prog).parse_args(list(argv)))
    typed = read(options, texts)
    chosen = configured(configs, typed[CONFIG], options, ignored) if configs and typed.get(CONFIG) else {}
    defaults = {each.dest: each.usual(os.environ) for each in reversed(options)}
    return Typed(values=defaults | chosen | typed, typed=tuple(typed))


def read(options: Iterable[SeedOption], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The values behind texts; what a flag has set is a value already."""
    readers = {each.dest: each for each in options if each.parse is not None}
    return {name: readers[name].read(each) if name in readers else each for name, each in texts.items()}
