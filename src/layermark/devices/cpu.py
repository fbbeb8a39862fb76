"""The CPU as a device: the environment before an import, the thread budget, and the counters."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from layermark.spec import Spec

# glibc gives memory back to the kernel and faults it in again on every call that frees a large
# tensor. Raising these thresholds keeps freed memory mapped: what a long-lived server settles to.
_RETAIN = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # Large blocks on huge pages: which physical pages a process happens to get then matters less from start to start.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}

# Many ranks on one machine need what they hold and no more. A stage of ResNet-50 was seen with 750 MB instead of
# 1150 MB by glibc's defaults, which let large blocks lie in the heap, among others, once one was given back.
_RETURN = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


CPUS = "LAYERMARK_CPUS"
"""The variable that binds a worker to some CPUs, as a comma list of numbers."""
MEMORY_SHARE = "LAYERMARK_MEMORY_SHARE"
"""The variable that tells a worker how many bytes of the machine are meant for it."""
_HALF_FLAGS = ("avx512_fp16", "avx_ne_convert", "amx_fp16", "asimdhp")


def environment(spec: Spec) -> Mapping[str, str]:
    """Variables that every worker on this device starts with."""
    return {"retain": _RETAIN, "return": _RETURN}.get(spec.allocator, {})


def thread_budget() -> int:
    """CPUs that this process may use: its affinity mask, cut down to the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, math.floor(cgroup_cpus() or allowed)))


def host_cpus() -> int:
    """CPUs of this host, whatever this process is bound to, cut down to the cgroup's quota."""
    online = os.cpu_count() or 1
    return max(1, min(online, math.floor(cgroup_cpus() or online)))


def cgroup_cpus() -> float | None:
    """The CPU quota of the control group in CPUs, if there is one."""
    text = _read("/sys/fs/cgroup/cpu.max").split()
    if len(text) == 2 and text[0] != "max":
        return int(text[0]) / int(text[1])
    return None


def cgroup_memory() -> int | None:
    """Bytes left under the control group's memory limit, if there is one; files that are only cached give way."""
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):
        return None
    cached = re.search(r"^inactive_file (\d+)$", _read("/sys/fs/cgroup/memory.stat"), re.MULTILINE)
    return int(limit) - max(0, int(used) - int(cached[1] if cached else 0))


def free_memory() -> int:
    """Bytes that new processes can have: the machine's, or the control group's if that is less."""
    lines = dict(line.split(":") for line in _read("/proc/meminfo").splitlines() if ":" in line)
    machine = int(lines["MemAvailable"].split()[0]) * 1024
    group = cgroup_memory()
    return machine if group is None else min(machine, group)


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process holds now; 0 once it is gone."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def total_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_share() -> int:
    """Return the bytes that are meant for this process: its rank's share, or all of the machine's."""
    return int(os.environ.get(MEMORY_SHARE) or total_memory())


def last_level_cache() -> int:
    """Bytes of the largest cache of the first CPU; 64 MiB where the system does not tell."""
    texts = [path.read_text() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    sizes = [cache_bytes(text) for text in texts]
    return max(sizes, default=0) or 64 << 20


def evicted_bytes() -> int:
    """How much a program with cold caches writes before every batch."""
    return 2 * last_level_cache()


def cold_caches() -> str:
    """How settings tell that the caches were cold."""
    return f"cold: {evicted_bytes() >> 20} MiB written before every batch, not timed"


def multiplies_bytes() -> bool:
    """Whether the CPU has products of bytes that add up in 32 bits; older ones overflow in 16."""
    return any("vnni" in line for line in _read("/proc/cpuinfo").splitlines() if line.startswith("flags"))


def native_half() -> bool:
    """Whether this CPU computes with 16-bit floats, instead of leaving that to software."""
    words = {word for line in _read("/proc/cpuinfo").splitlines() if ":" in line for word in line.split(":")[1].split()}
    return not words.isdisjoint(_HALF_FLAGS)


def cache_bytes(text: str) -> int:
    """A size as the kernel writes it, such as 512K or 32M; 0 for anything else."""
    found = re.fullmatch(r"(\d+)([KM])", text.strip())
    return int(found[1]) << (20 if found[2] == "M" else 10) if found else 0


def thread_times_ns(pid: int | str = "self") -> dict[str, int]:
    """CPU time that every thread of a process has used so far."""
    return {name: ran for name, ran, _ in _threads(f"/proc/{pid}/task")}


def waited_ns() -> int:
    """How long the threads of this process have stood in line for a CPU so far, all together."""
    return sum(waited for _, _, waited in _threads("/proc/self/task"))


def _threads(folder: str) -> Iterator[tuple[str, int, int]]:
    """Name, time on a CPU and time in line for one, of every thread."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:  # the process is gone
        return
    for name in names:
        text = _read(f"{folder}/{name}/schedstat")
        if text:  # a thread may end between the listing and the reading
            ran, waited, _ = text.split()
            yield name, int(ran), int(waited)


def process_time_ns(pid: int) -> int:
    """CPU time of a process with all its threads, and of those that it started and that live; 0 once it is gone."""
    children = map(int, _read(f"/proc/{pid}/task/{pid}/children").split())
    return sum(thread_times_ns(pid).values()) + sum(map(process_time_ns, children))


def wait_until_quiet(
    pids: list[int], *, patience_s: float = 1.0, step_s: float = 0.01, idle_share: float = 0.05
) -> bool:
    """Sleep until the CPU time of these processes stands still: thread pools spin for a while after work.

    Return whether it did within the patience.
    """
    deadline = time.monotonic() + patience_s
    before = sum(map(process_time_ns, pids))
    while time.monotonic() < deadline:
        time.sleep(step_s)
        now = sum(map(process_time_ns, pids))
        if now - before <= idle_share * step_s * 1e9:
            return True
        before = now
    return False


def steal_s() -> float:
    """Seconds of CPU time that the hypervisor has given to somebody else since boot."""
    fields = _read("/proc/stat").split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
