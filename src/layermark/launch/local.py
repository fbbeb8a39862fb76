"""The built-in launcher: the instances of one host, on the standard library alone."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from layermark.launch import instance, words
from layermark.launch.lines import Lines
from layermark.launch.poprun import Job
from layermark.launch.processes import Failure, end_group, nobody_left, python_module, status_of, undisturbed

GRACE_S = 3.0
DRAIN_S = 1.0


class Instances:
    """The running instances. `run` sleeps until all have ended, or ends the others once one has failed."""

    def __init__(self, job: Job, lines: Lines, environment: Mapping[str, str]) -> None:
        self._lines = lines
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._failed: list[Failure] = []
        for rank in range(job.options.num_instances):
            self._start(job, rank, environment)

    def _start(self, job: Job, rank: int, environment: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            shim(replace(job.setting, rank=rank), job.program),
            env=dict(environment),
            stdin=stdin() if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # to end it with all that it starts; Ctrl-C reaches poprun alone, which ends all
            preexec_fn=functools.partial(instance.end_with_parent, parent=os.getpid()),
        )
        self._running[rank] = process
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            self._lines.add(rank, name, os.dup(pipe.fileno()))
            pipe.close()
        self._watch(rank, process)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        descriptor = os.pidfd_open(process.pid)

        def ended() -> None:
            self._lines.forget(descriptor)
            os.close(descriptor)
            status = status_of(process.wait())
            del self._running[rank]
            if status:
                self._failed.append(Failure(rank=rank, status=status))

        self._lines.watch(descriptor, ended)

    def run(self) -> Failure | None:
        """Return the first instance that failed, or None when all went well."""
        try:
            while self._running and not self._failed:
                self._lines.step(None)
        except KeyboardInterrupt:
            with undisturbed():
                self._end(signal.SIGTERM, GRACE_S)
            raise
        if not self._failed:
            return None
        # Of several seen at once, one that a signal killed is the cause, and those that complain are its witnesses.
        first = max(self._failed, key=lambda each: each.status > 128)
        self._end(signal.SIGTERM, GRACE_S)
        self._end(signal.SIGKILL, GRACE_S)
        return first

    def _end(self, how: signal.Signals, patience_s: float) -> None:
        for process in self._running.values():
            end_group(process, how)
        until = time.monotonic() + patience_s
        while self._running and (left := until - time.monotonic()) > 0:
            self._lines.step(left)


def run(job: Job, lines: Lines, environment: Mapping[str, str]) -> Failure | None:
    """Run all instances; return the first that failed, or None."""
    given = words.exports(job.global_words + job.local_words)
    with nobody_left():
        first = Instances(job, lines, {**environment, **given}).run()
        drain(lines, until=time.monotonic() + DRAIN_S)
    # Only now is everybody gone who could still hold a pipe open.
    drain(lines)
    return first


def drain(lines: Lines, until: float = math.inf) -> None:
    """Read what the ended instances have left, until nothing comes for a while or a time is reached.

    Who reads poprun's output may be slow: time alone does not end this once nobody is left who could write for ever.
    """
    while lines.open and time.monotonic() < until and lines.step(DRAIN_S):
        pass


def shim(setting: instance.Setting, program: tuple[str, ...]) -> list[str]:
    """Return the command that becomes one instance of the program."""
    return [*python_module(instance.__name__), setting.text(), "--", *program]


def stdin() -> int | None:
    """Return what instance 0 reads: poprun's input, unless that is a terminal, which only the foreground may read."""
    return subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
