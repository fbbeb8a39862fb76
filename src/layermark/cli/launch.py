"""`layermark launch`, and `poprun`: the same command under the name that the documents type."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layermark.cli import POPRUN, program
from layermark.cli.parsing import Parser, texts
from layermark.cli.parsing import parse as parse_options

if TYPE_CHECKING:
    from layermark.launch.poprun import Job
    from layermark.launch.processes import Failure
    from layermark.launch.topology import Observed

SUMMARY = "start a program in several processes, on one host or several; poprun is the same command"

_CLUSTER = "--vipu-"
_NO_EFFECT = ("--num-ilds", "--update-partition", "--reset-partition")


def poprun() -> int:
    """Run the command under its other name."""
    from layermark.cli import main

    return main(["launch", *sys.argv[1:]])


def configure(parser: Parser) -> None:
    """Declare the options."""
    from layermark.launch.poprun import Options
    from layermark.options import options_of

    if program() == POPRUN:
        parser.prog = POPRUN
    parser.usage = f"{parser.prog} [options] PROGRAM [arguments]"
    parser.add_argument("-v", action="count", default=0, help="show the plan; -vv also what is started")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    parser.add_group(
        "of the job", options_of(Options), "options end at the first word that is neither option nor value"
    )
    parser.epilog = "Options that begin with --vipu- are checked for a value and have no effect here."


def parse(parser: Parser, argv: Sequence[str]) -> Namespace:
    """Parse the options; everything from the program on stays as it was typed."""
    own, program = split(parser, argv)
    without = [word for word in own if not word.startswith(_CLUSTER)]
    args = parse_options(parser, without)
    args.program = program
    args.no_effect = sorted({word.split("=")[0] for word in own if word.startswith((_CLUSTER, *_NO_EFFECT))})
    return args


def split(parser: Parser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into options, each joined to its value, and the program with its arguments."""
    own: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if rest and _takes(parser, word, rest[0]):
            word = f"{word}={rest.pop(0)}"
        own.append(word)
    return own, rest[1:] if rest[:1] == ["--"] else rest


def _takes(parser: Parser, word: str, after: str) -> bool:
    """Whether the word after an option is its value."""
    from layermark.options import switch

    if "=" in word or re.fullmatch("-v+", word):
        return False
    if word in parser.switches:
        try:
            return switch(after) in (True, False)
        except ValueError:
            return False
    action = parser._option_string_actions.get(word)
    return word.startswith(_CLUSTER) or (action is not None and action.nargs != 0)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Start the instances and return the status of the first that failed, or 0."""
    from layermark.launch.poprun import Options, plan
    from layermark.launch.ports import Ports
    from layermark.options import options_of, read_record

    environment = dict(os.environ)
    options = Options(**read_record(Options, texts(args, options_of(Options))))
    with Ports(0) as ports:
        return _carry_out(plan(options, args.program, environment, ports), args, environment)


def _carry_out(job: Job, args: Namespace, environment: dict[str, str]) -> int:
    from layermark.launch.poprun import describe, shared

    _check_program(job)
    if args.no_effect:
        _say(f"without effect here: {', '.join(args.no_effect)}")
    if notice := shared(job):
        _say(notice)
    if args.dry_run:
        print("\n".join([*describe(job, environment), *_command(job, environment)]))
        return 0
    for line in _verbose(job, environment, args.v):
        _say(line)
    return _run(job, environment)


def _check_program(job: Job) -> None:
    """A program of the seeds must have the stages that it is given; of any other, the launcher knows nothing.

    Where its instances find the same files and variables as this process, a CNN program is checked altogether.
    """
    from layermark.launch.instance import Place, variables
    from layermark.launch.poprun import script_of
    from layermark.launch.words import exports
    from layermark.seeds.stages import check_inference, check_stages, check_training, stages_of

    file, *words = script_of(job.program) or ("",)
    stages = stages_of(Path(file), words) if file else None
    if stages is not None:
        check_stages(job.options.ipus_per_replica, stages)
    if file and not (job.remote or exports(job.global_words + job.local_words)):
        each = job.options.num_replicas // job.options.num_instances
        check_training(Path(file), words, job.options.num_instances, each, job.options.ipus_per_replica)
        first = Place(rank=0, local_rank=0, local_size=job.options.num_instances)
        check_inference(Path(file), words, variables(job.setting, first))


def _command(job: Job, environment: Mapping[str, str]) -> Iterator[str]:
    import shlex

    from layermark.launch import local, mpirun

    shown = mpirun.command(job, job.setting, environment) if job.launcher == "mpirun" else ()
    yield f"starts: {shlex.join(shown or local.shim(job.setting, job.program))}"


def _verbose(job: Job, environment: Mapping[str, str], level: int) -> Iterator[str]:
    from layermark.launch.poprun import describe

    yield from describe(job, environment) if level else ()
    yield from _command(job, environment) if level > 1 else ()


def _run(job: Job, environment: dict[str, str]) -> int:
    import secrets

    from layermark.launch import local, mpirun
    from layermark.launch.lines import Lines
    from layermark.launch.ranks import TOKEN

    environment[TOKEN] = secrets.token_hex(16)
    lines = Lines(
        tagged=job.tagged,
        only=job.options.only_output_from_instance,
        token=environment[TOKEN],
        started=_show if job.options.print_topology else lambda seen: None,
    )
    try:
        run = mpirun.run if job.launcher == "mpirun" else local.run
        failure = run(job, lines, environment)
    finally:
        lines.close()
    if failure is None:
        return 0
    _report(job, lines.last, failure)
    return failure.status


def _report(job: Job, last: Mapping[int | None, Sequence[str]], failure: Failure) -> None:
    """Name the first failure, with its last lines if they were hidden."""
    if failure.rank is not None and job.options.only_output_from_instance not in (None, failure.rank):
        for line in last.get(failure.rank, ()):
            _say(f"instance {failure.rank}: {line}")
    _say(f"error: {failure.line()}")


def _show(seen: Observed) -> None:
    _say(seen.line())


def _say(line: str) -> None:
    from layermark.launch.lines import write

    write(2, f"poprun: {line}\n".encode())
