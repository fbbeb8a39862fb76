"""OpenVINO. This module imports no framework, so that a parent may ask about the backend for free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from layermark.backends.base import Backend, Program
from layermark.spec import Spec
from layermark.workloads.base import Task


class OpenVinoBackend(Backend):
    """OpenVINO's CPU plug-in on a model written from the graph. Inference only.

    `latency` runs one batch at a time on all threads, `throughput` several at once on streams of their own;
    `latency-binding` is `latency` entered below the Python interface.
    """

    name: ClassVar[str] = "openvino"
    package: ClassVar[str] = "openvino"
    half_on_cpus: ClassVar[bool] = True
    also: ClassVar[tuple[str, ...]] = ("onnx",)
    quantises: ClassVar[bool] = True
    executions: ClassVar[tuple[str, ...]] = ("auto", "latency", "latency-binding", "throughput")

    def load(self) -> Mapping[str, str]:
        """Import the runtime; return versions and what the plug-in can compute in."""
        from layermark.backends.openvino.compiled import facts

        return facts()

    def prepare(self, spec: Spec, task: Task) -> Program:
        """Write the model of a task and compile it."""
        from layermark.backends._onnx.program import refuse

        refuse(spec, self.name, self.executions)
        from layermark.backends.openvino.program import OpenVinoProgram

        return OpenVinoProgram(spec, task)

    def write_onnx(self, spec: Spec, task: Task, path: Path) -> bool:
        """Write the model of a task."""
        from layermark.backends._onnx import write_model

        write_model(task.graph, task.weights(), path, spec.precision)
        return True


BACKEND = OpenVinoBackend()
