"""A prepared TensorFlow program: the ring of inputs, the choice of execution, the clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layermark import ops
from layermark.backends.base import (
    MOST_BUILT_WITH,
    Arrays,
    MissingEntry,
    Profile,
    Program,
    Timeline,
    Totals,
    build_in_thread,
    fastest,
    live,
    one_by_one,
)
from layermark.backends.tensorflow import process
from layermark.backends.tensorflow.execution import Execution
from layermark.backends.tensorflow.function import FunctionExecution
from layermark.backends.tensorflow.network import Array, Network, aligned
from layermark.backends.tensorflow.session import SessionExecution
from layermark.backends.tensorflow.updating import refuse_unknown
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph
from layermark.spec import Spec
from layermark.timing import batch_trial
from layermark.workloads.base import Task

if TYPE_CHECKING:
    from layermark.backends.tensorflow.replicas import Sharing

EXECUTIONS = ("auto", "function", "xla", "recompute", "session", "session-xla")
DOCUMENTED = {"session": "function", "session-xla": "xla"}
"""What takes over where a private entry is missing: the same compiler behind `tf.function`."""
_SAVED_S = 1e-3
"""More than a session was seen to save in a call: 0.2 to 0.3 ms of CPU time, up to 0.8 ms on a busy machine."""
_WORTH = 0.99
"""`auto` tries a session that could take less than this share of the best documented time."""
_BY_XLA = ("xla", "session-xla")
IN_ONE_CALL, SEPARATELY = "in one call", "separate calls"


@dataclass(frozen=True)
class Candidate:
    """An execution, and whether it runs several batches in one call; `auto` takes the best of some."""

    execution: Execution
    loops: bool

    @property
    def name(self) -> str:
        """What the record of a trial calls it."""
        return f"{self.execution.name} {IN_ONE_CALL if self.loops else SEPARATELY}"


def prepare(spec: Spec, task: Task, sharing: Sharing | None = None) -> TensorflowProgram:
    """Build the program; compiling and the first call happen here, not in the first measured block.

    `sharing` is for one of several replicas.
    """
    if spec.execution not in EXECUTIONS:
        raise UserError(f"--execution {spec.execution}: tensorflow knows {', '.join(EXECUTIONS)}")
    if spec.execution == "recompute" and spec.mode != "train":
        reason = "recompute needs a backward pass: use --mode train, or --execution function"
        raise Unsupported(reason, code="no_backward", instead={"execution": "function"})
    refuse_unknown(spec.update)
    process.require(spec.device)
    if spec.device == "cpu":
        _require_flushing(spec)
    elif spec.cache == "cold":
        raise Unsupported(f"tensorflow has --cache cold on cpu only here, not on {spec.device}")
    return TensorflowProgram(spec, task, sharing)


def _require_flushing(spec: Spec) -> None:
    if spec.subnormals != "flush":
        reason = "tensorflow's threads always flush subnormal numbers; use --subnormals flush"
        raise Unsupported(reason, code="always_flushes", instead={"subnormals": "flush"})
    if (held := process.flush_subnormals()) != "flush":
        raise Unsupported(f"tensorflow cannot flush subnormal numbers on the caller's thread here: {held}")


class TensorflowProgram(Program):
    """One network, behind `tf.function` or in a session. A call returns when its work is done."""

    def __init__(self, spec: Spec, task: Task, sharing: Sharing | None = None) -> None:
        self.learning_rate = spec.learning_rate
        self._spec, self._network = spec, Network(spec, task.graph, sharing)
        self.host = [self._network.feed(task.batch(index)) for index in range(spec.ring)]
        self._live = live(task, "NHWC", self._network.native)
        self._buffers = [aligned(each.shape, each.dtype) for each in self.host[0]]
        self._evictor = np.zeros(cpu.evicted_bytes() // 4, "float32") if spec.cache == "cold" else None
        self._settings: dict[str, str] = {}
        self._failures: list[str] = []
        self._can_loop = spec.data == "synthetic" and spec.cache == "warm"
        self.micro_batches, self._batches, self._place = min(MOST_BUILT_WITH, spec.update.micro_batches), 0, 0
        self._last: list[Array] = []
        self._loaded: Arrays = task.weights()
        self._chosen = self._choose()
        self._settings |= self._describe()
        self.micro_batches = spec.update.micro_batches
        self.load(self._loaded)

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types."""
        return dict(self._settings)

    def run(self, batches: int) -> Timeline:
        """Run the next batches: in one call if that is how the program loops, or one after the other."""
        if self._network.training:
            self.check_whole(batches)
            self._batches += batches
        return self._run(self._chosen, batches)

    @property
    def seamless(self) -> bool:
        """Whether every batch is a call of its own, with nothing to do before it."""
        return not self._chosen.loops and self._evictor is None

    def outputs(self) -> Arrays:
        """The outputs of the last batch, or the loss of the last step."""
        if not self._last:
            raise RuntimeError("no batch has run since the weights were loaded")
        return self._network.results(self._last)

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set the parameters; a program that holds them as constants is built again if they changed."""
        chosen, changed = self._chosen, not _equal(self._loaded, weights)
        if changed:
            self._loaded = {name: np.array(values) for name, values in weights.items()}
        if not chosen.execution.frozen:
            stored = self._network.stored(weights)
            chosen.execution.load(stored, None if state is None else self._network.stored_state(state))
        elif changed:
            chosen.execution.close()
            self._chosen = replace(chosen, execution=self._compile(chosen.execution.name))
        self._place, self._batches, self._last = 0, 0, []
        if self._live is not None:
            self._live.rewind()

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        if not self._network.training:
            return dict(self._loaded)
        return self._network.canonical(self._chosen.execution.weights())

    def state(self) -> Arrays:
        """The optimiser's state as it is now."""
        return self._network.canonical_state(self._chosen.execution.state())

    def totals(self) -> Totals:
        """Batches, losses and right answers since the last `load` or `totals`."""
        if not self._network.training:
            return super().totals()
        (loss, right), scored = self._chosen.execution.sums(), self._network.graph.classified is not None
        batches, self._batches = self._batches, 0
        return Totals(batches, loss, round(right) if scored else None)

    def copy_batch(self) -> None:
        """Copy the first batch into the buffers."""
        for buffer, source in zip(self._buffers, self.host[0], strict=True):
            np.copyto(buffer, source, casting="unsafe")

    def profile(self, folder: Path, batches: int) -> Profile:
        """The operators of some batches, and a trace of them, in an execution of its own.

        The executor learns which operations are cheap, and tells the profiler nothing of those: a fresh one does.
        """
        from layermark.backends.tensorflow.profile import profiled

        fresh = replace(self._chosen, execution=self._compile(self._chosen.execution.name))
        try:
            return profiled(lambda: self._run(fresh, self.whole(batches)), folder)
        finally:
            fresh.execution.close()

    def close(self) -> None:
        """Let go of the execution, inputs and outputs."""
        self._chosen.execution.close()
        self._last, self._evictor, self.host, self._buffers = [], None, [], []

    def _run(self, chosen: Candidate, batches: int) -> Timeline:
        chosen.execution.set_knobs(self.learning_rate, 1 / self.micro_batches)
        if batches > 1 and chosen.loops:
            began = self.clock()
            self._last = chosen.execution.loop(self._place % len(self.host), batches, self.micro_batches)
            self._walked(batches)
            return Timeline([began], [self.clock()])
        return self._run_separately(chosen.execution, batches)

    def _run_separately(self, execution: Execution, batches: int) -> Timeline:
        if not self._can_loop:
            return self._run_prepared(execution, batches)
        calls, self._last = execution.calls(self.micro_batches), []
        ring = itertools.islice(itertools.cycle(calls), self._place, None)
        timeline, self._last = one_by_one(ring, batches, self.clock)
        self._walked(batches)
        return timeline

    def _walked(self, batches: int) -> None:
        self._place = (self._place + batches) % math.lcm(len(self.host), self.micro_batches)

    def _run_prepared(self, execution: Execution, batches: int) -> Timeline:
        """Batches before each of which the host has something to do."""
        clock, steps = self.clock, itertools.cycle(execution.steps(self.micro_batches))
        begun, done = [], []
        for call in itertools.islice(steps, batches):
            self._evict()
            begun.append(clock())
            self._last = call(*self._next())
            done.append(clock())
        return Timeline(begun, done)

    def _next(self) -> list[Array]:
        """The next inputs; those that are generated or loaded are copied into the place that the program reads."""
        inputs = self.host[self._place % len(self.host)]
        self._walked(1)
        if self._spec.data == "synthetic":
            return inputs
        for buffer, source in zip(self._buffers, self._live or inputs, strict=True):
            np.copyto(buffer, source, casting="unsafe")
        return self._buffers

    def _evict(self) -> None:
        """Overwrite the caches, outside the time that the batch is charged with."""
        if self._evictor is not None:
            self._evictor += 1

    def _choose(self) -> Candidate:
        """Return what was asked for; `auto` takes the best of a trial, private entries where they could win."""
        candidates = self._candidates(self._executions())
        if not candidates:
            raise Unsupported(f"tensorflow cannot compile this graph: {self._settings['execution_trial']}")
        if self._spec.execution != "auto":
            return candidates[0]
        rates = self._rates(candidates)
        if private := self._candidates(self._worth_trying(candidates, rates)):
            candidates += private
            rates = self._rates(candidates)
        chosen = candidates[fastest(rates, [each.execution.name in DOCUMENTED for each in candidates])]
        for each in candidates:
            if each.execution is not chosen.execution:
                each.execution.close()
        return chosen

    def _executions(self) -> list[str]:
        low, wanted = self._network.types.low and self._spec.device == "cpu", self._spec.execution
        reason = f"XLA computes {self._network.types.compute.name} in float32 on this device"
        if wanted in _BY_XLA and low:
            reason += "; use --execution function"
            raise Unsupported(reason, code="other_type", instead={"execution": "function"})
        if wanted != "auto":
            return [wanted]
        if low:
            self._failures.append(f"no xla: {reason}")
            return ["function"]
        return ["function", "xla"]

    def _worth_trying(self, candidates: list[Candidate], rates: list[float]) -> list[str]:
        """Return the private executions that could beat the best documented one by what they save in a call."""
        best_s, found = 1 / max(rates), []
        for name, documented in DOCUMENTED.items():
            for each, rate in zip(candidates, rates, strict=True):
                saved_s = _SAVED_S / (self._spec.batches_per_step if each.loops else 1)
                if each.execution.name == documented and 1 / rate - saved_s < _WORTH * best_s:
                    found.append(name)
        return list(dict.fromkeys(found))

    def _candidates(self, names: Sequence[str]) -> list[Candidate]:
        return [each for name in names for each in self._candidates_of(name)]

    def _candidates_of(self, name: str) -> list[Candidate]:
        """One execution, looping and not; none if `auto` may do without it and it does not compile."""
        auto = self._spec.execution == "auto"
        try:
            execution = self._compile(name) if auto else self._compile_or_fall_back(name)
        except Exception as error:  # whatever the compiler raises, another execution may run
            if not auto:
                raise
            self._failures.append(f"{name} failed: {type(error).__name__}: {_first_line(error)}")
            self._settings["execution_trial"] = ", ".join(self._failures)
            return []
        loops = [self._can_loop and self._spec.batches_per_step > 1]
        if loops == [True] and auto:
            loops = [True, False]
        return [Candidate(execution, each) for each in loops]

    def _compile_or_fall_back(self, name: str) -> Execution:
        try:
            return self._compile(name)
        except MissingEntry as reason:
            self._settings["fallback"] = f"{name} -> {DOCUMENTED[name]}: {reason}"
            return self._compile(DOCUMENTED[name])

    def _compile(self, name: str) -> Execution:
        return build_in_thread(partial(self._compile_here, name))

    def _compile_here(self, name: str) -> Execution:
        stored, resident = self._network.stored(self._loaded), self._can_loop and self._spec.device != "cpu"
        made = SessionExecution if name in DOCUMENTED else FunctionExecution
        execution = made(self._network, stored, self.host, xla=name in _BY_XLA, resident=resident)
        self._quietly(lambda: self._run_separately(execution, 2 * self.micro_batches))
        return execution

    def _quietly(self, work: Callable[[], Any]) -> Any:
        """Work without moving the weights; `load` sets back what else moves, such as statistics and state."""
        rate, self.learning_rate = self.learning_rate, 0.0
        try:
            return work()
        finally:
            self.learning_rate = rate

    def _rates(self, candidates: list[Candidate]) -> list[float]:
        """Return the batches per second of each in a short alternating trial, and put them into the record."""
        batches, runs = self._spec.batches_per_step, [partial(self._run_updates, each) for each in candidates]
        updates: list[float] = self._quietly(lambda: batch_trial(runs, math.ceil(batches / self.micro_batches)))
        rates = [each * self.micro_batches for each in updates]
        named = [
            f"{each.name if batches > 1 else each.execution.name} {rate:.4g}/s"
            for each, rate in zip(candidates, rates, strict=True)
        ]
        self._settings["execution_trial"] = ", ".join([*self._failures, *named])
        return rates

    def _run_updates(self, chosen: Candidate, updates: int) -> Timeline:
        return self._run(chosen, updates * self.micro_batches)

    def _describe(self) -> dict[str, str]:
        spec, network, execution = self._spec, self._network, self._chosen.execution
        described = {
            "execution": execution.name,
            "call": execution.path,
            "loop": IN_ONE_CALL if self._chosen.loops else SEPARATELY,
            "formulation": spec.formulation,
            "layout": "NHWC" if any(len(shape) == 4 for shape in network.graph.shapes.values()) else "canonical",
            "compute_type": network.types.compute.name,
            "weight_type": network.types.weight.name,
            "output_type": str(self._last[0].dtype),
            "weights": "constants" if execution.frozen else "variables",
            "subnormals": "flush" if spec.device == "cpu" else "as the device does",
            "allocator": spec.allocator,
            "threads": process.facts()["threads"],
            "device": spec.device,
        }
        if self._evictor is not None:
            described["cache"] = cpu.cold_caches()
        return described | _kernels(network.graph, execution.kernels)


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
