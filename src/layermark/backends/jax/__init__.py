"""JAX. This module imports no JAX, so that a parent may ask about the backend for free."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from layermark.backends.base import Backend, Profile, Program
from layermark.spec import Spec
from layermark.workloads.base import Task


class JaxBackend(Backend):
    """Plain `jax.lax` code compiled by XLA.

    XLA has no fused recurrent kernel on the CPU: both forms of a recurrent layer are its best compiled loop over
    time, and the settings name it.
    """

    name: ClassVar[str] = "jax"
    package: ClassVar[str] = "jax"
    executions: ClassVar[tuple[str, ...]] = ("auto", "jit", "recompute")
    executions_name_loops: ClassVar[bool] = False
    connects: ClassVar[bool] = True

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """The size of XLA's pools, read once when its client starts, and the platform."""
        threads = str(spec.threads or len(os.sched_getaffinity(0)))
        return {"PJRT_NPROC": threads, "JAX_PLATFORMS": spec.device}

    def load(self) -> Mapping[str, str]:
        """Import JAX, pin full fp32, and start XLA with a pool that keeps to the thread budget."""
        from layermark.backends.jax.process import start

        return start()

    def prepare(self, spec: Spec, task: Task) -> Program:
        """Trace and compile the program for a task, or this replica's part of it."""
        self.load()
        if task.group is not None:
            from layermark.backends.jax import replicas

            return replicas.prepare(spec, task, task.group)
        from layermark.backends.jax.program import prepare

        return prepare(spec, task)

    def profiled(self, work: Callable[[], object], folder: Path) -> Profile:
        """JAX's own profiler."""
        from layermark.backends.jax.profile import profiled

        return profiled(work, folder)


BACKEND = JaxBackend()
