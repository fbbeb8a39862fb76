"""A prepared ONNX Runtime program: a session with its inputs and outputs bound to buffers of the runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto
from onnxruntime import InferenceSession, IOBinding, NodeArg, OrtValue, __version__

from layermark.backends._onnx import quantised
from layermark.backends._onnx.program import OnnxProgram, type_name
from layermark.backends._onnx.runners import Runner, SequentialRunner
from layermark.backends._onnx.writer import Array, compute_type
from layermark.backends.base import Arrays, Profile
from layermark.backends.onnxruntime import process
from layermark.backends.onnxruntime.threaded import BoundCall, ThreadedRunner
from layermark.backends.onnxruntime.types import dequantised, integer_products, require
from layermark.spec import Spec, types_of
from layermark.timing import Step
from layermark.workloads.base import Task

_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
_NUMPY |= {"tensor(int32)": np.int32}


class OnnxRuntimeProgram(OnnxProgram):
    """One session; a run returns when its work is done."""

    def __init__(self, spec: Spec, task: Task) -> None:
        provider, self._subnormals = process.provider_of(spec), process.set_subnormals(spec)
        super().__init__(spec, task, spec.precision)
        compute, stored = (type_name(compute_type(word)) for word in types_of(spec.precision))
        self._settings = {"compute_type": compute, "weight_type": stored} | self._settings
        self._settings |= {
            "execution": "sequential" if spec.execution == "auto" else spec.execution,
            "provider": provider,
            "output_type": str(self._outputs[0][0].numpy().dtype),
            "subnormals": self._subnormals,
        }

    def _build(self, weights: Arrays) -> Runner:
        model = self._model(weights)
        if self._spec.quantised:
            model = self._quantised = self._narrowed(model)
        session = self._session = self._opened(model)
        callers = self._threads if self._spec.execution == "throughput" else 1
        self._outputs = [[self._empty(each) for each in session.get_outputs()] for _ in range(callers)]
        if self._spec.execution != "throughput":
            return SequentialRunner(self._steps(session), self._evictor)
        return ThreadedRunner([self._bound_calls(session, number) for number in range(callers)], self._evictor)

    @property
    def _threads(self) -> int:
        return process.threads_of(self._spec)

    def _opened(self, model: ModelProto) -> InferenceSession:
        options = process.options(self._spec)
        if self._spec.quantised:
            self._settings |= quantised.describe(*integer_products(model, options), f"onnxruntime {__version__}")
        elif self._spec.precision != "32.32":
            require(model, options, type_name(compute_type(self._spec.precision)))
        return process.session(model, options)

    def _narrowed(self, model: ModelProto) -> ModelProto:
        feeds = list(self._feeds(quantised.calibration(self._spec)))
        path = quantised.quantise("layermark.backends.onnxruntime.quantiser", __version__, model, feeds, [".onnx"])
        return onnx.load_model(path)

    def products(self) -> Arrays:
        """The weights of a quantised model, from whole numbers and their steps."""
        return dequantised(self._quantised) if self._spec.quantised else {}

    def _full(self) -> Callable[[Arrays], Array]:
        return _first_output(process.session(self._model(self._weights), process.options(self._spec)))

    def _narrow(self) -> Callable[[Arrays], Array]:
        return _first_output(self._session)

    def _steps(self, session: InferenceSession, caller: int = 0) -> list[Step]:
        """One call per input of the ring: resident inputs, or one set of buffers that every batch is copied into.

        Every caller has buffers of its own for what it writes.
        """
        if self._spec.data == "synthetic":
            return [self._call(session, self._filled(session, batch), caller) for batch in self.host]
        buffers = self._filled(session, self.host[0])
        call = self._call(session, buffers, caller)
        fed: Sequence[Iterable[Array]] = [self._live] if self._live else self.host
        return [partial(_copy_and_call, call, buffers, batch) for batch in fed]

    def _bound_calls(self, session: InferenceSession, caller: int) -> list[BoundCall]:
        """The same for callers that work side by side."""
        if self._live is None:
            return [BoundCall(step) for step in self._steps(session, caller)]
        buffers = self._filled(session, self.host[0])
        return [BoundCall(self._call(session, buffers, caller), partial(_copy, buffers, self._live))]

    def _call(self, session: InferenceSession, inputs: Sequence[OrtValue], caller: int) -> Step:
        """A call on these inputs that returns when its outputs are there."""
        binding = session.io_binding()
        for each, value in zip(session.get_inputs(), inputs, strict=True):
            binding.bind_ortvalue_input(each.name, value)
        for each, value in zip(session.get_outputs(), self._outputs[caller], strict=True):
            binding.bind_ortvalue_output(each.name, value)
        run = partial(session.run_with_iobinding, binding)
        return run if self._spec.device == "cpu" else partial(_run_and_wait, run, binding)

    def _empty(self, node: NodeArg) -> OrtValue:
        """Memory of the device for an input or output, which the runtime has aligned for its kernels."""
        return OrtValue.ortvalue_from_shape_and_type(node.shape, _NUMPY[node.type], self._spec.device)

    def _filled(self, session: InferenceSession, batch: Sequence[Array]) -> list[OrtValue]:
        values = [self._empty(each) for each in session.get_inputs()]
        _copy(values, batch)
        return values

    def profile(self, folder: Path, batches: int) -> Profile:
        """The operators of some batches in a session that profiles, and the runtime's own trace."""
        from layermark.backends.onnxruntime.profile import profiled

        model = self._quantised if self._spec.quantised else self._model(self._weights)
        return profiled(model, process.options(self._spec), self._steps, folder, batches)

    def close(self) -> None:
        """Let go of the session too."""
        super().close()
        del self._session

    def _results(self, place: int) -> Sequence[Array]:
        return [each.numpy() for each in self._outputs[place % len(self._outputs)]]


def _first_output(session: InferenceSession) -> Callable[[Arrays], Array]:
    def first_output(fed: Arrays) -> Array:
        made: Array = session.run(None, dict(fed))[0]
        return made

    return first_output


def _run_and_wait(run: Step, binding: IOBinding) -> None:
    run()
    binding.synchronize_outputs()


def _copy_and_call(call: Step, buffers: Sequence[OrtValue], batch: Iterable[Array]) -> None:
    _copy(buffers, batch)
    call()


def _copy(buffers: Sequence[OrtValue], batch: Iterable[Array]) -> None:
    for buffer, source in zip(buffers, batch, strict=True):
        buffer.update_inplace(source)
