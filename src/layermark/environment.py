"""The record of where a measurement ran: enough to explain a number, and to know whether another is comparable."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layermark.devices import cpu

NODE = "LAYERMARK_NODE"
"""The variable that names the node of a cluster on which a process runs; two nodes may share a host."""

_PACKAGES = ("layermark", "numpy", "torch", "tensorflow", "tensorflow-cpu", "jax", "jaxlib", "onnxruntime", "openvino")
_IDENTITY = ("cpu", "cores", "caches", "kernel", "memory_bytes", "python", "versions", "affinity", "cgroup")


def record() -> dict[str, Any]:
    """Facts of this machine and process, all read at once."""
    node = os.environ.get(NODE)
    return {
        "host": platform.node(),
        **({"node": node} if node else {}),
        "cpu": _cpu_model(),
        "isa": _isa(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "caches": _caches(),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
        "kernel": platform.release(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "thp": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "cgroup": {"cpus": cpu.cgroup_cpus(), "memory_max": _first_line("/sys/fs/cgroup/memory.max") or "none"},
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "versions": versions(),
    }


def fingerprint(environment: Mapping[str, Any]) -> str:
    """A short name of what must be equal for two sessions to be one."""
    identity = {name: environment.get(name) for name in _IDENTITY}
    # Of the nodes of a cluster each has sessions of its own; a host's name, of a container say, may change every day.
    identity |= {"node": environment["node"]} if environment.get("node") else {}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of the installed packages that matter, without importing them."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peak_rss_bytes() -> int:
    """The most memory this process has held."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0


def _cpu_model() -> str:
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return match[1].strip() if match else platform.machine()


def _isa() -> list[str]:
    match = re.search(r"flags\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    wanted = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
    return [name for name in wanted if match and name in match[1].split()]


def _caches() -> dict[str, str]:
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = _first_line(folder / "level"), _first_line(folder / "type")
        found[f"L{level}{kind[:1].lower() if kind != 'Unified' else ''}"] = _first_line(folder / "size")
    return found


def _first_line(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip().split("\n")[0]
    except OSError:
        return ""


def _chosen(path: str) -> str:
    match = re.search(r"\[(\w+)\]", _first_line(path))
    return match[1] if match else "unknown"
