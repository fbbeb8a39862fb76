"""Every command in the documents is understood by the parser that would read it; nothing is run."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from layermark import cli
from layermark.cli.compare import _is_setting, setting
from layermark.cli.parsing import Parser, parse
from layermark.cli.request import setting_texts
from layermark.errors import UserError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "cli.md")]
COMMAND = re.compile(r"^\s*(?:- run: |\$ )?(?:[A-Z_]+=\S+ )*(layermark [a-z-].*)$")
QUOTED = re.compile(r"`(layermark [a-z][^`]*)`")
ENDS = ("||", "&&", "|", ">", ";", "#", "[")
"""What a shell, and not the command, reads."""


def typed(page):
    """The commands of a page, and whether they are whole: lines of code, with those that they go on in, are.

    Words in backticks may name a command without saying what it is to work on.
    """
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    lines, fenced = list[tuple[str, bool]](), False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        found = COMMAND.match(line)
        lines += [(found[1], True)] if found and (fenced or line.startswith("    ")) else []
    return [*lines, *((found, False) for found in QUOTED.findall(re.sub(r"\s+", " ", text)))]


def words(line):
    """What the command gets: no comment, no other command, none of the brackets around what may be left out."""
    found = shlex.split(re.sub(r"(?<=\w)\.\.\.", "", line), comments=True)
    ends = [index for index, word in enumerate(found) if word in ENDS or word.startswith(">")]
    return [word.strip("[]").rstrip(";") for word in found[: min(ends, default=len(found))] if word.strip("[]")]


def understood(argv):
    """Parse as the command line does; a wrong option, a missing word or an unknown command raises."""
    name, rest = argv[0], argv[1:]
    assert name in cli.COMMANDS, name
    if cli.actions(name):
        if not rest:
            return
        assert rest[0] in cli.actions(name), rest[0]
        name, rest = f"{name} {rest[0]}", rest[1:]
    module = cli.command(name)
    parser = Parser(prog=f"layermark {name}", description=module.SUMMARY)
    module.configure(parser)
    args = getattr(module, "parse", parse)(parser, rest)
    if name == "compare" and _is_setting(args.a):
        for text in (args.a, args.b):
            setting(text, setting_texts(args))


COMMANDS = sorted({(page.name, *found) for page in PAGES for found in typed(page)})


@pytest.mark.parametrize(("page", "line", "whole"), COMMANDS, ids=[f"{each[0]}: {each[1]}"[:90] for each in COMMANDS])
def test_a_documented_command_is_understood(page, line, whole, capsys):
    try:
        understood(words(line)[1:])
    except SystemExit as stop:
        if stop.code:  # --help ends with 0
            raise
    except UserError as error:
        if whole or not str(error).startswith("the following arguments are required"):
            raise


def test_commands_are_found_and_wrong_ones_are_not_understood():
    assert len(COMMANDS) > 40
    assert {"gallery.md", "publishing.md", "README.md", "history.md"} <= {page for page, _, whole in COMMANDS if whole}
    for wrong in ("gate --no-such main", "compare one", "nothing", "data nothing"):
        with pytest.raises(Exception, match=r"unknown|required|nothing") as raised:
            understood(wrong.split())
        assert not isinstance(raised.value, argparse.ArgumentError)
