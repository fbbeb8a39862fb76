"""A prepared JAX program: the ring of inputs, the compiled step, the compiled loop over batches, the clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from layermark.backends.base import (
    MOST_BUILT_WITH,
    Arrays,
    Profile,
    Program,
    Timeline,
    Totals,
    live,
    one_by_one,
)
from layermark.backends.jax import hlo, process
from layermark.backends.jax.network import Held, Network
from layermark.backends.jax.updating import refuse_unknown
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.timing import batch_trial
from layermark.workloads.base import Task

EXECUTIONS = ("auto", "jit", "recompute")
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
LOOP = "compiled while loop"
CALLS = "calls"

if TYPE_CHECKING:
    from layermark.backends.jax.replicas import Sharing

Inputs = tuple[Any, ...]


def prepare(spec: Spec, task: Task, sharing: Sharing | None = None) -> JaxProgram:
    """Build the program; compiling and the first call happen here, not in the first measured block.

    `sharing` is for one of several replicas.
    """
    if spec.execution not in EXECUTIONS:
        raise UserError(f"--execution {spec.execution}: jax knows {', '.join(EXECUTIONS)}")
    if spec.execution == "recompute" and spec.mode != "train":
        reason = "recompute needs a backward pass: use --mode train, or --execution jit"
        raise Unsupported(reason, code="no_backward", instead={"execution": "jit"})
    if spec.subnormals == "keep" and spec.device == "cpu":
        reason = "XLA always flushes subnormal numbers on the CPU; use --subnormals flush"
        raise Unsupported(reason, code="always_flushes", instead={"subnormals": "flush"})
    if jax.default_backend() != {"cuda": "gpu"}.get(spec.device, spec.device):
        raise Unsupported(f"jax has no device {spec.device} here; it runs on {jax.default_backend()}")
    refuse_unknown(spec.update)
    process.set_width(spec.precision)
    return JaxProgram(spec, task, sharing)


class JaxProgram(Program):
    """One network compiled by XLA: a step for one batch, and where it pays a loop over many."""

    def __init__(self, spec: Spec, task: Task, sharing: Sharing | None = None) -> None:
        self.learning_rate = spec.learning_rate
        self._spec, self._network = spec, Network(spec, task.graph, shared=sharing is not None)
        self._evictor = np.zeros(cpu.evicted_bytes(), "uint8") if spec.cache == "cold" else None
        self.host = [self._network.feed(task.batch(index)) for index in range(spec.ring)]
        self._live = live(task, "NHWC", self._network.feed)
        self._resident = [] if spec.data != "synthetic" else _there([_put(each) for each in self.host])
        self._waits = self._evictor is not None or process.synchronous()
        self._warm = bool(self._resident) and process.synchronous() and spec.cache == "warm"
        self._stacked: Held = ()
        self.micro_batches, self._batches = min(MOST_BUILT_WITH, spec.update.micro_batches), 0
        self._knobs: tuple[tuple[float, float], Array | None] = ((0.0, 0.0), None)
        self._gather = self._jit("gather") if self._network.training and self._network.gathers else None
        self._step: Callable[..., Any] = self._whole()
        if sharing is not None and self._gather is not None:
            self._step = sharing.step(self._network, self._gather)
        self._loop: Callable[..., Any] | None = None
        self.load(task.weights())
        self._settings = self._describe()
        self._quietly(2 * self.micro_batches)
        self._settings |= self._choose_loop()
        self.micro_batches = spec.update.micro_batches
        self.load(task.weights())

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types."""
        return dict(self._settings)

    def run(self, batches: int) -> Timeline:
        """Run the next batches, in one compiled call where there is one for them."""
        if self._network.training:
            self.check_whole(batches)
            self._batches += batches
        if self._warm and (batches == 1 or self._loop is None):
            return self._train_warm(batches) if self._network.training else self._run_warm(batches)
        if self._loop is not None and batches > 1:
            return self._run_loop(batches)
        return self._run_each(batches) if self._waits else self._run_dispatched(batches)

    @property
    def seamless(self) -> bool:
        """Whether every batch is a call of its own that returns when its work is done."""
        return self._loop is None and self._waits and self._evictor is None

    def outputs(self) -> Arrays:
        """The outputs of the last batch."""
        if not self._last:
            raise RuntimeError("no batch has run since the weights were loaded")
        return self._network.results(self._last)

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set the parameters and go back to the ring's first input."""
        kind = self._network.types.loss
        self._loaded = {name: np.array(weights[name], kind) for name in self._network.graph.parameters}
        self._held = _there(self._network.hold(self._loaded, state))
        # Bound once: a call then has no arguments left to gather.
        bound = self._resident if self._warm and not self._network.training else ()
        self._calls = [partial(self._step, self._held, *inputs) for inputs in bound]
        self._position, self._batches = 0, 0
        self._last: tuple[Array, ...] = ()
        if self._live is not None:
            self._live.rewind()

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        return self._network.read(self._held) if self._network.training else dict(self._loaded)

    def state(self) -> Arrays:
        """The optimiser's state as it is now."""
        return self._network.read_state(self._held) if self._network.training else {}

    def totals(self) -> Totals:
        """Batches, losses and right answers since the last `load` or `totals`."""
        if not self._network.training:
            return super().totals()
        loss, right = np.array(self._held[-1])
        self._held = (*self._held[:-1], _there(self._network.no_sums()))
        batches, self._batches = self._batches, 0
        return Totals(batches, float(loss), round(float(right)) if self._network.graph.classified else None)

    def copy_batch(self) -> None:
        """Copy the first batch to the device."""
        _there(_put(self.host[0]))

    def profile(self, folder: Path, batches: int) -> Profile:
        """The operators of some batches, and a trace of them."""
        from layermark.backends.jax.profile import profiled

        return profiled(lambda: self.run(batches), folder)

    def close(self) -> None:
        """Let go of weights, inputs and outputs."""
        self._last, self._held, self._stacked, self._evictor = (), (), (), None
        self.host, self._resident, self._calls = [], [], []

    def _run_warm(self, batches: int) -> Timeline:
        """Inference on resident inputs with nothing in the way: a small layer takes a few microseconds.

        Calls are synchronous here: asking whether the result is there would cost another microsecond.
        """
        self._last = ()
        ring = itertools.islice(itertools.cycle(self._calls), self._position, None)
        timeline, self._last = one_by_one(ring, batches, self.clock)
        self._walked(batches)
        return timeline

    def _train_warm(self, batches: int) -> Timeline:
        """The same in training, as synchronous: every step gives the parameters of the next."""
        knobs, held = self._knobs_now(), self._held

        def train(step: Callable[..., Any], inputs: Inputs) -> Array:
            nonlocal held
            loss: Array
            held, loss = step(held, knobs, *inputs)
            return loss

        ring = [
            partial(train, self._step_at(place), self._resident[place % self._spec.ring]) for place in self._places()
        ]
        calls = itertools.islice(itertools.cycle(ring), self._position, None)
        timeline, loss = one_by_one(calls, batches, self.clock)
        self._held, self._last = held, (loss,)
        self._walked(batches)
        return timeline

    def _places(self) -> range:
        """Positions until ring and updates both begin again."""
        return range(math.lcm(self._spec.ring, self.micro_batches))

    def _step_at(self, place: int) -> Callable[..., Any]:
        """What is called there: the last micro-batch of an update moves the weights."""
        return self._gather if self._gather and (place + 1) % self.micro_batches else self._step

    def _walked(self, batches: int) -> None:
        self._position = (self._position + batches) % len(self._places())

    def _run_each(self, batches: int) -> Timeline:
        """Calls that return when their work is done, with what the host does before each."""
        clock, handed_over, done = self.clock, [], []
        for _ in range(batches):
            if self._evictor is not None:
                self._evictor += 1
            handed_over.append(clock())
            self._call()
            self._last[-1].block_until_ready()
            done.append(clock())
        return Timeline(handed_over, done)

    def _run_dispatched(self, batches: int) -> Timeline:
        """Calls that return early, and one wait for the last."""
        began = self.clock()
        for _ in range(batches):
            self._call()
        self._last[-1].block_until_ready()
        return Timeline([began], [self.clock()])

    def _run_loop(self, batches: int) -> Timeline:
        assert self._loop is not None
        began = self.clock()
        place, count = np.int32(self._position % self._spec.ring), np.int32(batches // self.micro_batches)
        if self._network.training:
            micro = np.int32(self.micro_batches)
            self._held, loss = self._loop(self._held, self._knobs_now(), self._stacked, place, count, micro)
            self._last = (loss,)
        else:
            self._last = self._loop(self._held, self._stacked, place, count)
        self._last[-1].block_until_ready()
        self._walked(batches)
        return Timeline([began], [self.clock()])

    def _whole(self) -> Callable[..., Any]:
        return self._jit("train" if self._network.training else "infer")

    def _jit(self, name: str) -> Callable[..., Any]:
        """A function of the network, compiled; training may overwrite the parameters that it is given."""
        # XLA's CPU compiler takes the barriers of jax.checkpoint out before it looks for what is computed twice.
        options = KEEP_BARRIERS if self._spec.execution == "recompute" else None
        donated = (0,) if self._network.training else ()
        function: Callable[..., Any] = jax.jit(
            getattr(self._network, name), donate_argnums=donated, compiler_options=options
        )
        return function

    def _call(self) -> None:
        place, step = self._position % self._spec.ring, self._step_at(self._position)
        inputs = self._resident[place] if self._resident else _put(self._live or self.host[place])
        self._walked(1)
        if self._network.training:
            self._held, loss = step(self._held, self._knobs_now(), *inputs)
            self._last = (loss,)
        else:
            self._last = self._step(self._held, *inputs)

    def _knobs_now(self) -> Array:
        """The learning rate and the share of a micro-batch on the device; moved there only when they change."""
        wanted, (held, there) = (self.learning_rate, 1 / self.micro_batches), self._knobs
        if there is None or held != wanted:
            there = _there(jnp.asarray(wanted, self._network.types.loss))
            self._knobs = (wanted, there)
        return there

    def _quietly(self, batches: int) -> None:
        """Make steps that leave the weights alone; `load` sets back what else moves, such as statistics and state."""
        rate, self.learning_rate = self.learning_rate, 0.0
        try:
            self.run(self.whole(batches))
        finally:
            self.learning_rate = rate

    def _describe(self) -> dict[str, str]:
        types, cells = self._network.types, self._network.cells
        # What replicas do in the end is several calls; most of the work is that of any other micro-batch.
        step = self._step if hasattr(self._step, "lower") else self._gather
        lowered = step.lower(*self._arguments())  # type: ignore[union-attr]
        text = lowered.compile().as_text() or ""
        other = hlo.other_type(text, types.compute)
        if other:
            raise Unsupported(f"XLA multiplies in {other} on this {self._spec.device}, not in {types.compute.name}")
        return {
            "execution": "recompute" if self._spec.execution == "recompute" else "jit",
            "formulation": self._spec.formulation,
            "layout": self._network.layout,
            "compute_type": types.compute.name,
            "weight_type": types.weight.name,
            "output_type": jax.tree.leaves(lowered.out_info)[-1].dtype.name,
            "matmul_precision": "highest",
            "subnormals": self._spec.subnormals,
            "allocator": self._spec.allocator,
            "device": jax.devices()[0].device_kind,
            "dispatch": "synchronous" if process.synchronous() else "asynchronous",
            "kernels": hlo.kernels(text),
            "loop": CALLS,
            **({"cell": cells} if cells else {}),
            **({"cache": cpu.cold_caches()} if self._evictor is not None else {}),
        }

    def _arguments(self) -> tuple[Any, ...]:
        inputs = _put(self.host[0])
        return (self._held, self._knobs_now(), *inputs) if self._network.training else (self._held, *inputs)

    def _choose_loop(self) -> dict[str, str]:
        """Compile the loop where it is asked for; `auto` keeps it only if it is the faster way."""
        if self._spec.batches_per_step == 1:
            return {}
        if not self._resident or self._evictor is not None:
            return {"loop_trial": "none: something is done on the host before every batch"}
        self._stacked = tuple(jnp.stack(each) for each in zip(*self._resident, strict=True))
        self._loop = loop = self._jit("train_loop" if self._network.training else "infer_loop")
        self._quietly(2 * self.micro_batches)
        if self._spec.execution != "auto":
            return {"loop": LOOP}
        rates = batch_trial([partial(self._run_by, each) for each in (loop, None)], self._spec.batches_per_step)
        self._loop = loop if rates[0] >= rates[1] else None
        self._stacked = self._stacked if self._loop else ()
        shown = ", ".join(f"{name} {rate:.4g} batches/s" for name, rate in zip((LOOP, CALLS), rates, strict=True))
        return {"loop": LOOP if self._loop else CALLS, "loop_trial": shown}

    def _run_by(self, loop: Callable[..., Any] | None, batches: int) -> None:
        self._loop = loop
        self._quietly(batches)


def _there(arrays: Any) -> Any:
    """The same, once they are there: a call that reads what is still on its way returns at once, as if it were done."""
    return jax.block_until_ready(arrays)  # type: ignore[no-untyped-call]


def _put(inputs: Iterable[Any]) -> tuple[Array, ...]:
    # `device_put` may use the host's memory as it is, even if told not to; this copies.
    return tuple(jnp.array(each, copy=True) for each in inputs)
