"""A prepared OpenVINO program: the model of a task, compiled for the execution that was asked for or proved best."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino

from layermark.backends._onnx import quantised
from layermark.backends._onnx.program import OnnxProgram
from layermark.backends._onnx.runners import Runner
from layermark.backends._onnx.writer import Array
from layermark.backends.base import Arrays, MissingEntry, Profile, fastest
from layermark.backends.openvino import compiled, execution
from layermark.backends.openvino.execution import Execution, Inputs
from layermark.errors import Unsupported
from layermark.spec import Spec, types_of
from layermark.timing import batch_trial
from layermark.workloads.base import Task

PRIVATE = "latency-binding"


class OpenVinoProgram(OnnxProgram):
    """A compiled model with its requests."""

    def __init__(self, spec: Spec, task: Task) -> None:
        found = compiled.check_subnormals(spec)
        self._wanted = spec.execution
        stored = types_of(spec.precision)[1]
        # The effective type is an option of the runtime; the model itself, its inputs and outputs are fp32.
        super().__init__(spec, task, "32.32" if spec.quantised else f"32.{stored}")
        self._settings |= {
            "execution": self._chosen.name,
            **self._chosen.facts,
            "weight_type": {"32": "float32", "16": "float16", "bf16": "bfloat16", "int8": "int8"}[stored],
            **self._types(),
            "output_type": str(self._chosen.results(0)[0].dtype),
            "subnormals": found,
        }

    def _types(self) -> dict[str, str]:
        if self._spec.quantised:
            return compiled.check_integers(self._chosen.compiled, f"NNCF {version('nncf')}")
        return compiled.check_types(self._chosen.compiled, self._spec)

    def _build(self, weights: Arrays) -> Runner:
        model = self._read = self._whole(weights)
        self._chosen = self._best(model) if self._wanted == "auto" else self._named(model, self._wanted)
        self._wanted = self._chosen.name
        return self._chosen.runner

    def _whole(self, weights: Arrays) -> openvino.Model:
        """The runtime's form of the model, quantised where that was asked for."""
        model = self._model(weights)
        if not self._spec.quantised:
            return compiled.read(model, self._graph)
        if importlib.util.find_spec("nncf") is None:
            raise Unsupported("int8 on openvino needs NNCF: pip install 'layermark[openvino]'")
        feeds, versions = list(self._feeds(quantised.calibration(self._spec))), (version("nncf"), version("openvino"))
        made = quantised.quantise(
            "layermark.backends.openvino.quantiser", str(versions), model, feeds, [".bin", ".xml"]
        )
        return compiled.core().read_model(made)

    def products(self) -> Arrays:
        """The weights of a quantised model, from whole numbers and their steps."""
        return compiled.products(self._read) if self._spec.quantised else {}

    def _full(self) -> Callable[[Arrays], Array]:
        model = compiled.read(self._model(self._weights), self._graph)
        return _first_output(compiled.compile_model(model, self._spec, "latency", compiled.threads_of(self._spec)))

    def _narrow(self) -> Callable[[Arrays], Array]:
        return _first_output(self._chosen.compiled)

    def _named(self, model: openvino.Model, name: str) -> Execution:
        """Return the execution of this name, or the documented one where its private entry is missing."""
        make = execution.throughput if name == "throughput" else execution.latency
        made = make(model, self._spec, Inputs(self.host, self._live), self._evictor)
        if name != PRIVATE:
            return made
        try:
            return execution.latency_binding(made, self._evictor)
        except MissingEntry as reason:
            self._settings["fallback"] = f"{PRIVATE} -> {made.name}: {reason}"
            return made

    def _best(self, model: openvino.Model) -> Execution:
        """Return the best of a short alternating trial."""
        notes, candidates = [], [self._named(model, "latency")]
        batches, least = self._spec.batches_per_step, 2
        try:
            candidates.append(execution.latency_binding(candidates[0], self._evictor))
        except MissingEntry as reason:
            notes.append(f"no {PRIVATE}: {reason}")
        try:
            if batches == 1:
                raise Unsupported("one batch per call cannot fill several streams")
            candidates.append(self._named(model, "throughput"))
            least = candidates[-1].runner.least
        except Unsupported as reason:
            notes.append(f"no throughput: {reason}")
        rates = batch_trial([each.runner.run for each in candidates], batches, least, seconds=0.05)
        notes += [f"{each.name} {rate:.4g}/s" for each, rate in zip(candidates, rates, strict=True)]
        self._settings["execution_trial"] = ", ".join(notes)
        return candidates[fastest(rates, [each.name == PRIVATE for each in candidates])]

    def profile(self, folder: Path, batches: int) -> Profile:
        """The counters of a model compiled for them, one batch at a time."""
        from layermark.backends.openvino.profile import profiled

        counting = compiled.compile_model(
            self._read, self._spec, "latency", compiled.threads_of(self._spec), count=True
        )
        return profiled(counting, self.host, folder, batches)

    def _results(self, place: int) -> Sequence[Array]:
        return self._chosen.results(place)

    def close(self) -> None:
        """Let go of the model and its requests."""
        super().close()
        del self._chosen, self._read


def _first_output(model: openvino.CompiledModel) -> Callable[[Arrays], Array]:
    request = model.create_infer_request()
    return lambda fed: np.array(request.infer(dict(fed))[0])
