"""How a compiled model is run: one batch at a time on all threads, or several in flight on streams of their own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import openvino

from layermark.backends._onnx.runners import FILLS, Runner, SequentialRunner
from layermark.backends._onnx.writer import Array
from layermark.backends.base import Live, MissingEntry, Timeline
from layermark.backends.openvino import compiled as native
from layermark.devices import cpu
from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.timing import Step

BUSY_SHARE = 0.1
"""A thread that used more than this share of the time was busy, as the measuring loop sees it."""
_WATCHED_S = 0.1


class Inputs(NamedTuple):
    """The ring, and what is read instead of it where pictures are loaded."""

    ring: Sequence[Sequence[Array]]
    live: Live | None = None

    def source(self, batch: Sequence[Array]) -> Iterable[Array]:
        """What is copied for every batch at a place of the ring."""
        return self.live or batch


class BoundRequest(NamedTuple):
    """A request with its inputs set, and how they are renewed before a batch, where they are."""

    request: openvino.InferRequest
    copy: Step | None = None


@dataclass(frozen=True)
class Execution:
    """A compiled model, its requests, and what runs them."""

    name: str
    compiled: openvino.CompiledModel
    bound: Sequence[BoundRequest]
    runner: Runner
    call: str

    @property
    def facts(self) -> dict[str, str]:
        """What the runtime made of the options, and the call that a batch is."""
        names = {"streams": "NUM_STREAMS", "runtime_threads": "INFERENCE_NUM_THREADS", "pinning": "ENABLE_CPU_PINNING"}
        return {"call": self.call} | {name: str(self.compiled.get_property(key)) for name, key in names.items()}

    def results(self, place: int) -> list[Array]:
        """Return the outputs of the batch at a place of the ring."""
        request = self.bound[place % len(self.bound)].request
        return [request.get_output_tensor(index).data for index in range(len(self.compiled.outputs))]


class AsyncRunner(Runner):
    """Has up to `most` batches in flight, on requests that take turns, and waits for all at the end of a call."""

    def __init__(self, bound: Sequence[BoundRequest], most: int, evictor: Array | None) -> None:
        self._bound, self._most, self._evictor = bound, most, evictor
        self.rewind()

    def run(self, batches: int) -> Timeline:
        """Batches are handed over as soon as an earlier one is done; the runtime tells how long each was in flight."""
        if self._evictor is not None:
            np.add(self._evictor, 1, out=self._evictor)
        handed_over: list[int] = []
        done: list[int] = []
        flying: deque[tuple[BoundRequest, int]] = deque()
        for index in range(self._done, self._done + batches):
            if len(flying) == self._most:
                done.append(_wait(*flying.popleft()))
            bound = self._bound[index % len(self._bound)]
            handed_over.append(time.perf_counter_ns())
            if bound.copy is not None:
                bound.copy()
            flying.append((bound, time.perf_counter_ns()))
            bound.request.start_async()
        done += [_wait(*each) for each in flying]
        self._done += batches
        return Timeline(handed_over, done)

    def rewind(self) -> None:
        """Begin again at the first input."""
        self._done = 0

    @property
    def last(self) -> int | None:
        """Which request ran last."""
        return (self._done - 1) % len(self._bound) if self._done else None

    @property
    def least(self) -> int:
        """Enough to keep all streams busy for a while."""
        return FILLS * self._most


def _wait(bound: BoundRequest, started_ns: int) -> int:
    """Wait for a request; return when it was done, which may have been before somebody asked."""
    bound.request.wait()
    return started_ns + int(bound.request.latency * 1e6)


def latency(model: openvino.Model, spec: Spec, inputs: Inputs, evictor: Array | None) -> Execution:
    """One batch at a time with `InferRequest.infer`, in the calling thread and the rest of the pool."""
    made = native.compile_model(model, spec, "latency", native.threads_of(spec))
    bound = _resident(made, inputs) if spec.data == "synthetic" else _copied(made, inputs)
    runner = SequentialRunner([_step(each, _infer(each.request)) for each in bound], evictor)
    return Execution("latency", made, bound, runner, "InferRequest.infer")


def latency_binding(documented: Execution, evictor: Array | None) -> Execution:
    """The same requests, entered below `InferRequest.infer`; raise `MissingEntry` where that cannot be done."""
    runner = SequentialRunner([_step(each, _bound_infer(each.request)) for each in documented.bound], evictor)
    return replace(documented, name="latency-binding", runner=runner, call="the C++ binding of infer")


def _infer(request: openvino.InferRequest) -> Step:
    """The documented call; its results are views of the output tensors, as an option of it says, and not copies."""
    return partial(request.infer, share_outputs=True)


def _bound_infer(request: openvino.InferRequest) -> Step:
    """The C++ binding that `InferRequest.infer` calls, without the Python that wraps inputs and results around it.

    That saves 0.6 to 1 microsecond of CPU time in every call: 6 % of the smallest layers. It is no interface: a release
    may call it otherwise or have none, which the first call shows.
    """
    try:
        call = partial(super(openvino.InferRequest, request).infer, {}, share_outputs=True, decode_strings=False)
        call()
    except (AttributeError, TypeError) as error:
        raise MissingEntry(f"openvino {openvino.__version__}: the binding of InferRequest.infer ({error})") from error
    return call


def _step(bound: BoundRequest, call: Step) -> Step:
    return call if bound.copy is None else partial(_copy_and_call, bound.copy, call)


def _copy_and_call(copy: Step, call: Step) -> None:
    copy()
    call()


def _resident(made: openvino.CompiledModel, inputs: Inputs) -> list[BoundRequest]:
    """A request for every batch of the ring, all with one set of outputs.

    A set for every request outgrew the caches, which a plain loop does not, and cost up to a tenth.
    """
    requests = [_request(made, batch)[0] for batch in inputs.ring]
    for index, port in enumerate(made.outputs):
        tensor = openvino.Tensor(port.get_element_type(), port.get_shape())
        for request in requests:
            request.set_output_tensor(index, tensor)
    return [BoundRequest(each) for each in requests]


def _copied(made: openvino.CompiledModel, inputs: Inputs) -> list[BoundRequest]:
    """One request that every batch is copied to."""
    request, tensors = _request(made, inputs.ring[0])
    return [BoundRequest(request, partial(_copy, tensors, inputs.source(batch))) for batch in inputs.ring]


def throughput(model: openvino.Model, spec: Spec, inputs: Inputs, evictor: Array | None) -> Execution:
    """Several batches at a time. Where handing them over keeps a thread busy, the streams have one thread less."""
    budget = native.threads_of(spec)
    made = _streams(model, spec, inputs, evictor, budget)
    if busy_threads(lambda: made.runner.run(8 * len(made.bound))) > budget:
        if budget == 1:
            raise Unsupported("openvino needs a thread besides its streams to hand over such small batches")
        made = _streams(model, spec, inputs, evictor, budget - 1)
    made.runner.rewind()
    return made


def _streams(model: openvino.Model, spec: Spec, inputs: Inputs, evictor: Array | None, threads: int) -> Execution:
    made = native.compile_model(model, spec, "throughput", threads)
    wanted = int(made.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    # As many requests as fill the streams, and a multiple of the ring so that each has its own input.
    batches = list(inputs.ring) * -(-wanted // len(inputs.ring))
    pairs = [_request(made, batch) for batch in batches]
    bound = [BoundRequest(request) for request, _ in pairs]
    if spec.data != "synthetic":
        bound = [
            BoundRequest(request, partial(_copy, tensors, inputs.source(batch)))
            for (request, tensors), batch in zip(pairs, batches, strict=True)
        ]
    runner = AsyncRunner(bound, wanted, evictor)
    return Execution("throughput", made, bound, runner, "InferRequest.start_async")


def _request(
    made: openvino.CompiledModel, batch: Sequence[Array]
) -> tuple[openvino.InferRequest, list[openvino.Tensor]]:
    """A request that reads its inputs, without a copy, from memory that the runtime has aligned for its kernels."""
    request, tensors = made.create_infer_request(), []
    for index, source in enumerate(batch):
        tensor = openvino.Tensor(made.inputs[index].get_element_type(), made.inputs[index].get_shape())
        tensor.data[...] = source
        request.set_input_tensor(index, tensor)
        tensors.append(tensor)
    return request, tensors


def _copy(tensors: Sequence[Any], batch: Iterable[Array]) -> None:
    for tensor, source in zip(tensors, batch, strict=True):
        np.copyto(tensor.data, source)


def busy_threads(step: Step, seconds: float = _WATCHED_S) -> int:
    """How many threads of this process have work while a step is repeated."""
    step()
    before, began = cpu.thread_times_ns(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
    least = BUSY_SHARE * (time.perf_counter() - began) * 1e9
    return sum(now - before.get(name, 0) > least for name, now in cpu.thread_times_ns().items())
