"""A prepared torch program: the ring of inputs, the step, the clock."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layermark.backends.base import Arrays, OperatorTime, Program, Timeline, live, one_by_one
from layermark.backends.torch import execution, process
from layermark.backends.torch.cells import Cell
from layermark.backends.torch.network import Network
from layermark.devices import cpu
from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.timing import trial
from layermark.workloads.base import Task

Step = Callable[..., Any]


def prepare(spec: Spec, task: Task) -> TorchProgram:
    """Build the program; compiling and the first call happen here, not in the first measured block."""
    execution.check(spec.execution)
    if not process.has(spec.device):
        raise Unsupported(f"torch has no device {spec.device} here; it runs on cpu")
    return TorchProgram(spec, task, process.set_subnormals(spec.subnormals))


class TorchProgram(Program):
    """One network under eager torch or Inductor. On the CPU a call returns when its work is done."""

    def __init__(self, spec: Spec, task: Task, subnormals: str) -> None:
        self.learning_rate = spec.learning_rate
        self._spec, self._network = spec, Network(spec, task.graph)
        self._wait = process.waiter(spec.device)
        self._context, self._entered = self._chosen_context(), False
        self._last: Any = None
        self._rate = execution.Rate(spec.device)
        self._ring: Iterator[Callable[[], Any]] = iter(())
        self._evictor = torch.zeros(cpu.evicted_bytes() // 4) if spec.cache == "cold" else None
        self.host = [self._network.feed(task.batch(index)) for index in range(spec.ring)]
        self._live = live(task, "NHWC" if self._network.channels_last else "NCHW", self._network.feed)
        self._buffers = [torch.empty_like(each, device=spec.device) for each in self.host[0]]
        self._resident = self._make_resident()
        self._settings = self._describe(subnormals)
        initial = task.weights()
        self._first_call(initial)
        self._enter(self._choose())
        self.load(initial)

    @property
    def module(self) -> torch.nn.Module:
        """The network itself, for whoever wants to call it by hand."""
        return self._network.module

    @property
    def inputs(self) -> list[tuple[Tensor, ...]]:
        """The ring of inputs that `module` takes."""
        return self._resident or self.host

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types."""
        return dict(self._settings)

    def run(self, batches: int) -> Timeline:
        """Run the next batches."""
        if not self._entered:
            with self.running():
                return self.run(batches)
        self._rate.set(self.learning_rate)
        if self._evictor is not None:
            return self._run_cold(batches, self._evictor)
        self._last = None
        timeline, self._last = one_by_one(self._ring, batches, self.clock)
        if self._wait is not None:
            self._wait()
            return Timeline(timeline.handed_over[:1], [self.clock()])
        return timeline

    @property
    def seamless(self) -> bool:
        """Whether nothing has to be done around a call."""
        return self._evictor is None and self._wait is None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inference mode and autocast: entering them costs microseconds, so a loop enters them once."""
        with self._context():
            before, self._entered = self._entered, True
            try:
                yield
            finally:
                self._entered = before

    def outputs(self) -> Arrays:
        """The outputs of the last batch, or the loss of the last step."""
        if self._last is None:
            raise RuntimeError("no batch has run since the weights were loaded")
        return self._network.results(self._last)

    def load(self, weights: Arrays) -> None:
        """Set the parameters; a program with folded weights is compiled again if they changed."""
        changed = self._way.folds_weights and not _equal(self._network.weights(), weights)
        self._network.load(weights)
        if changed:
            self._enter(execution.compiled(self._network, self._rate))
        self._rewind()

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        return self._network.weights()

    def profile(self, folder: Path, batches: int) -> list[OperatorTime]:
        """The operators of some batches, and a trace of them."""
        from layermark.backends.torch.profile import profiled

        return profiled(lambda: self.run(batches), folder)

    def close(self) -> None:
        """Let go of weights, inputs and outputs."""
        self._last, self._evictor, self.host, self._resident, self._buffers = None, None, [], [], []
        self._ring = iter(())

    def _run_cold(self, batches: int, evictor: Tensor) -> Timeline:
        """Overwrite the caches before every batch, outside the time that the batch is charged with."""
        handed_over, done = [], []
        for call in itertools.islice(self._ring, batches):
            evictor.add_(1)
            handed_over.append(self.clock())
            self._last = call()
            done.append(self.clock())
        return Timeline(handed_over, done)

    def _rewind(self) -> None:
        if self._live is not None:
            self._live.rewind()
        self._bind()
        self._last = None

    def _bind(self) -> None:
        """The calls of the ring, from its first input on."""
        step, loaded = self._step, self._live
        calls = [functools.partial(step, *each) for each in self.inputs]
        self._ring = itertools.cycle(calls if loaded is None else [lambda: step(*loaded)])

    def _make_resident(self) -> list[tuple[Tensor, ...]]:
        if self._spec.data != "synthetic":
            return []
        return [tuple(each.to(self._spec.device) for each in inputs) for inputs in self.host]

    def _chosen_context(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """What every call runs in."""
        if self._network.training:
            return contextlib.nullcontext
        return self._casting_context if self._network.casts_once else torch.inference_mode

    @contextlib.contextmanager
    def _casting_context(self) -> Iterator[None]:
        with torch.inference_mode(), self._network.types.autocast(self._spec.device):
            yield

    def _enter(self, way: execution.Way) -> None:
        """Make this the way that steps go, and take some so that nothing is left to do later."""
        self._install(way)
        self._rewind()
        self._quietly(2)

    def _install(self, way: execution.Way) -> None:
        self._way = way
        self._step = self._feeding(way.step)
        way.enter()
        self._bind()

    def _feeding(self, step: Step) -> Step:
        if self._resident:
            return step
        buffers = self._buffers

        def copy_and_step(*host: Tensor) -> Any:
            for buffer, source in zip(buffers, host, strict=True):
                buffer.copy_(source)
            return step(*buffers)

        return copy_and_step

    def _quietly(self, batches: int) -> None:
        """Run without moving the weights (running statistics move; `load` sets them back)."""
        rate, self.learning_rate = self.learning_rate, 0.0
        try:
            self.run(batches)
        finally:
            self.learning_rate = rate

    def _first_call(self, weights: Arrays) -> None:
        """Load and run the network as it is, which shows whether torch has kernels for its types."""
        try:
            self._network.load(weights)
            self._enter(execution.eager(self._network, self._rate))
        except RuntimeError as error:
            if self._network.types.low:
                reason = str(error).splitlines()[0]
                raise Unsupported(f"torch cannot run this graph at {self._spec.precision} here: {reason}") from error
            raise
        first = self._last if isinstance(self._last, Tensor) else self._last[0]
        self._settings["output_type"] = _name(first.dtype)

    def _choose(self) -> execution.Way:
        eager, wanted = self._way, self._spec.execution
        if self._network.tuned and self._network.training:
            if wanted not in ("compile", "auto"):
                raise Unsupported(
                    "tuned training is a compiled step; use --execution compile, or --formulation library"
                )
            wanted = "compile"
        elif self._network.tuned:
            return self._only_eager(
                eager, "tuned layers are opaque to torch.compile: packed, or compiled by themselves"
            )
        if wanted == "auto" and execution.mostly_fused(self._network.graph):
            return self._only_eager(eager, "the work is in fused recurrent kernels, which compile cannot improve")
        makers = {"compile": execution.compiled, "recompute": execution.recomputing, "eager": lambda *_: eager}
        way = makers[wanted](self._network, self._rate) if wanted in makers else self._try_both(eager)
        self._settings["execution"] = way.name
        return way

    def _only_eager(self, eager: execution.Way, reason: str) -> execution.Way:
        if self._spec.execution not in ("eager", "auto"):
            raise Unsupported(reason)
        self._settings |= {"execution": "eager", "execution_trial": f"none: {reason}"}
        return eager

    def _try_both(self, eager: execution.Way) -> execution.Way:
        try:
            ways = [eager, execution.compiled(self._network, self._rate)]
            self._enter(ways[1])
        except Exception as error:  # whatever the compiler raises, eager still runs
            self._settings["execution_trial"] = f"compile failed: {type(error).__name__}: {str(error).splitlines()[0]}"
            return eager
        rates = trial([functools.partial(self._timed, way) for way in ways])
        self._settings["execution_trial"] = ", ".join(
            f"{way.name} {rate:.4g}/s" for way, rate in zip(ways, rates, strict=True)
        )
        return ways[rates.index(max(rates))]

    def _timed(self, way: execution.Way, batches: int) -> float:
        """Seconds that these batches take this way."""
        self._install(way)
        start = self.clock()
        self._quietly(batches)
        return (self.clock() - start) / 1e9

    def _describe(self, subnormals: str) -> dict[str, str]:
        types, spec = self._network.types, self._spec
        settings = {
            "formulation": spec.formulation,
            "layout": "channels_last" if self._network.channels_last else "contiguous",
            "compute_type": _name(types.compute),
            "weight_type": _name(types.weight),
            "subnormals": subnormals,
            "allocator": spec.allocator,
            "isa": process.isa(),
        }
        forms = {part.form for part in self._network.module.modules() if isinstance(part, Cell)}
        if forms:
            settings["cell"] = ",".join(sorted(forms))
        if self._network.casts_once:
            settings["weight_casts"] = "once, on loading"
        if self._evictor is not None:
            settings["cache"] = cpu.cold_caches()
        return settings


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)
