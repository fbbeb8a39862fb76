"""A prepared TensorFlow program: the ring of inputs, the choice of execution, the clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from layermark import ops
from layermark.backends.base import Arrays, OperatorTime, Program, Timeline, apart, live, one_by_one
from layermark.backends.tensorflow import process
from layermark.backends.tensorflow.execution import Compiled
from layermark.backends.tensorflow.network import Array, Network, aligned
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph
from layermark.spec import Spec
from layermark.timing import batch_trial
from layermark.workloads.base import Task

EXECUTIONS = ("auto", "function", "xla")
IN_ONE_CALL, SEPARATELY = "in one call", "separate calls"


@dataclass(frozen=True)
class Way:
    """One way to run several batches: a compiled network, and whether it loops by itself."""

    compiled: Compiled
    loops: bool

    @property
    def name(self) -> str:
        """What the record of a trial calls it."""
        return f"{self.compiled.name} {IN_ONE_CALL if self.loops else SEPARATELY}"


def prepare(spec: Spec, task: Task) -> TensorflowProgram:
    """Build the program; compiling and the first call happen here, not in the first measured block."""
    if spec.execution not in EXECUTIONS:
        raise UserError(f"--execution {spec.execution}: tensorflow knows {', '.join(EXECUTIONS)}")
    process.require(spec.device)
    if spec.device == "cpu":
        _require_flushing(spec)
    elif spec.cache == "cold":
        raise Unsupported(f"tensorflow has --cache cold on cpu only here, not on {spec.device}")
    return TensorflowProgram(spec, task)


def _require_flushing(spec: Spec) -> None:
    if spec.subnormals != "flush":
        raise Unsupported("tensorflow's threads always flush subnormal numbers; use --subnormals flush")
    if (held := process.flush_subnormals()) != "flush":
        raise Unsupported(f"tensorflow cannot flush subnormal numbers on the caller's thread here: {held}")


class TensorflowProgram(Program):
    """One network in a TensorFlow session. A call returns when its work is done."""

    def __init__(self, spec: Spec, task: Task) -> None:
        self.learning_rate = spec.learning_rate
        self._spec, self._network = spec, Network(spec, task.graph)
        self.host = [self._network.feed(task.batch(index)) for index in range(spec.ring)]
        self._live = live(task, "NHWC", self._network.native)
        self._buffers = [aligned(each.shape, each.dtype) for each in self.host[0]]
        self._evictor = np.zeros(cpu.evicted_bytes() // 4, "float32") if spec.cache == "cold" else None
        self._settings: dict[str, str] = {}
        self._can_loop = spec.data == "synthetic" and spec.cache == "warm"
        self._following, self._place = [*range(1, spec.ring), 0], 0
        self._last: list[Array] = []
        self._loaded: Arrays = task.weights()
        self._way = self._choose()
        self._settings |= self._describe()
        self.load(self._loaded)

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types."""
        return dict(self._settings)

    def run(self, batches: int) -> Timeline:
        """Run the next batches: in one call if that is how the program loops, or one after the other."""
        return self._run(self._way, batches)

    @property
    def seamless(self) -> bool:
        """Whether every batch is a call of its own, with nothing to do before it."""
        return not self._way.loops and self._evictor is None

    def outputs(self) -> Arrays:
        """The outputs of the last batch, or the loss of the last step."""
        if not self._last:
            raise RuntimeError("no batch has run since the weights were loaded")
        return self._network.results(self._last)

    def load(self, weights: Arrays) -> None:
        """Set the parameters; a program that holds them as constants is built again if they changed."""
        way, changed = self._way, not _equal(self._loaded, weights)
        if changed:
            self._loaded = {name: np.array(values) for name, values in weights.items()}
        if not way.compiled.frozen:
            way.compiled.load(self._network.stored(weights))
        elif changed:
            way.compiled.close()
            self._way = replace(way, compiled=self._compile(xla=way.compiled.name == "xla"))
        self._place, self._last = 0, []
        if self._live is not None:
            self._live.rewind()

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        if not self._network.training:
            return dict(self._loaded)
        return self._network.canonical(self._way.compiled.weights())

    def profile(self, folder: Path, batches: int) -> list[OperatorTime]:
        """The operators of some batches, and a trace of them, in a session of its own.

        The executor learns which operations are cheap, and tells the profiler nothing of those: a fresh one does.
        """
        from layermark.backends.tensorflow.profile import profiled

        fresh = replace(self._way, compiled=self._compile(xla=self._way.compiled.name == "xla"))
        try:
            return profiled(lambda: self._run(fresh, batches), folder)
        finally:
            fresh.compiled.close()

    def close(self) -> None:
        """Let go of the session, inputs and outputs."""
        self._way.compiled.close()
        self._last, self._evictor, self.host, self._buffers = [], None, [], []

    def _run(self, way: Way, batches: int) -> Timeline:
        way.compiled.set_rate(self.learning_rate)
        if batches > 1 and way.loops:
            began = self.clock()
            self._last = way.compiled.loop(self._place, batches)
            self._place = (self._place + batches) % len(self.host)
            return Timeline([began], [self.clock()])
        return self._run_separately(way.compiled, batches)

    def _run_separately(self, compiled: Compiled, batches: int) -> Timeline:
        if not self._can_loop:
            return self._run_prepared(compiled, batches)
        calls, self._last = compiled.calls, []
        ring = itertools.islice(itertools.cycle(calls), self._place, None)
        timeline, self._last = one_by_one(ring, batches, self.clock)
        self._place = (self._place + batches) % len(calls)
        return timeline

    def _run_prepared(self, compiled: Compiled, batches: int) -> Timeline:
        """Batches before each of which the host has something to do."""
        clock, call = self.clock, compiled.call
        begun, done = [], []
        for _ in range(batches):
            self._evict()
            begun.append(clock())
            self._last = call(*self._next())
            done.append(clock())
        return Timeline(begun, done)

    def _next(self) -> list[Array]:
        """The next inputs; those that are generated or loaded are copied into the place that the program reads."""
        inputs, self._place = self.host[self._place], self._following[self._place]
        if self._spec.data == "synthetic":
            return inputs
        for buffer, source in zip(self._buffers, self._live or inputs, strict=True):
            np.copyto(buffer, source, casting="unsafe")
        return self._buffers

    def _evict(self) -> None:
        """Overwrite the caches, outside the time that the batch is charged with."""
        if self._evictor is not None:
            self._evictor += 1

    def _choose(self) -> Way:
        names = self._executions()
        ways = [way for name in names for way in self._ways(name)]
        if not ways:
            raise Unsupported(f"tensorflow cannot compile this graph: {self._settings['execution_trial']}")
        chosen = ways[0] if len(ways) == 1 else self._best(ways)
        for way in ways:
            if way.compiled is not chosen.compiled:
                way.compiled.close()
        return chosen

    def _executions(self) -> list[str]:
        low, wanted = self._network.types.low and self._spec.device == "cpu", self._spec.execution
        reason = f"XLA computes {self._network.types.compute.name} in float32 on this device"
        if wanted == "xla" and low:
            raise Unsupported(f"{reason}; use --execution function")
        if wanted != "auto":
            return [wanted]
        if low:
            self._settings["execution_trial"] = f"none: {reason}"
            return ["function"]
        return ["function", "xla"]

    def _ways(self, name: str) -> list[Way]:
        """The ways that one execution offers; none if `auto` may do without it and it does not compile."""
        try:
            compiled = self._compile(xla=name == "xla")
        except Exception as error:  # whatever the compiler raises, the other execution may run
            if self._spec.execution == "auto":
                self._settings["execution_trial"] = f"{name} failed: {type(error).__name__}: {_first_line(error)}"
                return []
            raise
        loops = [self._can_loop and self._spec.batches_per_step > 1]
        if loops == [True] and self._spec.execution == "auto":
            loops = [True, False]
        return [Way(compiled, each) for each in loops]

    def _compile(self, *, xla: bool) -> Compiled:
        return apart(partial(self._compiled_here, xla=xla))

    def _compiled_here(self, *, xla: bool) -> Compiled:
        stored, resident = self._network.stored(self._loaded), self._can_loop and self._spec.device != "cpu"
        compiled = Compiled(self._network, stored, self.host, xla=xla, resident=resident)
        self._quietly(lambda: self._run_separately(compiled, 2))
        return compiled

    def _quietly(self, work: Callable[[], Any]) -> Any:
        """Run without moving the weights (running statistics move; `load` sets them back)."""
        rate, self.learning_rate = self.learning_rate, 0.0
        try:
            return work()
        finally:
            self.learning_rate = rate

    def _best(self, ways: list[Way]) -> Way:
        batches = self._spec.batches_per_step
        rates = self._quietly(lambda: batch_trial([partial(self._run, way) for way in ways], batches))
        named = ", ".join(
            f"{way.name if batches > 1 else way.compiled.name} {rate:.4g}/s"
            for way, rate in zip(ways, rates, strict=True)
        )
        self._settings["execution_trial"] = named
        return max(zip(rates, ways, strict=True), key=lambda pair: pair[0])[1]

    def _describe(self) -> dict[str, str]:
        spec, network, compiled = self._spec, self._network, self._way.compiled
        described = {
            "execution": compiled.name,
            "call": "session on the caller's thread",
            "loop": IN_ONE_CALL if self._way.loops else SEPARATELY,
            "formulation": spec.formulation,
            "layout": "NHWC" if any(len(shape) == 4 for shape in network.graph.shapes.values()) else "canonical",
            "compute_type": network.types.compute.name,
            "weight_type": network.types.weight.name,
            "output_type": str(self._last[0].dtype),
            "weights": "constants" if compiled.frozen else "variables",
            "subnormals": "flush" if spec.device == "cpu" else "as the device does",
            "allocator": spec.allocator,
            "threads": process.facts()["threads"],
            "device": spec.device,
        }
        if self._evictor is not None:
            described["cache"] = cpu.cold_caches()
        return described | _kernels(network.graph, compiled.kernels)


def _kernels(graph: Graph, chosen: Mapping[str, str]) -> dict[str, str]:
    """Which kernels were chosen for recurrent layers and for convolutions."""
    kinds = {"cell": ops.Recurrent, "convolution": ops.Conv2d}
    used = {
        kind: sorted({chosen[node.name] for node in graph if isinstance(node.op, op)}) for kind, op in kinds.items()
    }
    return {kind: ", ".join(words) for kind, words in used.items() if words}


def _equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
