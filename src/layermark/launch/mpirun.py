"""The other launcher: Open MPI's mpirun starts, binds and ends the instances; hosts are its business.

Only the output takes a way of its own. mpirun (4.1) reads an instance's output in pieces of 4 KiB, tags each piece as
if it were a line, and drops what its buffer does not hold: of two ranks with 10,000 lines each, 243 came out torn, and
of empty lines two thirds were lost. An instance therefore writes into a named pipe (or, on another host, a connection)
that poprun reads.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from layermark.launch import instance, words
from layermark.launch.lines import Lines
from layermark.launch.local import DRAIN_S, drain, shim, stdin
from layermark.launch.poprun import Job, address_towards, is_local
from layermark.launch.processes import Failure, nobody_left, status_of, undisturbed
from layermark.launch.ranks import TOKEN

_GRACE_S = 5.0

# mpirun notices a host that is cut off by itself, but only after eight minutes; with these it takes ten seconds.
_KEEPALIVE = (
    *("--mca", "oob_tcp_keepalive_time", "5"),
    *("--mca", "oob_tcp_keepalive_intvl", "1"),
    *("--mca", "oob_tcp_keepalive_probes", "5"),
)

# Only to name the instance in a line for people; the status is mpirun's own.
_WHO = re.compile(r"process rank (\d+) with PID|Process name: \[\[\d+,\d+\],(\d+)\]")


def command(job: Job, setting: instance.Setting, environment: Mapping[str, str]) -> list[str]:
    """Return mpirun's command line."""
    given = job.global_words + job.local_words
    local = words.without_unset(job.local_words, environment)
    return [
        "mpirun",
        *words.without_unset(job.global_words, environment),
        *_own_words(job, given),
        *(("--mca", "orte_local_tmpdir_base", setting.lines_folder) if setting.lines_folder else ()),
        "-np",
        str(job.options.num_instances),
        *local,
        "-x",
        TOKEN,
        *shim(setting, job.program),
    ]


def _own_words(job: Job, given: tuple[str, ...]) -> Iterator[str]:
    if os.geteuid() == 0 and "allow-run-as-root" not in words.names(given):
        yield "--allow-run-as-root"
    if job.setting.bind:
        yield from ("--bind-to", "none")  # an instance binds itself, in the same way under both launchers
    if job.options.host:
        yield from ("--host", ",".join(_slots(job)))
    elif not job.hosts and not words.counts_slots(given):
        yield "--oversubscribe"
    if job.remote:
        yield from _KEEPALIVE


def _slots(job: Job) -> Iterator[str]:
    """`--host` with a number of slots for each: hosts without one share equally what the others leave."""
    given = [part.strip() for part in job.options.host.split(",") if part.strip()]
    taken = sum(int(part.partition(":")[2]) for part in given if ":" in part)
    left, hosts = job.options.num_instances - taken, sum(":" not in part for part in given)
    for part in given:
        if ":" in part:
            yield part
            continue
        share = max(1, math.ceil(left / hosts))
        left, hosts = left - share, hosts - 1
        yield f"{part}:{share}"


def run(job: Job, lines: Lines, environment: Mapping[str, str]) -> Failure | None:
    """Run all instances; return the first that failed, or None."""
    with _output_paths(job, lines) as setting:
        failure = _run(job, lines, environment, setting)
        drain(lines)  # of ended instances on other hosts, a connection holds more than a pipe
    return replace(failure, rank=_rank(lines)) if failure is not None and not failure.reason else failure


def _run(job: Job, lines: Lines, environment: Mapping[str, str], setting: instance.Setting) -> Failure | None:
    with nobody_left():
        process = _start(command(job, setting, environment), lines, environment)
        try:
            ended = _wait(process, lines, job)
        except KeyboardInterrupt:
            with undisturbed():
                _stop(process, lines)
            raise
        except BrokenPipeError:  # nobody reads the lines any more
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            raise
        if not ended:
            _stop(process, lines)
            return Failure(rank=None, status=1, reason="did not end when all instances had: is a host cut off?")
        drain(lines, until=time.monotonic() + DRAIN_S)
        status = status_of(process.returncode)
    return Failure(rank=None, status=status) if status else None


def _start(command: list[str], lines: Lines, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=stdin(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        preexec_fn=functools.partial(instance.end_with_parent, signal.SIGTERM, parent=os.getpid()),
    )
    for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
        assert pipe is not None
        lines.add(None, name, os.dup(pipe.fileno()))
        pipe.close()
    return process


def _wait(process: subprocess.Popen[bytes], lines: Lines, job: Job) -> bool:
    """Sleep until mpirun has ended; False if it does not although all instances have.

    With a host cut off in the middle of a job's end, mpirun waits for that host for a quarter of an hour. Without other
    hosts it is never late, and a program that closes all its descriptors only seems to have ended.
    """
    instances = job.options.num_instances if job.remote else math.inf
    descriptor = os.pidfd_open(process.pid)
    lines.watch(descriptor, lambda: None)
    came = True
    while process.poll() is None and came:
        came = lines.step(None if lines.ended < instances else _GRACE_S)
    lines.forget(descriptor)
    os.close(descriptor)
    return process.returncode is not None


def _stop(process: subprocess.Popen[bytes], lines: Lines) -> None:
    """Ask mpirun to end the job on all its hosts; what does not end is ended by force afterwards."""
    process.send_signal(signal.SIGTERM)
    until = time.monotonic() + _GRACE_S
    while process.poll() is None and (left := until - time.monotonic()) > 0:
        lines.step(left)


@contextmanager
def _output_paths(job: Job, lines: Lines) -> Iterator[instance.Setting]:
    """Where the output goes: a named pipe for each stream of an instance here, a port for those on other hosts."""
    setting = job.setting
    if words.forwards_output(job.global_words + job.local_words):
        yield replace(setting, announce=False)
        return
    with tempfile.TemporaryDirectory(prefix="poprun-") as folder, contextlib.ExitStack() as stack:
        if not job.hosts or any(map(is_local, job.hosts)):
            _pipes(folder, job.options.num_instances, lines)
            setting = replace(setting, lines_folder=folder)
        if job.remote:
            setting = replace(setting, lines_address=_listen(job, lines, stack))
        yield setting


def _pipes(folder: str, instances: int, lines: Lines) -> None:
    for rank in range(instances):
        for name in instance.STREAMS:
            path = os.path.join(folder, f"{rank}.{name}")
            os.mkfifo(path, 0o600)
            lines.add(rank, name, os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def _listen(job: Job, lines: Lines, stack: contextlib.ExitStack) -> str:
    listener = stack.enter_context(socket.create_server(("", 0)))
    lines.listen(listener)
    stack.callback(lines.forget, listener.fileno())
    return f"{address_towards(job.hosts)}:{listener.getsockname()[1]}"


def _rank(lines: Lines) -> int | None:
    found = _WHO.search("\n".join(lines.last.get(None, ())))
    return int(found[1] or found[2]) if found else None
