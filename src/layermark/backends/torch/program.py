"""A prepared torch program: the ring of inputs, the step, the clock."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layermark.backends.base import (
    MOST_BUILT_WITH,
    Arrays,
    MissingEntry,
    Profile,
    Program,
    Timeline,
    Totals,
    fastest,
    live,
    one_by_one,
)
from layermark.backends.torch import execution, process
from layermark.backends.torch.network import Network
from layermark.backends.torch.recurrent import RecurrentLayer
from layermark.backends.torch.updating import Trainer
from layermark.devices import cpu
from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.timing import trial
from layermark.workloads.base import Task

if TYPE_CHECKING:
    from layermark.backends.torch.replicas import Sharing

Step = Callable[..., Any]


def prepare(spec: Spec, task: Task) -> TorchProgram:
    """Build the program; compiling and the first call happen here, not in the first measured block."""
    execution.check_name(spec.execution)
    if not process.has_device(spec.device):
        raise Unsupported(f"torch has no device {spec.device} here; it runs on cpu")
    if spec.device == "cuda":
        process.set_partials(spec.partials == "half")
    return TorchProgram(spec, task, process.set_subnormals(spec.subnormals))


class TorchProgram(Program):
    """One network under eager torch or Inductor. On the CPU a call returns when its work is done."""

    def __init__(
        self, spec: Spec, task: Task, subnormals: str, share: Callable[[Network], Sharing] | None = None
    ) -> None:
        """`share` makes what a replica needs to share its gradients with others."""
        self.learning_rate = spec.learning_rate
        self._spec, self._network = spec, Network(spec, task.graph)
        self._wait = process.synchronizer(spec.device)
        self._context, self._entered = self._chosen_context(), False
        self._last: Any = None
        self.micro_batches, self._batches = min(MOST_BUILT_WITH, spec.update.micro_batches), 0
        self.sharing = share(self._network) if share else None
        self._trainer = Trainer(spec.update, self._network, self.sharing) if self._network.training else None
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
        self.micro_batches = spec.update.micro_batches
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
        if self._trainer is not None:
            self.check_whole(batches)
            self._trainer.rate.set(self.learning_rate)
            self._batches += batches
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

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set parameters and state; a program with folded weights is compiled again if they changed."""
        changed = self._chosen.folds_weights and not _equal(self._network.weights(), weights)
        self._network.load(weights)
        if changed:
            self._enter(execution.compiled(self._network, self._trainer))
        self._rewind()
        self._batches = 0
        if self._trainer is not None:
            self._trainer.load(state)
            self._trainer.share.set(1 / self.micro_batches)

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        return self._network.weights()

    def state(self) -> Arrays:
        """The optimiser's state as it is now."""
        return self._trainer.state() if self._trainer is not None else {}

    def totals(self) -> Totals:
        """Batches, losses and right answers since the last `load` or `totals`."""
        if self._trainer is None:
            return super().totals()
        batches, self._batches = self._batches, 0
        return self._trainer.totals(batches)

    def copy_batch(self) -> None:
        """Copy the first batch into the buffers."""
        for buffer, source in zip(self._buffers, self.host[0], strict=True):
            buffer.copy_(source)

    def profile(self, folder: Path, batches: int) -> Profile:
        """The operators of some batches, and a trace of them, with the names of the graph's nodes.

        What is entered below the calls of modules is profiled as `eager`: the same kernels. What is compiled is
        compiled once more, so that its kernels can be seen.
        """
        from layermark.backends.torch import profile, profile_compiled

        chosen, module = self._chosen, self._network.module
        try:
            if chosen.name == "compile":
                with profile_compiled.kernels_of(profile.nodes_of_calls(module)) as kernels:
                    torch._dynamo.reset()  # what is compiled already would be found again
                    self._install(execution.compiled(self._network, self._trainer))
                    return profile.profile_compiled(self.run, self._network.graph, kernels, folder, batches)
            if chosen.name == execution.PRIVATE:
                self._install(execution.eager(self._network, self._trainer))
            return profile.profile_calls(self.run, module, folder, batches)
        finally:
            self._install(chosen)

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
        steps = [self._gather] * (self.micro_batches - 1) + [self._step]
        feeds: Sequence[Iterable[Tensor]] = self.inputs if self._live is None else [self._live]
        count = math.lcm(len(steps), len(feeds))
        self._ring = itertools.cycle(
            [_bound(steps[index % len(steps)], feeds[index % len(feeds)]) for index in range(count)]
        )

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

    def _enter(self, chosen: execution.Execution) -> None:
        """Make this the execution of all steps, and take some so that nothing is left to do later."""
        self._install(chosen)
        self._rewind()
        self._quietly(2)

    def _install(self, chosen: execution.Execution) -> None:
        self._chosen = chosen
        self._step, self._gather = self._feeding(chosen.step), self._feeding(chosen.gather or chosen.step)
        chosen.enter()
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
        """Make steps that leave the weights alone; `load` sets back what else moves, such as statistics and state."""
        rate, self.learning_rate = self.learning_rate, 0.0
        try:
            self.run(batches * self.micro_batches)
        finally:
            self.learning_rate = rate

    def _first_call(self, weights: Arrays) -> None:
        """Load and run the network as it is, which shows whether torch has kernels for its types."""
        try:
            self._network.load(weights)
            # What is asked to save memory must not have needed more of it first.
            again = self._spec.execution == "recompute"
            self._enter((execution.recomputing if again else execution.eager)(self._network, self._trainer))
        except RuntimeError as error:
            if self._network.types.low:
                reason = str(error).splitlines()[0]
                raise Unsupported(f"torch cannot run this graph at {self._spec.precision} here: {reason}") from error
            raise
        first = self._last if isinstance(self._last, Tensor) else self._last[0]
        self._settings["output_type"] = _name(first.dtype)

    def _choose(self) -> execution.Execution:
        wanted, reason = self._spec.execution, ""
        if self._network.tuned and self._network.training:
            if wanted not in ("compile", "auto"):
                raise Unsupported(
                    "tuned training is a compiled step; use --execution compile, or --formulation library"
                )
            wanted = "compile"
        elif self._network.tuned:
            reason = "tuned layers are opaque to torch.compile: packed, or compiled by themselves"
            if wanted not in ("eager", execution.PRIVATE, "auto"):
                raise Unsupported(reason)
        elif execution.mostly_fused(self._network.graph):
            reason = "the work is in fused recurrent kernels, which compile cannot improve"
        chosen = self._best(reason) if wanted == "auto" else self._named(wanted)
        self._settings["execution"] = chosen.name
        return chosen

    def _named(self, name: str) -> execution.Execution:
        """Return the execution of this name, or `eager` where its private entry is missing."""
        eager = self._chosen
        makers = {"compile": execution.compiled, execution.PRIVATE: self._direct}
        try:
            return makers[name](self._network, self._trainer) if name in makers else eager
        except MissingEntry as reason:
            self._settings["fallback"] = f"{name} -> {eager.name}: {reason}"
            return eager

    def _direct(self, network: Network, trainer: Trainer | None) -> execution.Execution:
        """Enter the module below its calls once, which shows whether this torch writes modules that way."""
        made = execution.direct(network, trainer)
        try:
            self._enter(made)
        except (AttributeError, TypeError) as error:
            raise MissingEntry(f"torch {torch.__version__}: the code of a GraphModule ({error})") from error
        return made

    def _best(self, not_compiled: str) -> execution.Execution:
        """Return the best of a short alternating trial, without the compiler if there is a reason."""
        candidates, notes = [self._chosen], [f"no compile: {not_compiled}"] if not_compiled else []
        makers = {execution.PRIVATE: self._direct, "compile": execution.compiled}
        for name in (execution.PRIVATE,) if not_compiled else makers:
            try:
                candidates.append(makers[name](self._network, self._trainer))
                self._enter(candidates[-1])
            except Exception as error:  # whatever the compiler raises, eager still runs
                candidates = [each for each in candidates if each.name != name]
                notes.append(f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0]}")
        rates = trial([functools.partial(self._timed, each) for each in candidates])
        notes += [f"{each.name} {rate:.4g}/s" for each, rate in zip(candidates, rates, strict=True)]
        self._settings["execution_trial"] = ", ".join(notes)
        return candidates[fastest(rates, [each.name == execution.PRIVATE for each in candidates])]

    def _timed(self, chosen: execution.Execution, batches: int) -> float:
        """Return the seconds that these batches take in this execution."""
        self._install(chosen)
        start = self.clock()
        self._quietly(batches)
        return (self.clock() - start) / 1e9 / self.micro_batches

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
        forms = {part.form for part in self._network.module.modules() if isinstance(part, RecurrentLayer)}
        if forms:
            settings["cell"] = ",".join(sorted(forms))
        if self._network.casts_once:
            settings["weight_casts"] = "once, on loading"
        if spec.norms == "full":
            settings["norms"] = "float32"
        if self._evictor is not None:
            settings["cache"] = cpu.cold_caches()
        return settings


def _bound(step: Step, inputs: Iterable[Tensor]) -> Callable[[], Any]:
    """A call with these inputs; those that are loaded are another batch in every call."""
    return functools.partial(step, *inputs) if isinstance(inputs, tuple) else lambda: step(*inputs)


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)
