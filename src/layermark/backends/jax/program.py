"""A prepared JAX program: the ring of inputs, the compiled step, the compiled loop over batches, the clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from layermark.backends.base import Arrays, OperatorTime, Program, Timeline, live, one_by_one
from layermark.backends.jax import compiled, process
from layermark.backends.jax.network import Held, Network
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.timing import batch_trial
from layermark.workloads.base import Task

EXECUTIONS = ("auto", "jit")
LOOP = "compiled while loop"
CALLS = "calls"

Inputs = tuple[Any, ...]


def prepare(spec: Spec, task: Task) -> JaxProgram:
    """Build the program; compiling and the first call happen here, not in the first measured block."""
    if spec.execution not in EXECUTIONS:
        raise UserError(f"--execution {spec.execution}: jax knows {', '.join(EXECUTIONS)}")
    if spec.subnormals == "keep" and spec.device == "cpu":
        raise Unsupported("XLA always flushes subnormal numbers on the CPU; use --subnormals flush")
    if jax.default_backend() != {"cuda": "gpu"}.get(spec.device, spec.device):
        raise Unsupported(f"jax has no device {spec.device} here; it runs on {jax.default_backend()}")
    return JaxProgram(spec, task)


class JaxProgram(Program):
    """One network compiled by XLA: a step for one batch, and where it pays a loop over many."""

    def __init__(self, spec: Spec, task: Task) -> None:
        self.learning_rate = spec.learning_rate
        self._spec, self._network = spec, Network(spec, task.graph)
        self._evictor = np.zeros(cpu.evicted_bytes(), "uint8") if spec.cache == "cold" else None
        self.host = [self._network.feed(task.batch(index)) for index in range(spec.ring)]
        self._live = live(task, "NHWC", self._network.feed)
        self._resident = [] if spec.data != "synthetic" else _there([_put(each) for each in self.host])
        self._waits = self._evictor is not None or process.synchronous()
        self._warm = bool(self._resident) and process.synchronous() and spec.cache == "warm"
        self._stacked: Held = ()
        self._rate = (0.0, jnp.zeros((), jnp.float32))
        self._step = self._jit("train" if self._network.training else "infer")
        self._loop: Callable[..., Any] | None = None
        self.load(task.weights())
        self._settings = self._describe()
        self._quietly(2)
        self._settings |= self._choose_loop()
        self.load(task.weights())

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types."""
        return dict(self._settings)

    def run(self, batches: int) -> Timeline:
        """Run the next batches, in one compiled call where there is one for them."""
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

    def load(self, weights: Arrays) -> None:
        """Set the parameters and go back to the ring's first input."""
        self._loaded = {name: np.array(weights[name], "float32") for name in self._network.graph.parameters}
        self._held = _there(self._network.hold(self._loaded))
        # Bound once: a call then has no arguments left to gather.
        bound = self._resident if self._warm and not self._network.training else ()
        self._calls = [partial(self._step, self._held, *inputs) for inputs in bound]
        self._position = 0
        self._last: tuple[Array, ...] = ()
        if self._live is not None:
            self._live.rewind()

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        return self._network.read(self._held) if self._network.training else dict(self._loaded)

    def profile(self, folder: Path, batches: int) -> list[OperatorTime]:
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
        self._position = (self._position + batches) % self._spec.ring
        return timeline

    def _train_warm(self, batches: int) -> Timeline:
        """The same in training, as synchronous: every step gives the parameters of the next."""
        step, rate, held = self._step, self._rate_now(), self._held

        def train(inputs: Inputs) -> Array:
            nonlocal held
            loss: Array
            held, loss = step(held, rate, *inputs)
            return loss

        calls = itertools.cycle([partial(train, each) for each in self._resident])
        timeline, loss = one_by_one(itertools.islice(calls, self._position, None), batches, self.clock)
        self._held, self._last = held, (loss,)
        self._position = (self._position + batches) % self._spec.ring
        return timeline

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
        place, count = np.int32(self._position), np.int32(batches)
        if self._network.training:
            self._held, loss = self._loop(self._held, self._rate_now(), self._stacked, place, count)
            self._last = (loss,)
        else:
            self._last = self._loop(self._held, self._stacked, place, count)
        self._last[-1].block_until_ready()
        self._position = (self._position + batches) % self._spec.ring
        return Timeline([began], [self.clock()])

    def _jit(self, name: str) -> Callable[..., Any]:
        """A function of the network, compiled; training may overwrite the parameters that it is given."""
        function: Callable[..., Any] = jax.jit(
            getattr(self._network, name), donate_argnums=(0,) if self._network.training else ()
        )
        return function

    def _call(self) -> None:
        place = self._position
        inputs = self._resident[place] if self._resident else _put(self._live or self.host[place])
        self._position = place + 1 if place + 1 < self._spec.ring else 0
        if self._network.training:
            self._held, loss = self._step(self._held, self._rate_now(), *inputs)
            self._last = (loss,)
        else:
            self._last = self._step(self._held, *inputs)

    def _rate_now(self) -> Array:
        """The learning rate on the device; moved there only when it changes."""
        if self._rate[0] != self.learning_rate:
            self._rate = (self.learning_rate, _there(jnp.asarray(self.learning_rate, jnp.float32)))
        return self._rate[1]

    def _quietly(self, batches: int) -> None:
        """Run without moving the weights (running statistics move; `load` sets them back)."""
        rate, self.learning_rate = self.learning_rate, 0.0
        try:
            self.run(batches)
        finally:
            self.learning_rate = rate

    def _describe(self) -> dict[str, str]:
        types, cells = self._network.types, self._network.cells
        lowered = self._step.lower(*self._arguments())  # type: ignore[attr-defined]
        text = lowered.compile().as_text() or ""
        other = compiled.other_type(text, types.compute)
        if other:
            raise Unsupported(f"XLA multiplies in {other} on this {self._spec.device}, not in {types.compute.name}")
        return {
            "execution": "jit",
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
            "kernels": compiled.kernels(text),
            "loop": CALLS,
            **({"cell": cells} if cells else {}),
            **({"cache": cpu.cold_caches()} if self._evictor is not None else {}),
        }

    def _arguments(self) -> tuple[Any, ...]:
        inputs = _put(self.host[0])
        return (self._held, self._rate_now(), *inputs) if self._network.training else (self._held, *inputs)

    def _choose_loop(self) -> dict[str, str]:
        """Compile the loop where it is asked for; `auto` keeps it only if it is the faster way."""
        if self._spec.batches_per_step == 1:
            return {}
        if not self._resident or self._evictor is not None:
            return {"loop_trial": "none: something is done on the host before every batch"}
        self._stacked = tuple(jnp.stack(each) for each in zip(*self._resident, strict=True))
        self._loop = loop = self._jit("train_loop" if self._network.training else "infer_loop")
        self._quietly(2)
        if self._spec.execution == "jit":
            return {"loop": LOOP}
        rates = batch_trial([partial(self._run_by, way) for way in (loop, None)], self._spec.batches_per_step)
        self._loop = loop if rates[0] >= rates[1] else None
        self._stacked = self._stacked if self._loop else ()
        shown = ", ".join(f"{name} {rate:.4g} batches/s" for name, rate in zip((LOOP, CALLS), rates, strict=True))
        return {"loop": LOOP if self._loop else CALLS, "loop_trial": shown}

    def _run_by(self, way: Callable[..., Any] | None, batches: int) -> None:
        self._loop = way
        self._quietly(batches)


def _there(arrays: Any) -> Any:
    """The same, once they are there: a call that reads what is still on its way returns at once, as if it were done."""
    return jax.block_until_ready(arrays)  # type: ignore[no-untyped-call]


def _put(inputs: Iterable[Any]) -> tuple[Array, ...]:
    # `device_put` may use the host's memory as it is, even if told not to; this copies.
    return tuple(jnp.array(each, copy=True) for each in inputs)
