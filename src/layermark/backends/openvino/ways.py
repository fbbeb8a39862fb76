"""Ways to run a compiled model: one batch at a time on all threads, or several in flight on streams of their own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import openvino

from layermark.backends._onnx.program import FILLS, Lap, OneByOne
from layermark.backends._onnx.writer import Array
from layermark.backends.base import Live, Timeline
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


@dataclass(frozen=True)
class Way:
    """A compiled model, its requests, and the lap that runs them."""

    name: str
    compiled: openvino.CompiledModel
    requests: Sequence[openvino.InferRequest]
    lap: Lap

    @property
    def facts(self) -> dict[str, str]:
        """What the runtime made of the options."""
        names = {"streams": "NUM_STREAMS", "runtime_threads": "INFERENCE_NUM_THREADS", "pinning": "ENABLE_CPU_PINNING"}
        return {name: str(self.compiled.get_property(key)) for name, key in names.items()}

    def results(self, place: int) -> list[Array]:
        """The outputs of the batch at a place of the ring."""
        request = self.requests[place % len(self.requests)]
        return [request.get_output_tensor(index).data for index in range(len(self.compiled.outputs))]


class Slot(NamedTuple):
    """A request, and how its inputs get there."""

    request: openvino.InferRequest
    copy: Step | None = None


class Flight(Lap):
    """Has up to `most` batches in flight, on requests that take turns, and waits for all at the end of a call."""

    def __init__(self, slots: Sequence[Slot], most: int, evictor: Array | None) -> None:
        self._slots, self._most, self._evictor = slots, most, evictor
        self.rewind()

    def run(self, batches: int) -> Timeline:
        """Batches are handed over as soon as an earlier one is done; the runtime tells how long each was in flight."""
        if self._evictor is not None:
            np.add(self._evictor, 1, out=self._evictor)
        handed_over: list[int] = []
        done: list[int] = []
        flying: deque[tuple[Slot, int]] = deque()
        for index in range(self._done, self._done + batches):
            if len(flying) == self._most:
                done.append(_landed(*flying.popleft()))
            slot = self._slots[index % len(self._slots)]
            handed_over.append(time.perf_counter_ns())
            if slot.copy is not None:
                slot.copy()
            flying.append((slot, time.perf_counter_ns()))
            slot.request.start_async()
        done += [_landed(*each) for each in flying]
        self._done += batches
        return Timeline(handed_over, done)

    def rewind(self) -> None:
        """Begin again at the first input."""
        self._done = 0

    @property
    def last(self) -> int | None:
        """Which request ran last."""
        return (self._done - 1) % len(self._slots) if self._done else None

    @property
    def least(self) -> int:
        """Enough to keep all streams busy for a while."""
        return FILLS * self._most


def _landed(slot: Slot, started_ns: int) -> int:
    """Wait for a request; answers when it was done, which may have been before somebody asked."""
    slot.request.wait()
    return started_ns + int(slot.request.latency * 1e6)


def latency(model: openvino.Model, spec: Spec, inputs: Inputs, evictor: Array | None) -> Way:
    """One batch at a time, in the calling thread and the rest of the pool."""
    made = native.compile_model(model, spec, "latency", native.threads_of(spec))
    if spec.data != "synthetic":
        request, tensors = _request(made, inputs.ring[0])
        call = _entry(request)
        steps: list[Step] = [partial(_copy_and_call, tensors, inputs.source(batch), call) for batch in inputs.ring]
        return Way("latency", made, [request], OneByOne(steps, evictor))
    requests = [_request(made, batch)[0] for batch in inputs.ring]
    _share_outputs(made, requests)
    return Way("latency", made, requests, OneByOne([_entry(each) for each in requests], evictor))


def _entry(request: openvino.InferRequest) -> Step:
    """The C++ entry of a request. The Python one above it wraps every result once more: 3 % of a small layer."""
    return partial(super(openvino.InferRequest, request).infer, {}, share_outputs=True, decode_strings=False)


def _share_outputs(made: openvino.CompiledModel, requests: Sequence[openvino.InferRequest]) -> None:
    """One set of output buffers, as a plain loop has: a set per request outgrew the caches and cost up to a tenth."""
    for index, port in enumerate(made.outputs):
        tensor = openvino.Tensor(port.get_element_type(), port.get_shape())
        for request in requests:
            request.set_output_tensor(index, tensor)


def throughput(model: openvino.Model, spec: Spec, inputs: Inputs, evictor: Array | None) -> Way:
    """Several batches at a time. Where handing them over keeps a thread busy, the streams have one thread less."""
    budget = native.threads_of(spec)
    way = _streams(model, spec, inputs, evictor, budget)
    if busy_threads(lambda: way.lap.run(8 * len(way.requests))) > budget:
        if budget == 1:
            raise Unsupported("openvino needs a thread besides its streams to hand over such small batches")
        way = _streams(model, spec, inputs, evictor, budget - 1)
    way.lap.rewind()
    return way


def _streams(model: openvino.Model, spec: Spec, inputs: Inputs, evictor: Array | None, threads: int) -> Way:
    made = native.compile_model(model, spec, "throughput", threads)
    wanted = int(made.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    # As many requests as fill the streams, and a multiple of the ring so that each has its own input.
    batches = list(inputs.ring) * -(-wanted // len(inputs.ring))
    pairs = [_request(made, batch) for batch in batches]
    slots = [Slot(request) for request, _ in pairs]
    if spec.data != "synthetic":
        slots = [
            Slot(request, partial(_copy, tensors, inputs.source(batch)))
            for (request, tensors), batch in zip(pairs, batches, strict=True)
        ]
    return Way("throughput", made, [each.request for each in slots], Flight(slots, wanted, evictor))


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


def _copy_and_call(tensors: Sequence[Any], batch: Iterable[Array], call: Callable[[], object]) -> None:
    _copy(tensors, batch)
    call()


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
