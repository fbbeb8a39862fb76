"""What every execution of a network shares: the graph of one batch, of an update, and of a loop over the ring."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from layermark.backends.base import Arrays
from layermark.backends.tensorflow import most_constants
from layermark.backends.tensorflow.lowering import lower
from layermark.backends.tensorflow.network import Array, Network
from layermark.backends.tensorflow.recompute import lower_again
from layermark.backends.tensorflow.ring import Ring
from layermark.backends.tensorflow.updating import Trainer
from layermark.devices.cpu import memory_share
from layermark.graph import Graph

Tensor = Any
Call = Callable[..., list[Array]]
Step = Callable[..., list[Tensor]]
Inputs = Sequence[Sequence[Array]]

NEVER = np.array(np.inf, "float32")
"""No output is larger, but a compiler that is fed this cannot know; see `_walk`."""


class Execution(ABC):
    """A network that is ready to be called: one batch a call (`steps`, `calls`), or many in one call (`loop`).

    A subclass runs graphs: it makes variables and entries where they belong (`_make_variables`, `_make_entries`), then
    loads. In training an update may have several micro-batches: the last ends it, the gradients of the others wait.
    """

    path: ClassVar[str]
    """The interface of TensorFlow that a call goes through, for the record."""

    def __init__(self, network: Network, stored: Arrays, inputs: Inputs, *, xla: bool) -> None:
        self._network, self._stored, self._xla = network, stored, xla
        self._style = network.style(xla=xla)
        held = sum(each.nbytes for each in stored.values())
        self.frozen = not network.training and held <= most_constants(network.graph, memory_share())
        self._ring = Ring(inputs, gathered=xla)
        self._variables: Mapping[str, tf.Variable] = {}
        self._trainer: Trainer | None = None
        self._knobs: Mapping[str, float] = {}
        self._entries: list[Call] = []
        self._bound: list[list[Call]] = []
        self._rounds: dict[int, list[Call]] = {}
        self._loop: Call | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The word of `--execution` that asks for it."""

    @abstractmethod
    def operations(self) -> list[str]:
        """Return the names of the operations in all graphs that were written so far."""

    @abstractmethod
    def _enter(self, function: Step, like: Sequence[Any]) -> Call:
        """Return an entry that takes values like these and returns the outputs when the work is done."""

    @abstractmethod
    def _placed(self, arrays: Sequence[Array]) -> Sequence[Any]:
        """Return arrays as an entry takes them again and again."""

    @abstractmethod
    def _assign(self, values: Mapping[str, Any]) -> None:
        """Set variables, by their names in `_named`."""

    @abstractmethod
    def _read(self, variables: Mapping[str, tf.Variable]) -> Arrays:
        """Return what variables hold."""

    def close(self) -> None:
        """Let go of what the runtime holds."""

    def steps(self, micro_batches: int) -> list[Call]:
        """Return the calls of one update, each of which takes the inputs of a batch and returns its outputs."""
        return [self._entries[-1]] * (micro_batches - 1) + [self._entries[0]]

    def calls(self, micro_batches: int) -> Sequence[Call]:
        """Return the same with the batches of the ring bound, until ring and update begin again together."""
        if micro_batches not in self._rounds:
            phases = [self._bound[-1]] * (micro_batches - 1) + [self._bound[0]]
            turns = range(math.lcm(self._ring.length, micro_batches))
            self._rounds[micro_batches] = [phases[each % micro_batches][each % self._ring.length] for each in turns]
        return self._rounds[micro_batches]

    def loop(self, start: int, batches: int, micro_batches: int) -> list[Array]:
        """Run the next batches of the ring in one call; return the outputs of the last."""
        counts = [np.array(each, "int32") for each in (start, batches // micro_batches, micro_batches)]
        if self._loop is None:
            fixed = [*self._ring.arrays, NEVER]
            self._loop = partial(self._enter(self._walk, [*fixed, *counts]), *self._placed(fixed))
        return self._loop(*counts)

    def load(self, stored: Arrays, state: Arrays | None = None) -> None:
        """Set the variables; constants cannot be set. Without a state the optimiser begins again."""
        self._assign({name: stored[name] for name in self._variables})
        if self._trainer is not None:
            self._assign({**self._trainer.blank(), **(state or {})})

    def set_knobs(self, rate: float, share: float) -> None:
        """Set the learning rate, and what share a micro-batch has in an update.

        They are variables, since to feed a number every time costs small layers 1 %.
        """
        knobs = {"rate": rate, "share": share}
        if self._trainer is not None and knobs != self._knobs:
            self._assign(knobs)
            self._knobs = knobs

    def weights(self) -> Arrays:
        """Return the parameters as they are now, as they are stored."""
        return self._stored if self.frozen else self._read(self._variables)

    def state(self) -> Arrays:
        """Return the optimiser's state as it is now, as it is stored."""
        return self._read(self._trainer.state) if self._trainer is not None else {}

    def sums(self) -> tuple[float, float]:
        """Return the sums of losses and of right answers since the last call or `load`."""
        if self._trainer is None:
            raise RuntimeError("no sums without training")
        found = self._read(self._trainer.sums)
        self._assign(dict.fromkeys(found, 0.0))
        return float(found["loss"]), float(found["right"])

    @property
    def kernels(self) -> dict[str, str]:
        """How operations that can be written in several ways were written, by node."""
        return dict(self._style.kernels)

    @property
    def _named(self) -> dict[str, tf.Variable]:
        """All variables: the parameters, and what belongs to the update."""
        return {**self._variables, **(self._trainer.variables if self._trainer is not None else {})}

    @property
    def _step_functions(self) -> list[Step]:
        """A step that ends an update, and one that does not where updates have several micro-batches."""
        return [self._step, self._gather] if self._trainer is not None and self._trainer.gathers else [self._step]

    def _make_variables(self) -> None:
        held = {} if self.frozen else self._stored
        self._variables = {
            name: tf.Variable(tf.zeros(each.shape, each.dtype), name=name.replace("/", "_"))
            for name, each in held.items()
        }
        if self._network.training:
            self._trainer = Trainer(self._network.update, self._network, self._variables)

    def _make_entries(self, inputs: Inputs) -> None:
        self._entries = [self._enter(step, inputs[0]) for step in self._step_functions]
        placed = [self._placed(batch) for batch in inputs]
        self._bound = [[partial(entry, *each) for each in placed] for entry in self._entries]

    def _step(self, *inputs: Tensor) -> list[Tensor]:
        """One batch; in training the last of an update."""
        return self._written(inputs, last=True)

    def _gather(self, *inputs: Tensor) -> list[Tensor]:
        """A micro-batch whose gradients wait for those of others."""
        return self._written(inputs, last=False)

    def _written(self, inputs: Sequence[Tensor], *, last: bool) -> list[Tensor]:
        held = {name: each.read_value() for name, each in self._variables.items()}
        if self.frozen:
            held = {name: tf.constant(each) for name, each in self._stored.items()}
        self._style.moves.clear()
        fed = dict(zip(self._network.graph.inputs, inputs, strict=True))
        if self._trainer is None:
            return [tf.identity(each) for each in lower(self._network.graph, self._style, fed, held)]
        outputs, right = self._scored(fed, held)
        done = self._trainer.moved(outputs[-1], right, held, dict(self._style.moves), last=last)
        with tf.control_dependencies(done):
            return [tf.identity(each) for each in outputs]

    def _scored(self, fed: dict[str, Tensor], held: dict[str, Tensor]) -> tuple[list[Tensor], Tensor | None]:
        """The outputs, and how many answers are right if there are class labels."""
        graph = self._network.graph
        if graph.classified is None:
            return self._write(graph, fed, held), None
        answers, labels = graph.classified.inputs[:2]
        logits, *outputs = self._write(graph.with_outputs(answers, *graph.outputs), fed, held)
        right = tf.equal(tf.argmax(logits, -1, output_type=fed[labels].dtype), fed[labels])
        return outputs, tf.reduce_sum(tf.cast(right, self._network.types.loss))

    def _write(self, graph: Graph, fed: dict[str, Tensor], held: dict[str, Tensor]) -> list[Tensor]:
        written = lower_again if self._style.recompute else lower
        return written(graph, self._style, fed, held)

    def _walk(self, *args: Tensor) -> list[Tensor]:
        """Many batches: the ring's arrays, infinity, first input, number of updates, their micro-batches.

        Which input comes next depends on the last output (no number is larger than infinity, but a compiler cannot
        know what is fed), so that no iteration can be left out or moved.
        """
        count, gathers = len(self._ring.arrays), len(self._step_functions) > 1
        arrays, (never, start, updates, micro_batches) = args[:count], args[count:]
        # All iterations give outputs of the same shapes and types; those of the first call say which.
        made = [tf.zeros(each.shape, each.dtype) for each in self._shapes()]

        def turn(step: Step, place: Tensor, skipped: Tensor) -> tuple[Tensor, ...]:
            outputs = step(*self._ring.pick(arrays, (place + skipped) % self._ring.length))
            first = tf.cast(tf.reshape(outputs[0], (-1,))[0], tf.float32)
            return tf.cast(first > never, tf.int32), *outputs

        def body(index: Tensor, skipped: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
            place = start + index * micro_batches
            if gathers:
                skipped = _gathered(partial(turn, self._gather), place, skipped, micro_batches - 1)
                place += micro_batches - 1
            with tf.control_dependencies([skipped]):  # the weights are read when all before has been done
                return index + 1, *turn(self._step, place, skipped)

        def within(index: Tensor, *_: Tensor) -> Tensor:
            return index < updates

        zero = tf.constant(0)
        return list(tf.while_loop(within, body, (zero, zero, *made), parallel_iterations=1)[2:])

    def _shapes(self) -> list[tf.TensorSpec]:
        graph, types = self._network.graph, self._network.types
        found = []
        for name in graph.outputs:
            shape = graph.shapes[name]
            native = (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
            found.append(tf.TensorSpec(native, types.compute if shape else types.loss))
        return found


def _gathered(turn: Callable[..., tuple[Tensor, ...]], place: Tensor, skipped: Tensor, count: Tensor) -> Tensor:
    """Gather so many micro-batches; return what the next must wait for."""

    def body(index: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        with tf.control_dependencies([before]):
            return index + 1, turn(place + index, before)[0]

    loop = tf.while_loop(lambda index, _: index < count, body, (tf.constant(0), skipped), parallel_iterations=1)
    return loop[1]
