"""Which CPUs an instance gets: those of its NUMA node, or an equal share of the cores of its host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Where an instance really runs, as the kernel tells it from inside the process."""

    rank: int
    pid: int
    host: str
    cpus: tuple[int, ...]
    thread_limit: int
    """How many threads its environment allows; how many it will have is up to the program."""
    memory_nodes: tuple[int, ...]

    def line(self) -> str:
        """Return one line for people."""
        nodes = as_list(self.memory_nodes) or "unknown"
        cpus = f"{len(self.cpus)} CPU{'s' * (len(self.cpus) != 1)}"
        return (
            f"instance {self.rank} on {self.host}: pid {self.pid}, {cpus} ({as_list(self.cpus)}),"
            f" thread limit {self.thread_limit} (OMP_NUM_THREADS), memory node {nodes}"
        )


def share(index: int, count: int, *, numa_aware: bool) -> tuple[int, ...]:
    """Return the CPUs of instance `index` of the `count` on this host.

    `numa_aware` deals the NUMA nodes out round-robin first; instances of one node share its cores equally.
    """
    nodes = numa_nodes() if numa_aware else []
    if len(nodes) < 2:
        return equal_share(cores(), index, count)
    node = nodes[index % len(nodes)]
    neighbours = len(range(index % len(nodes), count, len(nodes)))
    return equal_share([core for core in cores() if node.issuperset(core)], index // len(nodes), neighbours)


def equal_share(cores: Sequence[tuple[int, ...]], index: int, count: int) -> tuple[int, ...]:
    """Return the CPUs of one of `count` equal shares of these cores; with more shares than cores, cores are shared.

    >>> equal_share([(0,), (1,), (2,), (3,)], 1, 2), equal_share([(0, 2), (1, 3)], 2, 4)
    ((2, 3), (1, 3))
    """
    first = index * len(cores) // count
    last = max(first + 1, (index + 1) * len(cores) // count)
    return tuple(sorted(cpu for core in cores[first:last] for cpu in core))


def cores() -> list[tuple[int, ...]]:
    """Return the cores that this process may use, each as the CPUs (hardware threads) that it has."""
    allowed = os.sched_getaffinity(0)
    found = {tuple(sorted(_siblings(cpu) & allowed)) for cpu in allowed}
    return sorted(found)


def numa_nodes() -> list[set[int]]:
    """Return the CPUs of every NUMA node that this process may use; none where the system does not tell."""
    allowed = os.sched_getaffinity(0)
    folders = sorted(_NODES.glob("node[0-9]*"), key=lambda folder: int(folder.name.removeprefix("node")))
    found = [from_list(_read(folder / "cpulist")) & allowed for folder in folders]
    return [node for node in found if node]


def thread_limits(cpus: Iterable[int], host_budget: int, count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that limit the threads of an instance to its CPUs and its part of the host's budget.

    Each may ask for less, and those that do not are asked for as many as OMP_NUM_THREADS.

    >>> thread_limits([0, 1, 2], 8, 2, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1"})["MKL_NUM_THREADS"]
    '1'
    """
    most = max(1, min(len(set(cpus)), host_budget // count or 1))
    common = _requested(environment, "OMP_NUM_THREADS") or most
    return {name: str(min(most, _requested(environment, name) or common)) for name in THREAD_VARIABLES}


def _requested(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else 0


def observe(rank: int, host: str) -> Observed:
    """Return where this process runs, from /proc."""
    return Observed(
        rank=rank,
        pid=os.getpid(),
        host=host,
        cpus=tuple(sorted(from_list(_status("Cpus_allowed_list")))),
        thread_limit=int(os.environ.get("OMP_NUM_THREADS", "0")),
        memory_nodes=_memory_nodes(),
    )


def _memory_nodes() -> tuple[int, ...]:
    """The nodes that hold pages of this process; those that may, where the kernel does not count them."""
    held = {int(node) for node in re.findall(r"\bN(\d+)=\d", _read(Path("/proc/self/numa_maps")))}
    return tuple(sorted(held or from_list(_status("Mems_allowed_list"))))


def _status(name: str) -> str:
    found = re.search(rf"^{name}:\s*(.*)$", _read(Path("/proc/self/status")), re.MULTILINE)
    return found[1] if found else ""


def _siblings(cpu: int) -> set[int]:
    return from_list(_read(_CPUS / f"cpu{cpu}/topology/thread_siblings_list")) or {cpu}


def from_list(text: str) -> set[int]:
    """Read CPUs or nodes as the kernel writes them.

    >>> sorted(from_list("0-2,5"))
    [0, 1, 2, 5]
    """
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return {number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)}


def as_list(numbers: Iterable[int]) -> str:
    """Write numbers as the kernel does.

    >>> as_list([5, 0, 1, 2])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
