"""Parsers of the seed scripts: argparse's own rules, abbreviations included, and one line for what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from layermark.axes import as_text
from layermark.errors import UserError
from layermark.seeds.options import SeedOption
from layermark.seeds.scripts import Script
from layermark.seeds.tables import EXTRA

_NOTES = {"=": "", "~": "", "sim": " [no effect on this device]"}


@dataclass(frozen=True, kw_only=True)
class Typed:
    """All values of a script by name, and the names of those that were typed."""

    values: dict[str, Any]
    typed: tuple[str, ...]


class SeedParser(argparse.ArgumentParser):
    """Raises `UserError`; options that step aside lose against the others where an abbreviation fits both."""

    def __init__(self, prog: str, description: str, aside: frozenset[str]) -> None:
        super().__init__(prog=prog, description=description, argument_default=argparse.SUPPRESS)
        self._aside = aside

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; the caller decides how the process ends."""
        raise UserError(f"{message.removeprefix('argument ')}; {self.prog} --help lists the options")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        kept = [each for each in found if not self._aside.intersection(each[0].option_strings)]
        return kept or found


def parser(script: Script, prog: str) -> SeedParser:
    """The parser of a script."""
    every = (*script.options, *EXTRA)
    made = SeedParser(
        prog, f"{script.title} benchmark with made-up data.", frozenset(each.flag for each in every if each.aside)
    )
    _add(made.add_argument_group("options of the benchmark"), script.options)
    _add(made.add_argument_group("options of Layermark"), EXTRA)
    return made


def _add(group: argparse._ArgumentGroup, options: Sequence[SeedOption]) -> None:
    for each in options:
        facts: dict[str, Any] = {"dest": each.dest, "help": _help(each)}
        if each.parse is None:
            group.add_argument(each.flag, action="store_const", const=each.to, **facts)
        else:
            group.add_argument(each.flag, metavar=each.metavar or None, **facts)


def _help(option: SeedOption) -> str:
    shown = option.default if option.parse is not None else None
    default = "" if shown is None else f" (default: {as_text(shown)})"
    return f"{option.help}{_NOTES[option.mark]}{default}".replace("%", "%%")


def parse(script: Script, prog: str, argv: Sequence[str]) -> Typed:
    """Read a command line; every value is checked."""
    options = (*script.options, *EXTRA)
    texts = vars(parser(script, prog).parse_args(list(argv)))
    readers = {each.dest: each for each in options if each.parse is not None}
    typed = {name: _read(readers[name], each) if name in readers else each for name, each in texts.items()}
    defaults = {each.dest: each.default for each in reversed(options)}
    return Typed(values=defaults | typed, typed=tuple(typed))


def _read(option: SeedOption, text: str) -> Any:
    try:
        return option.parse(text) if option.parse else text
    except ValueError as error:
        raise UserError(f"{option.flag} {text}: {error}") from None
