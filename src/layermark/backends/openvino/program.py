"""A prepared OpenVINO program: the model of a task, compiled for the way that was asked for or proved better."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino

from layermark.backends._onnx import quantised
from layermark.backends._onnx.program import Lap, OnnxProgram
from layermark.backends._onnx.writer import Array
from layermark.backends.base import Arrays, OperatorTime
from layermark.backends.openvino import compiled, ways
from layermark.backends.openvino.ways import Inputs, Way
from layermark.errors import Unsupported
from layermark.spec import Spec, types_of
from layermark.timing import batch_trial
from layermark.workloads.base import Task

_WAYS = {"latency": ways.latency, "throughput": ways.throughput}


class OpenVinoProgram(OnnxProgram):
    """A compiled model with its requests."""

    def __init__(self, spec: Spec, task: Task) -> None:
        found = compiled.check_subnormals(spec)
        self._execution = spec.execution
        stored = types_of(spec.precision)[1]
        # The effective type is an option of the runtime; the model itself, its inputs and outputs are fp32.
        super().__init__(spec, task, "32.32" if spec.quantised else f"32.{stored}")
        self._settings |= {
            "execution": self._way.name,
            **self._way.facts,
            "weight_type": {"32": "float32", "16": "float16", "bf16": "bfloat16", "int8": "int8"}[stored],
            **self._types(),
            "output_type": str(self._way.results(0)[0].dtype),
            "subnormals": found,
        }

    def _types(self) -> dict[str, str]:
        if self._spec.quantised:
            return compiled.check_integers(self._way.compiled, f"NNCF {version('nncf')}")
        return compiled.check_types(self._way.compiled, self._spec)

    def _build(self, weights: Arrays) -> Lap:
        model = self._read = self._whole(weights)
        self._way = self._better(model) if self._execution == "auto" else self._made(model, self._execution)
        self._execution = self._way.name
        return self._way.lap

    def _whole(self, weights: Arrays) -> openvino.Model:
        """The runtime's form of the model, quantised where that was asked for."""
        model = self._model(weights)
        if not self._spec.quantised:
            return compiled.read(model, self._graph)
        if importlib.util.find_spec("nncf") is None:
            raise Unsupported("int8 on openvino needs NNCF: pip install 'layermark[openvino]'")
        feeds, versions = list(self._feeds(quantised.calibration(self._spec))), (version("nncf"), version("openvino"))
        made = quantised.made("layermark.backends.openvino.quantiser", str(versions), model, feeds, [".bin", ".xml"])
        return compiled.core().read_model(made)

    def products(self) -> Arrays:
        """The weights of a quantised model, from whole numbers and their steps."""
        return compiled.products(self._read) if self._spec.quantised else {}

    def _full(self) -> Callable[[Arrays], Array]:
        model = compiled.read(self._model(self._weights), self._graph)
        return _answering(compiled.compile_model(model, self._spec, "latency", compiled.threads_of(self._spec)))

    def _narrow(self) -> Callable[[Arrays], Array]:
        return _answering(self._way.compiled)

    def _made(self, model: openvino.Model, execution: str) -> Way:
        return _WAYS[execution](model, self._spec, Inputs(self.host, self._live), self._evictor)

    def _better(self, model: openvino.Model) -> Way:
        """The better of a short alternating trial."""
        latency, batches = self._made(model, "latency"), self._spec.batches_per_step
        try:
            reason = "one batch per call cannot fill several streams" if batches == 1 else ""
            rival = None if reason else self._made(model, "throughput")
        except Unsupported as error:
            rival, reason = None, str(error)
        if rival is None:
            self._settings["execution_trial"] = f"none: {reason}"
            return latency
        found = [latency, rival]
        rates = batch_trial([way.lap.run for way in found], batches, rival.lap.least, seconds=0.05)
        named = [f"{way.name} {rate:.4g}/s" for way, rate in zip(found, rates, strict=True)]
        self._settings["execution_trial"] = ", ".join(named)
        return found[rates.index(max(rates))]

    def profile(self, folder: Path, batches: int) -> list[OperatorTime]:
        """The counters of a model compiled for them, one batch at a time."""
        from layermark.backends.openvino.profile import profiled

        counting = compiled.compile_model(
            self._read, self._spec, "latency", compiled.threads_of(self._spec), count=True
        )
        return profiled(counting, self.host, folder, batches)

    def _results(self, place: int) -> Sequence[Array]:
        return self._way.results(place)

    def close(self) -> None:
        """Let go of the model and its requests."""
        super().close()
        del self._way, self._read


def _answering(model: openvino.CompiledModel) -> Callable[[Arrays], Array]:
    request = model.create_infer_request()
    return lambda fed: np.array(request.infer(dict(fed))[0])
