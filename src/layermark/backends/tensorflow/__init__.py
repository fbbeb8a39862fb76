"""TensorFlow. This module imports no tensorflow, so that a parent may ask about the backend for free."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import ClassVar

from layermark.backends.base import Backend, Program
from layermark.spec import Spec
from layermark.workloads.base import Task

DISTRIBUTIONS = ("tensorflow-cpu", "tensorflow")


class TensorflowBackend(Backend):
    """TensorFlow on CPU: the graph executor with oneDNN kernels, or XLA."""

    name: ClassVar[str] = "tensorflow"
    package: ClassVar[str] = "tensorflow"
    executions: ClassVar[tuple[str, ...]] = ("auto", "function", "xla")
    # Weights are constants of the graph, which every pass that rewrites it copies: 33 to 36 times, seen on ResNets.
    weight_copies: ClassVar[int] = 36

    @property
    def version(self) -> str:
        """The version of whichever distribution brings the package."""
        for name in DISTRIBUTIONS:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return ""

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """One thread budget for kernels (operations run on the caller's thread), and strict fp32 in oneDNN."""
        threads = str(spec.threads or len(os.sched_getaffinity(0)))
        return {
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": "1",
            "OMP_NUM_THREADS": threads,
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD": "1",
            "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def load(self) -> Mapping[str, str]:
        """Import tensorflow; the pools are sized by the environment."""
        from layermark.backends.tensorflow.process import facts

        return facts()

    def prepare(self, spec: Spec, task: Task) -> Program:
        """Build (and compile) the graph for a task."""
        from layermark.backends.tensorflow.program import prepare

        return prepare(spec, task)


BACKEND = TensorflowBackend()
