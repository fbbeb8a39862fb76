"""ONNX Runtime. This module imports no framework, so that a parent may ask about the backend for free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from layermark.backends.base import Backend, Probe, Program
from layermark.spec import Spec
from layermark.workloads.base import Task


class OnnxRuntimeBackend(Backend):
    """ONNX Runtime's own kernels (or CUDA's) on a model written from the graph. Inference only.

    `sequential` (or `latency`) runs one batch at a time on all threads, `throughput` one on each thread.
    """

    name: ClassVar[str] = "onnxruntime"
    package: ClassVar[str] = "onnxruntime"
    also: ClassVar[tuple[str, ...]] = ("onnx",)
    executions: ClassVar[tuple[str, ...]] = ("auto", "sequential", "latency", "throughput")
    quantises: ClassVar[bool] = True
    probes: ClassVar[bool] = True

    def load(self) -> Mapping[str, str]:
        """Import the runtime; return versions and providers."""
        from layermark.backends.onnxruntime.process import facts

        return facts()

    def prepare(self, spec: Spec, task: Task) -> Program:
        """Write the model of a task and open a session on it."""
        from layermark.backends._onnx.program import refuse

        refuse(spec, self.name, self.executions, ("cpu", "cuda"))
        from layermark.backends.onnxruntime.program import OnnxRuntimeProgram

        return OnnxRuntimeProgram(spec, task)

    def probe(self, spec: Spec) -> Probe:
        """Matrix products on packed weights, and simple streams."""
        from layermark.backends.onnxruntime.probe import OnnxRuntimeProbe

        return OnnxRuntimeProbe(spec)

    def write_onnx(self, spec: Spec, task: Task, path: Path) -> bool:
        """Write the model of a task."""
        from layermark.backends._onnx import write_model

        write_model(task.graph, task.weights(), path, spec.precision)
        return True


BACKEND = OnnxRuntimeBackend()
