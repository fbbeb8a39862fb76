"""Parsers whose options come from the records that they fill."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.options import Option

AXES_HELP = "a comma list is an axis: every value is measured, in every combination"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError` and never guesses what an abbreviation means."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.switches: set[str] = set()

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; the caller decides how the process ends."""
        raise UserError(message.removeprefix("argument "))

    def add_group(self, title: str, options: Iterable[Option], description: str | None = None) -> None:
        """A titled group of generated options; their texts are left unread, since each may be a comma list."""
        from layermark.options import switch

        group = self.add_argument_group(title, description)
        for each in options:
            facts: dict[str, str] = {"default": argparse.SUPPRESS, "metavar": each.metavar, "help": _help(each)}
            if each.parse is switch:
                self.switches.add(each.flag)
                facts |= {"nargs": "?", "const": "on"}
            group.add_argument(each.flag, dest=each.name, **facts)  # type: ignore[arg-type]


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command's arguments; positional ones may stand anywhere between the options."""
    args, extra = parser.parse_known_intermixed_args(_bare_switches(argv, parser.switches))
    for text in extra:
        if text.startswith("-"):
            raise _unknown_option(parser, text.split("=")[0])
    if extra:
        raise UserError(f"unexpected argument {extra[0]!r}")
    return args


def _unknown_option(parser: Parser, received: str) -> UserError:
    import difflib

    near = difflib.get_close_matches(received, parser._option_string_actions, n=3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return UserError(f"unknown option {received!r}; {hint}{parser.prog} --help lists them")


def texts(args: argparse.Namespace, options: Iterable[Option]) -> dict[str, str]:
    """The texts that were typed for these options, under their underscored names."""
    return {each.name: getattr(args, each.name) for each in options if hasattr(args, each.name)}


def merged_params(params: Mapping[str, Mapping[str, Option]]) -> dict[tuple[str, ...], list[Option]]:
    """Options of several workloads, each once, under the names of the workloads that have it."""
    owners: dict[str, list[str]] = {}
    for workload, options in params.items():
        for name in options:
            owners.setdefault(name, []).append(workload)
    groups: dict[tuple[str, ...], list[Option]] = {}
    for name, names in owners.items():
        groups.setdefault(tuple(sorted(names)), []).append(_merged([(each, params[each][name]) for each in names]))
    return groups


def _merged(found: Sequence[tuple[str, Option]]) -> Option:
    """One option for all workloads that have it; where they differ in meaning or default, its help says how."""
    from dataclasses import replace

    meanings = _by_workload(found, lambda option: option.help)
    defaults = _by_workload(found, _default)
    first = found[0][1]
    meaning = first.help if len(meanings) == 1 else "; ".join(f"{names}: {text}" for text, names in meanings.items())
    if len(defaults) == 1:
        return replace(first, help=meaning)
    differing = ", ".join(f"{text} for {names}" for text, names in defaults.items())
    return replace(first, help=f"{meaning} (default: {differing})")


def _by_workload(found: Sequence[tuple[str, Option]], fact: Callable[[Option], str]) -> dict[str, str]:
    workloads: dict[str, list[str]] = {}
    for workload, option in found:
        workloads.setdefault(fact(option), []).append(workload)
    return {text: ", ".join(names) for text, names in workloads.items()}


def _default(option: Option) -> str:
    from layermark.axes import as_text
    from layermark.options import seconds

    return as_text(option.default) + ("s" if option.parse is seconds else "")


def _help(option: Option) -> str:
    if "(default:" in option.help or option.default in ("", None):
        return option.help
    return f"{option.help} (default: {_default(option)})"


def _bare_switches(argv: Sequence[str], switches: set[str]) -> list[str]:
    """`--bias conv` means on, then a workload: a switch takes the next word only if it is one of its own."""
    pairs = itertools.pairwise([*argv, ""])
    return [f"{text}=on" if text in switches and not _is_switch_list(after) else text for text, after in pairs]


def _is_switch_list(text: str) -> bool:
    from layermark.options import switch

    try:
        return all(switch(part.strip()) in (True, False) for part in text.split(","))
    except ValueError:
        return False
