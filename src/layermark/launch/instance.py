"""`python -m layermark.launch.instance SETTING -- PROGRAM ...` becomes one instance of a job.

It learns its rank, binds itself to its CPUs, sets the variables that a program looks for, tells poprun where it runs,
and is then replaced by the program. mpirun and the built-in launcher both start their instances through it, so that
both mean the same on every host.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layermark.launch import topology
from layermark.launch.ranks import TOKEN

HEADER = "\x1elayermark-instance "
"""How the first line of an instance begins: what poprun reads and does not show."""

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 126
STREAMS = ("stdout", "stderr", "life")
"""What an instance writes into; of the last, which is never written to, poprun waits for the end."""

_LIFE = 100
"""The descriptor of the last: far above those that a script uses by number."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all instances of a job have in common, and the place of one that the built-in launcher starts."""

    instances: int
    replicas: int
    devices_per_replica: int
    master_address: str
    master_port: int
    numa_aware: bool = False
    bind: bool = True
    announce: bool = True
    lines_folder: str = ""
    lines_address: str = ""
    rank: int | None = None

    def text(self) -> str:
        """Return the record as one word of a command line."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of the instances this is, in the job and on its host."""

    rank: int
    local_rank: int
    local_size: int


def main(argv: Sequence[str]) -> None:
    """Become the program; ends with status 126 and one line where that is not possible."""
    setting, program = Setting(**json.loads(argv[0])), list(argv[2:])
    end_with_parent()
    place = _place(setting, os.environ)
    try:
        _prepare(setting, place)
        _restore_signals()
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"poprun: instance {place.rank} cannot run {program[0]}: {error}\n")
        sys.exit(_CANNOT_RUN)


def _prepare(setting: Setting, place: Place) -> None:
    if setting.announce:
        _redirect(setting, place.rank)
    seen = _enter(setting, place)
    if setting.announce:
        _write(2, f"{HEADER}{json.dumps(dataclasses.asdict(seen))}\n".encode())


def _restore_signals() -> None:
    """Python ignores these, and what is ignored stays so in the program: `yes | head -1` would complain."""
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(each, signal.SIG_DFL)


def end_with_parent(ending: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel end this process when the one that started it dies, however that happens.

    The kernel tells only of a death that is still to come: if `parent` (the present one unless given) is gone already,
    this process ends here.
    """
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ending)
    if os.getppid() != expected:
        os._exit(128 + ending)


def variables(setting: Setting, place: Place) -> dict[str, str]:
    """Return what the environment of an instance says about its job."""
    local_replicas = setting.replicas // setting.instances
    facts = {
        "POPDIST_NUM_TOTAL_REPLICAS": setting.replicas,
        "POPDIST_NUM_LOCAL_REPLICAS": local_replicas,
        "POPDIST_NUM_IPUS_PER_REPLICA": setting.devices_per_replica,
        "POPDIST_REPLICA_INDEX_OFFSET": place.rank * local_replicas,
        "POPDIST_INSTANCE_INDEX": place.rank,
        "POPDIST_NUM_INSTANCES": setting.instances,
        "POPDIST_LOCAL_INSTANCE_INDEX": place.local_rank,
        "RANK": place.rank,
        "WORLD_SIZE": setting.instances,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": setting.master_address,
        "MASTER_PORT": setting.master_port,
    }
    return {name: str(value) for name, value in facts.items()}


def _place(setting: Setting, environment: Mapping[str, str]) -> Place:
    """The built-in launcher has one host, so that a rank is also a local rank; mpirun tells."""
    if setting.rank is not None:
        return Place(rank=setting.rank, local_rank=setting.rank, local_size=setting.instances)
    rank, local_rank, local_size = (
        int(environment[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE")
    )
    return Place(rank=rank, local_rank=local_rank, local_size=local_size)


def _enter(setting: Setting, place: Place) -> topology.Observed:
    """Bind this process, set its variables, and look where it is."""
    from layermark.devices.cpu import thread_budget

    budget = thread_budget()  # before binding: it is that of all instances on this host
    if setting.bind:
        os.sched_setaffinity(0, topology.share(place.local_rank, place.local_size, numa_aware=setting.numa_aware))
    os.environ.update(topology.thread_limits(os.sched_getaffinity(0), budget, place.local_size, os.environ))
    os.environ.update(variables(setting, place))
    return topology.observe(place.rank, socket.gethostname())


def _redirect(setting: Setting, rank: int) -> None:
    """Send stdout and stderr straight to poprun: what mpirun forwards, it cuts into pieces and loses lines of."""
    for target, stream in zip((1, 2, _LIFE), STREAMS, strict=True):
        source = _line(setting, rank, stream)
        if source is not None:
            os.dup2(source, target)
            os.close(source)


def _line(setting: Setting, rank: int, stream: str) -> int | None:
    pipe = os.path.join(setting.lines_folder, f"{rank}.{stream}")
    if setting.lines_folder and os.path.exists(pipe):
        try:
            return _pipe(pipe)
        except OSError:
            if not setting.lines_address:
                raise
    return _connection(setting, rank, stream) if setting.lines_address else None


def _pipe(path: str) -> int:
    """Open a named pipe. It has no reader if poprun is gone, or on another host, in a folder that hosts share."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def _connection(setting: Setting, rank: int, stream: str) -> int:
    host, _, port = setting.lines_address.rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=10)
    line.settimeout(None)
    line.sendall(json.dumps({"token": os.environ[TOKEN], "rank": rank, "stream": stream}).encode() + b"\n")
    return line.detach()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(sys.argv[1:])
