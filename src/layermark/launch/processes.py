"""Processes that a launcher answers for: how they ended, and that none is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def python_module(name: str) -> list[str]:
    """Return the command that runs a module; a file of the working folder, such as json.py, does not get in its way."""
    return [sys.executable, "-P", "-m", name]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first instance that failed, and how; `rank` is None where mpirun itself failed."""

    rank: int | None
    status: int
    reason: str = ""

    def line(self) -> str:
        """Return the reason for people."""
        who = "mpirun" if self.rank is None else f"instance {self.rank}"
        return f"{who} {self.reason or ending(self.status)}"


@contextmanager
def nobody_left() -> Iterator[None]:
    """End whatever was started within the block and still lives at its end, and what that started.

    Orphans become children of this process meanwhile, instead of init's, so that none is out of reach.
    """
    before = set(descendants(os.getpid()))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        with undisturbed():
            _end_all(before)
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP within the block: a second one must not leave half of the cleaning undone."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end_all(before: set[int]) -> None:
    # A process may start another one while it is being ended: look again until there is none.
    while left := [pid for pid in descendants(os.getpid()) if pid not in before]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and those that these started."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """Return the processes that a process started, from all its threads; none once it is gone."""
    with contextlib.suppress(OSError):
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(word) for text in texts for word in text.split()]
    return []


def end_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Send a signal to a process and to all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, how)


def status_of(returncode: int) -> int:
    """Return the status of a shell for this end: 128 and the signal's number where a signal ended it.

    >>> status_of(3), status_of(-9)
    (3, 137)
    """
    return returncode if returncode >= 0 else 128 - returncode


def ending(status: int) -> str:
    """Return how a process ended, from such a status, in words.

    >>> ending(3), ending(137)
    ('exited with status 3', 'was killed by SIGKILL (out of memory?)')
    """
    try:
        name = signal.Signals(status - 128).name if status > 128 else ""
    except ValueError:
        name = ""
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}" if name else f"exited with status {status}"
