"""`python -m layermark.cli.docs [FILE]` writes `docs/cli.md` from the parsers, so that it cannot be out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from layermark.cli import COMMANDS, action_overview, actions, command, overview
from layermark.cli.parsing import Parser

HEADER = """# Command line

<!-- Written by `python -m layermark.cli.docs`; a test compares. -->

Errors are one line on stderr. Progress goes to stderr, results to stdout.

| exit status | meaning |
| --- | --- |
| 0 | everything was measured, or skipped for a reason that is given |
| 1 | something failed: a worker, or the verification of a result; `gate`: slower; `replay`: not reproduced |
| 2 | the request was wrong |
| 3 | `gate` cannot tell |
| 130 | interrupted by Ctrl-C, SIGTERM or SIGHUP; what was measured is kept |
| 141 | the program reading the output went away |
"""

OWN = "of the command"


def main(argv: Sequence[str]) -> None:
    """Write the page."""
    Path(argv[0] if argv else "docs/cli.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page as Markdown."""
    shown: set[str] = set()
    sections = [line for name in COMMANDS for line in _sections(name, shown)]
    return "\n".join([HEADER, "```text", overview(), "```", *sections]) + "\n"


def _sections(name: str, shown: set[str]) -> Iterator[str]:
    """A command, or one that has actions and each of these."""
    if not actions(name):
        yield from _section(name, shown)
        return
    summary = command(name).SUMMARY
    yield from ("", f"## layermark {name}", "", f"{summary[0].upper()}{summary[1:]}.")
    yield from ("", "```text", action_overview(name), "```")
    for action in actions(name):
        yield from _section(f"{name} {action}", shown)


def _section(name: str, shown: set[str]) -> Iterator[str]:
    module = command(name)
    parser = Parser(prog=f"layermark {name}", description=module.SUMMARY)
    module.configure(parser)
    yield from ("", f"## layermark {name}", "", f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.")
    tables = {_title(group): list(_table(group)) for group in parser._action_groups}
    again = [title for title, lines in tables.items() if title != OWN and "\n".join(lines) in shown]
    for title, lines in tables.items():
        yield from [] if title in again else lines
    if again:
        common = [title for title in again if not title.startswith("options of")]
        yield from ("", f"As above: {', '.join([*common, 'the options of the workloads'])}.")
    if parser.epilog:
        yield from ("", "```text", parser.epilog, "```")
    shown |= {"\n".join(lines) for lines in tables.values() if lines}


def _table(group: argparse._ArgumentGroup) -> Iterator[str]:
    rows = [action for action in group._group_actions if action.dest != "help"]
    if not rows:
        return
    yield from ("", f"### {_title(group)}", "")
    if group.description:
        yield from (f"{group.description[0].upper()}{group.description[1:]}.", "")
    yield from ("| option | value | meaning |", "| --- | --- | --- |")
    yield from map(_line, rows)


def _line(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar)
    value = action.metavar if action.option_strings and action.nargs != 0 else ""
    return f"| `{name}` | {_cell(str(value or ''))} | {_cell((action.help or '') % {})} |"


def _title(group: argparse._ArgumentGroup) -> str:
    return {"positional arguments": "arguments", "options": OWN}.get(str(group.title), str(group.title))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main(sys.argv[1:])
