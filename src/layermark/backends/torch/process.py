"""Switches of the whole process: thread pools, full fp32, subnormal numbers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch

_ACCELERATORS = ("cuda", "xpu", "mps")
_PREPACKING = (
    "_reorder_linear_weight",
    "_linear_pointwise",
    "_reorder_convolution_weight",
    "_convolution_pointwise",
    "_reorder_mkldnn_rnn_layer_weight",
)


@cache
def start() -> Mapping[str, str]:
    """Set what must be set before the first operation, once; return the facts that matter."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    # CPUs multiply fp32 in full unless told otherwise, and to be told costs every operation a look-up: 1 % of a GRU.
    if any(map(has_device, _ACCELERATORS)):
        torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision("highest")
    return facts()


def facts() -> dict[str, str]:
    """Versions and capabilities of this build."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    libraries = [line.split(" (Git")[0] for line in lines if "MKL-DNN v" in line or "Kernel Library Version" in line]
    return {
        "torch": str(torch.__version__),
        "isa": isa(),
        "threads": str(torch.get_num_threads()),
        "onednn": str(torch.backends.mkldnn.is_available()),
        "mkl": str(torch.backends.mkl.is_available()),
        "libraries": "; ".join(libraries),
    }


@cache
def prepacks() -> bool:
    """Return whether weights can be brought into oneDNN's own layout: torch has no interface for it that it promises.

    A torch whose operators have other names runs the library's formulation, and is probed by its own products.
    """
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, each) for each in _PREPACKING)


def set_partials(half: bool) -> None:
    """Let CUDA's products of 16-bit floats be added up in 16 bits, or forbid it; older releases know one switch."""
    for name in ("allow_fp16_accumulation", "allow_fp16_reduced_precision_reduction"):
        if hasattr(torch.backends.cuda.matmul, name):
            setattr(torch.backends.cuda.matmul, name, half)


def isa() -> str:
    """The instruction set that torch's own kernels were picked for."""
    return str(torch.backends.cpu.get_cpu_capability())


def set_subnormals(choice: str) -> str:
    """Flush subnormal numbers, or keep them, in every thread; return what really holds.

    A worker thread inherits the mode of the thread that starts it, so a pool that already runs in the
    other mode is let go of and starts again on the next operation.
    """
    torch.set_flush_denormal(choice == "flush")
    if subnormals_now() != choice:
        _restart_pool()
    return subnormals_now()


def subnormals_now() -> str:
    """`flush`, `keep`, or `mixed` where threads differ, seen on a product that every thread takes part in."""
    tiny = torch.full((1 << 17,), 1e-30) * 1e-10
    kept = int(torch.count_nonzero(tiny.view(torch.int32)))  # as integers: a flushing thread reads subnormals as zero
    return {0: "flush", tiny.numel(): "keep"}.get(kept, "mixed")


def _restart_pool() -> None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line}
    for path in paths:
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is not None:
            pause(ctypes.c_int(1))


def has_device(device: str) -> bool:
    """Whether this build can reach a device, and the device is there."""
    if device == "mps":
        return torch.backends.mps.is_available()
    return device == "cpu" or (device in _ACCELERATORS and bool(getattr(torch, device).is_available()))


def synchronizer(device: str) -> Callable[[], object] | None:
    """What returns when all that was handed to an accelerator is done; calls on the CPU return by then anyway."""
    if device == "cpu":
        return None
    found: Callable[[], object] = getattr(torch, device).synchronize
    return found
