"""The command line: one small file per command, each imported only when its command is typed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

# The command `list` is a module of this package, so that word must not mean the type in this file.
COMMANDS = (
    *("run", "show", "report", "list", "describe", "doctor", "compare", "gate", "fleet"),
    *("profile", "trace", "history", "export", "import", "replay", "prune", "data", "launch"),
)

POPRUN = "poprun"
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; wrong requests become one line on stderr."""
    try:
        with _terminated_like_interrupted():
            status = _dispatch(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:
        return _refuse(error)


def program() -> str:
    """Return the name under which this was started: `layermark`, or `poprun` for `layermark launch`."""
    return POPRUN if os.path.basename(sys.argv[0]) == POPRUN else "layermark"


def command(name: str) -> ModuleType:
    """The module of a command or action (`data bench`): `SUMMARY`, `configure(parser)` and `execute(args, argv)`."""
    module = "import_" if name == "import" else name.replace(" ", ".")  # a word of Python's cannot name a module
    return importlib.import_module(f"{__name__}.{module}")


def actions(name: str) -> tuple[str, ...]:
    """The words that a command takes as its first, each with options of its own; none for most commands."""
    return tuple(getattr(command(name), "ACTIONS", ()))


def overview() -> str:
    """What `layermark --help` prints."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: layermark COMMAND [options]",
            "",
            "Measure neural-network layers on every runtime of this machine.",
            "",
            "commands:",
            *(f"  {name:{width}}  {command(name).SUMMARY}" for name in COMMANDS),
            "",
            "options:",
            f"  {'--help':{width + 3}}  show this, or after a command its options",
            f"  {'--version':{width + 3}}  show the version",
            "",
            "Begin with: layermark run --suite quick",
        ]
    )


def _dispatch(argv: Sequence[str]) -> int:
    first = argv[0] if argv else "--help"
    if first in ("-h", "--help", "help"):
        print(overview())
        return 0
    if first == "--version":
        from layermark import __version__

        print(f"layermark {__version__}")
        return 0
    if first not in COMMANDS:
        raise _unknown(first)
    if actions(first):
        return _act(first, argv[1:])
    return _execute(first, argv[1:])


def _act(name: str, argv: Sequence[str]) -> int:
    """A command with actions: the next word says which."""
    if not argv or argv[0] in ("-h", "--help"):
        print(action_overview(name))
        return 0
    if argv[0] not in actions(name):
        from layermark.errors import unknown

        raise unknown(f"action of layermark {name}", argv[0], actions(name))
    return _execute(f"{name} {argv[0]}", argv[1:])


def action_overview(name: str) -> str:
    """What a command with actions prints when none is typed."""
    width = max(map(len, actions(name)))
    summaries = [f"  {each:{width}}  {command(f'{name} {each}').SUMMARY}" for each in actions(name)]
    return "\n".join([f"usage: layermark {name} ACTION [options]", "", "actions:", *summaries])


def _execute(name: str, argv: Sequence[str]) -> int:
    from layermark.cli.parsing import Parser, parse

    module = command(name)
    parser = Parser(prog=f"layermark {name}", description=module.SUMMARY)
    module.configure(parser)
    try:
        args = getattr(module, "parse", parse)(parser, argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    return int(module.execute(args, argv))


def _unknown(name: str) -> Exception:
    from layermark.errors import unknown

    return unknown("option" if name.startswith("-") else "command", name, [*COMMANDS, "--help", "--version"])


def _refuse(error: Exception) -> int:
    """One line for what went wrong: status 2 for a wrong request, 1 for one that could not be met."""
    from layermark.errors import Unsupported, UserError, WorkerFailed

    if not isinstance(error, UserError | Unsupported | WorkerFailed):
        raise error
    print(f"{program()}: error:", " ".join(str(error).splitlines()), file=sys.stderr)
    return 2 if isinstance(error, UserError) else 1


def _reader_left() -> int:
    # Python flushes stdout once more when it ends; without this it would complain there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command the way Ctrl-C does: workers are ended and what was measured is kept.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    taken = [each for each, handler in before.items() if each == signal.SIGTERM or handler is not signal.SIG_IGN]
    try:
        for each in taken:
            signal.signal(each, signal.default_int_handler)
        yield
    finally:
        for each in taken:
            signal.signal(each, before[each])
