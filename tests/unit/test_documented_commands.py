"""Every command in the documents is understood by the parser that would read it; nothing is run."""

import argparse
import re
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from layermark import cli
from layermark.cli import launch
from layermark.cli.parsing import Parser, parse
from layermark.cli.request import setting_texts
from layermark.cli.setting import is_setting, setting, settings
from layermark.errors import UserError
from layermark.launch.poprun import Options, script_of
from layermark.options import options_of, read_record
from layermark.seeds.cnns import inference_options
from layermark.seeds.cnns.averages import parser as averages_parser
from layermark.seeds.cnns.entry import model_of
from layermark.seeds.cnns.script import CONFIGS
from layermark.seeds.cnns.tensorflow_options import TRAIN_ONLY_KEYS as IGNORED
from layermark.seeds.cnns.tensorflow_options import validation_script
from layermark.seeds.cnns.train_options import typed_command
from layermark.seeds.parsing import parse as parse_seeds
from layermark.seeds.scripts import SCRIPTS as SEED_SCRIPTS
from layermark.seeds.scripts import script
from layermark.seeds.stages import name_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "cli.md")]
SCRIPT_PAGES = [*PAGES, *sorted((ROOT / "benchmarks").rglob("*.md"))]
COMMAND = re.compile(r"^\s*(?:- run: |\$ )?(?:[A-Z_]+=\S+ )*(layermark [a-z-].*)$")
QUOTED = re.compile(r"`(layermark [a-z][^`]*)`")
ENDS = ("||", "&&", "|", ">", ";", "#", "[")
"""What a shell, and not the command, reads."""


def code(page):
    """The lines of code of a page, each with those that it goes on in."""
    fenced = False
    for line in re.sub(r"\\\n\s*", " ", page.read_text()).splitlines():
        fenced ^= line.lstrip().startswith("```")
        if fenced or line.startswith("    "):
            yield line


def typed(page):
    """The commands of a page, and whether they are whole: lines of code are.

    Words in backticks may name a command without saying what it is to work on.
    """
    lines = [(found[1], True) for found in map(COMMAND.match, code(page)) if found]
    text = re.sub(r"\\?\s+", " ", page.read_text())
    return [*lines, *((found, False) for found in QUOTED.findall(text))]


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
    if name == "compare" and is_setting(args.a):
        for text in (args.a, args.b):
            setting(text, setting_texts(args))
    if name == "gate" and not args.base and all(map(is_setting, args.names)):
        for text in args.names:
            settings(text, setting_texts(args))


def scripts(page):
    """The folder and the words of every `poprun ...` and `python3 SCRIPT ...` in the code of a page."""
    for line in filter(re.compile(r"\b(poprun|python3?) \S").search, code(page)):
        folder = page.parent
        for part in line.strip().split("&&"):
            argv = [word for word in words(re.sub(r"^\s*([A-Z_]+=\S+ )+", "", part)) if word != "..."]
            if argv[:1] == ["cd"]:
                folder = ROOT / argv[1]
            elif argv[:1] == ["poprun"] or (argv and argv[0].startswith("python") and script_of(argv)):
                yield folder, tuple(argv)


def started(folder, argv):
    """Parse the words of poprun, or of a script of the seeds; of any other program nothing is known."""
    if argv[0] == "poprun":
        parser = Parser(prog="poprun", description="")
        launch.configure(parser)
        args = launch.parse(parser, argv[1:])
        read_record(Options, launch.texts(args, options_of(Options)))
        argv = args.program
    file, *rest = script_of(argv) or ("",)
    if found := seed_scripts(folder, file):
        first_of([partial(read_script, each, rest) for each in found])


def seed_scripts(folder, file):
    """The scripts that a word may mean: the one there, or those of that name in any folder of the benchmarks."""
    near = [each / file for each in (folder, ROOT) if file.endswith(".py") and (each / file).is_file()]
    return near[:1] or sorted((ROOT / "benchmarks").glob(f"*/{file}")) if file else []


def first_of(readings):
    """Several programs have the same name: what one of them understands is right."""
    for reading in readings[:-1]:
        with suppress(UserError):
            return reading()
    return readings[-1]()


def read_script(file, argv):
    """Parse as the script does, and start nothing."""
    name = name_of(file)
    if name == "tensorflow_cnns/train":
        return typed_command(file, argv)
    if name == "tensorflow_cnns/weight_avg":
        return averages_parser(file.name).parse_args(argv)
    if name == "tensorflow_cnns/validation":
        return parse_seeds(validation_script(model_of(file, argv)), file.name, argv, file.parent / CONFIGS, IGNORED)
    if name == "pytorch_cnns/run_benchmark":
        return parse_seeds(inference_options.SCRIPT, file.name, argv, file.parent / CONFIGS)
    if name == "pytorch_cnns/host_benchmark":
        return parse_seeds(inference_options.HOST_BENCHMARK, file.name, argv)
    return parse_seeds(script(name), file.name, argv) if name in SEED_SCRIPTS else None


SCRIPTS = sorted({(page.name, *found) for page in SCRIPT_PAGES for found in scripts(page)})
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


@pytest.mark.parametrize(("page", "folder", "argv"), SCRIPTS, ids=[" ".join(argv)[:90] for _, _, argv in SCRIPTS])
def test_a_documented_script_is_given_options_that_it_has(page, folder, argv):
    try:
        started(folder, argv)
    except SystemExit as stop:
        if stop.code:  # --help ends with 0
            raise


def test_scripts_are_found_and_wrong_options_are_not_understood():
    assert {"launching.md", "seeds.md", "training.md", "README.md"} <= {page for page, _, _ in SCRIPTS}
    assert len(SCRIPTS) > 10
    for wrong in (
        "python3 lstm.py --no-such 1",
        "python3 -u benchmarks/tensorflow_cnns/train.py --no-such 1",
        "python3 weight_avg.py --restore-path run --filename mean --mode mean --no-such",
        "poprun --no-such 1 python3 lstm.py",
        "poprun --num-instances 2 --num-replicas 2 python3 validation.py --no-such",
    ):
        with pytest.raises(UserError, match="no-such"):
            started(ROOT, tuple(wrong.split()))


def test_commands_are_found_and_wrong_ones_are_not_understood():
    assert len(COMMANDS) > 40
    assert {"gallery.md", "publishing.md", "README.md", "history.md"} <= {page for page, _, whole in COMMANDS if whole}
    for wrong in ("gate --no-such main", "compare one", "nothing", "data nothing"):
        with pytest.raises(Exception, match=r"unknown|required|nothing") as raised:
            understood(wrong.split())
        assert not isinstance(raised.value, argparse.ArgumentError)
