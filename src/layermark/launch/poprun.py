"""What `poprun` was asked for, checked: the job that a launcher then starts, or one line that says why not."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layermark.errors import UserError
from layermark.launch import topology, words
from layermark.launch.instance import Setting
from layermark.launch.ports import Ports
from layermark.options import integer, option, switch

LAUNCHERS = ("auto", "mpirun", "builtin")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that fill a value; switches of the command line's own are declared with the command."""

    num_replicas: int = option(1, help="replicas over all instances", parse=integer(1))
    num_instances: int = option(1, help="host processes to start; must divide the replicas", parse=integer(1))
    ipus_per_replica: int = option(
        1, help="stages of each replica, one device each; the program checks them", parse=integer(1)
    )
    numa_aware: bool = option(
        False, help="bind instances to NUMA nodes round-robin; without, to an equal share of the cores", parse=switch
    )
    mpi_global_args: str = option("", help="words for mpirun, once, such as '--allow-run-as-root --tag-output'")
    mpi_local_args: str = option("", help="words for mpirun that are the instances', such as '-x NAME'")
    host: str = option(
        "", help="hosts to start instances on, a comma list of NAME or NAME:SLOTS; needs mpirun", metavar="HOSTS"
    )
    only_output_from_instance: int | None = option(
        None, help="show the output of this instance only; that of one that fails is shown, too", parse=integer(0)
    )
    offline_mode: bool = option(False, help="run without devices; here the program runs as it is", parse=switch)
    print_topology: bool = option(
        False, help="show CPUs, thread limit and memory node of every instance as observed in it", parse=switch
    )
    num_ilds: int = option(1, help="of clusters of IPUs: checked, without effect here", parse=integer(1))
    update_partition: bool = option(False, help="of clusters of IPUs: checked, without effect here", parse=switch)
    reset_partition: bool = option(False, help="of clusters of IPUs: checked, without effect here", parse=switch)
    launcher: str = option(
        "auto", help="mpirun (Open MPI's), builtin (one host), or auto: mpirun if it is installed", choices=LAUNCHERS
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A plan that was checked: everything that a launcher needs to start it."""

    options: Options
    program: tuple[str, ...]
    launcher: str
    hosts: tuple[str, ...]
    global_words: tuple[str, ...]
    local_words: tuple[str, ...]
    master_address: str
    master_port: int

    @property
    def setting(self) -> Setting:
        """What every instance is told."""
        return Setting(
            instances=self.options.num_instances,
            replicas=self.options.num_replicas,
            devices_per_replica=self.options.ipus_per_replica,
            master_address=self.master_address,
            master_port=self.master_port,
            numa_aware=self.options.numa_aware,
            bind=not words.binds(self.global_words + self.local_words),
        )

    @property
    def remote(self) -> bool:
        """Whether an instance may run on another host."""
        return not all(map(is_local, self.hosts))

    @property
    def tagged(self) -> bool:
        """Whether lines carry rank and stream."""
        return words.tags_output(self.global_words + self.local_words)


def plan(options: Options, program: Sequence[str], environment: Mapping[str, str], ports: Ports) -> Job:
    """Return the job, or raise `UserError` for one that cannot work; nothing is started.

    `ports` holds the port at which the instances will meet until instance 0 listens there.
    """
    _check_counts(options)
    given = tuple(words.split("--mpi-global-args", options.mpi_global_args))
    local = tuple(words.split("--mpi-local-args", options.mpi_local_args))
    hosts = tuple(_hosts(options)) or tuple(words.hosts(given + local))
    _check_hosts(hosts)
    _check_output(options, given + local)
    launcher = _launcher(options.launcher, hosts, given + local, environment)
    address = _master_address(hosts, environment)
    return Job(
        options=options,
        program=_program(program, environment, remote=not all(map(is_local, hosts))),
        launcher=launcher,
        hosts=hosts,
        global_words=given,
        local_words=local,
        master_address=address,
        master_port=_master_port(address, environment, ports),
    )


def describe(job: Job, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the plan in lines: what would be started, and where."""
    options = job.options
    yield f"launcher: {job.launcher}"
    yield f"instances: {options.num_instances}, replicas in each: {options.num_replicas // options.num_instances}"
    yield f"devices of a replica: {options.ipus_per_replica}"
    yield f"rendezvous: {job.master_address}:{job.master_port}"
    if job.hosts:
        yield f"hosts: {', '.join(job.hosts)}"
    yield from _places(job, environment)
    yield f"program: {' '.join(job.program)}"


def shared(job: Job) -> str:
    """Return what to tell about instances that share CPUs, or nothing."""
    cpus = len(os.sched_getaffinity(0))
    if job.remote or job.options.num_instances <= cpus:
        return ""
    return f"{job.options.num_instances} instances share {cpus} CPU{'s' * (cpus != 1)}, one thread each"


def _places(job: Job, environment: Mapping[str, str]) -> Iterator[str]:
    from layermark.devices.cpu import thread_budget

    if job.remote or not job.setting.bind:
        yield "CPUs: " + ("each host deals out its own" if job.setting.bind else "bound by mpirun, as its words say")
        return
    count = job.options.num_instances
    for rank in range(count):
        cpus = topology.share(rank, count, numa_aware=job.options.numa_aware)
        threads = topology.thread_limits(cpus, thread_budget(), count, environment)["OMP_NUM_THREADS"]
        yield f"instance {rank}: CPUs {topology.as_list(cpus)}, at most {threads} thread{'s' * (threads != '1')}"


def _check_counts(options: Options) -> None:
    if options.num_replicas % options.num_instances:
        raise UserError(
            f"--num-replicas {options.num_replicas} cannot be dealt out to --num-instances {options.num_instances}"
            f" equally; expected a multiple, such as --num-replicas {_next_multiple(options)}"
        )
    only = options.only_output_from_instance
    if only is not None and only >= options.num_instances:
        raise UserError(
            f"--only-output-from-instance {only}: expected an instance from 0 to {options.num_instances - 1}"
        )


def _check_output(options: Options, given: Sequence[str]) -> None:
    if words.forwards_output(given) and (options.print_topology or options.only_output_from_instance is not None):
        raise UserError(
            "--print-topology and --only-output-from-instance need the output that mpirun was told to treat in its"
            " own way; leave out one or the other"
        )


def _next_multiple(options: Options) -> int:
    return math.ceil(options.num_replicas / options.num_instances) * options.num_instances


def _hosts(options: Options) -> Iterator[str]:
    """`--host` without its slots; raises `UserError` if they are too few."""
    given = [part.strip() for part in options.host.split(",") if part.strip()]
    slots = [part.partition(":")[2] for part in given]
    if any(":" in part and not text.isdigit() for part, text in zip(given, slots, strict=True)):
        raise UserError(f"--host {options.host}: expected NAME or NAME:SLOTS, separated by commas")
    if given and all(slots) and sum(map(int, slots)) < options.num_instances:
        raise UserError(
            f"--host {options.host} has fewer slots than --num-instances {options.num_instances};"
            " a host without a number takes the rest"
        )
    yield from (part.partition(":")[0] for part in given)


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            raise UserError(f"unknown host {host!r}; expected a name or an address that this host can reach") from None


def _launcher(requested: str, hosts: Sequence[str], given: Sequence[str], environment: Mapping[str, str]) -> str:
    installed = requested != "builtin" and _has_open_mpi(environment)
    if requested == "mpirun" and not installed:
        raise UserError("--launcher mpirun: Open MPI's mpirun is not on the path; install openmpi-bin, or use builtin")
    chosen = requested if requested != "auto" else "mpirun" if installed else "builtin"
    if chosen == "builtin":
        _check_builtin(hosts, given)
    return chosen


def _has_open_mpi(environment: Mapping[str, str]) -> bool:
    """Whether mpirun is there and Open MPI's: others take other words."""
    found = shutil.which("mpirun", path=environment.get("PATH"))
    if found is None:
        return False
    said = subprocess.run([found, "--version"], env=dict(environment), capture_output=True, text=True)
    return "Open MPI" in said.stdout


def _check_builtin(hosts: Sequence[str], given: Sequence[str]) -> None:
    if remote := [host for host in hosts if not is_local(host)]:
        raise UserError(f"the built-in launcher serves this host only, not {', '.join(remote)}; install openmpi-bin")
    words.refuse_unknown(given)


def _program(program: Sequence[str], environment: Mapping[str, str], *, remote: bool) -> tuple[str, ...]:
    """The program as it will be run; raises `UserError` if this host, the only one, has no such program."""
    if not program:
        raise UserError("no program; expected: poprun [options] PROGRAM [arguments]")
    found = shutil.which(program[0], path=environment.get("PATH"))
    if found is None and Path(program[0]).name == program[0] == "python":
        return (sys.executable, *program[1:])  # the documents' word, on systems that only have python3
    if found is None and not remote:
        raise UserError(
            f"the program {program[0]!r} does not exist, or cannot be run; expected one on the path or a file"
        )
    script = script_of(program)
    if not remote and script and not Path(script[0]).exists():
        raise UserError(f"the program {script[0]!r} does not exist in {Path.cwd()}")
    return tuple(program)


def script_of(program: Sequence[str]) -> tuple[str, ...]:
    """Return a Python program's file and arguments, whatever options stand before it; nothing where it has no file.

    >>> script_of(["python3", "-u", "-W", "error", "run.py", "-v"]), script_of(["python", "-m", "run"])
    (('run.py', '-v'), ())
    """
    if program and program[0].endswith(".py"):
        return tuple(program)
    if not program or not Path(program[0]).name.startswith("python"):
        return ()
    rest = list(program[1:])
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        letters = "" if word.startswith("--") else word[1:]
        if word == "-" or {"c", "m"} & set(re.split("[WX]", letters)[0]):
            return ()
        if letters[-1:] in ("W", "X") or word == "--check-hash-based-pycs":
            del rest[:1]
    return tuple(rest)


def is_local(host: str) -> bool:
    """Whether a name or an address is this host's."""
    if host in (*_LOOPBACK, socket.gethostname()):
        return True
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((socket.gethostbyname(host), 0))
        return True
    return False


def address_towards(hosts: Sequence[str]) -> str:
    """Return the address of this host that the first other host sees; the loopback where there is none."""
    remote = [host for host in hosts if not is_local(host)]
    if not remote:
        return _LOOPBACK[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((remote[0], 9))  # sends nothing: it only picks the route
        return str(probe.getsockname()[0])


def _master_address(hosts: Sequence[str], environment: Mapping[str, str]) -> str:
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    # mpirun gives the first ranks to the first host.
    return hosts[0] if hosts and not is_local(hosts[0]) else address_towards(hosts)


def _master_port(address: str, environment: Mapping[str, str], ports: Ports) -> int:
    text = environment.get("MASTER_PORT", "0")
    if not text.isdigit() or int(text) > 65535:
        raise UserError(f"MASTER_PORT is {text!r}; expected a port from 1 to 65535")
    try:
        return ports.hold(address if is_local(address) else "", int(text))
    except OSError as error:
        if not is_local(address):
            return int(text)
        raise UserError(f"MASTER_PORT {text} is not free ({error.strerror}); unset it, or set another") from None
