"""PyTorch. This module imports no torch, so that a parent may ask about the backend for free."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from layermark.backends.base import Arrays, Backend, Probe, Profile, Program
from layermark.spec import Spec, types_of
from layermark.workloads.base import Task

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from layermark.data.base import Array


class TorchBackend(Backend):
    """PyTorch on CPU (or CUDA where the build has it): eager or compiled by Inductor.

    `eager-direct` is `eager` below the calls of modules and without an optimiser, for small layers.
    """

    name: ClassVar[str] = "torch"
    package: ClassVar[str] = "torch"
    half_on_cpus: ClassVar[bool] = True
    widens_norms: ClassVar[bool] = True
    executions: ClassVar[tuple[str, ...]] = ("auto", "eager", "compile", "recompute", "eager-direct")
    connects: ClassVar[bool] = True
    pipelines: ClassVar[bool] = True
    buckets: ClassVar[bool] = True
    probes: ClassVar[bool] = True
    probes_for_others: ClassVar[bool] = True

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """One thread budget for OpenMP and MKL, no compile helpers left alive, and strict fp32 in oneDNN."""
        threads = str(spec.threads or len(os.sched_getaffinity(0)))
        return {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
        }

    def load(self) -> Mapping[str, str]:
        """Import torch, size its pools and pin full fp32; no operation may have run before."""
        from layermark.backends.torch.process import start

        return start()

    def half_partials(self, spec: Spec) -> bool:
        """cuBLAS can add up in fp16; the CPU's libraries have no such switch."""
        return spec.device == "cuda" and types_of(spec.precision)[0] == "16"

    def prepare(self, spec: Spec, task: Task) -> Program:
        """Build (and compile) the module for a task, or this rank's part of it."""
        self.load()
        if spec.splits:
            from layermark.backends.torch import pipeline

            return pipeline.prepare(spec, task)
        if task.group is not None:
            from layermark.backends.torch import replicas

            return replicas.prepare(spec, task, task.group)
        from layermark.backends.torch.program import prepare

        return prepare(spec, task)

    def piece_times(self, spec: Spec, task: Task) -> list[tuple[str, float]]:
        """The pieces between single tensors, each timed by itself."""
        self.load()
        from layermark.backends.torch.balance import piece_times

        return piece_times(spec, task)

    def profiled(self, work: Callable[[], object], folder: Path) -> Profile:
        """Torch's own profiler."""
        from layermark.backends.torch.profile import profiled

        return profiled(work, folder)

    def probe(self, spec: Spec) -> Probe:
        """Matrix products and simple streams through torch."""
        self.load()
        from layermark.backends.torch.probe import TorchProbe

        return TorchProbe(spec)

    def read_checkpoint(self, path: Path) -> Arrays:
        """The tensors of a .pth file, through the loader that takes tensors and nothing else."""
        from layermark.backends.torch.checkpoint import state_dict

        return state_dict(path)

    def read_picture(self, data: bytes, where: str) -> Array:
        """A picture that was saved as a tensor, through the same loader."""
        from layermark.backends.torch.checkpoint import picture

        return picture(data, where)

    def reference_arrays(self) -> ModuleType | Any:
        """The torch module: float64 arrays with automatic differentiation."""
        import torch

        return torch


BACKEND = TorchBackend()
