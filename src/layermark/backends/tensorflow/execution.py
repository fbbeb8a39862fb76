"""A network in a session: by the graph executor or by XLA, one batch a call or a loop over the ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from layermark.backends.base import Arrays
from layermark.backends.tensorflow import most_constants, process
from layermark.backends.tensorflow.lowering import lower
from layermark.backends.tensorflow.network import Array, Network, aligned, is_aligned

v1 = tf.compat.v1
Tensor = Any
Step = Callable[..., list[Tensor]]

_GATHERED_BYTES = 1 << 16
"""In a loop, inputs up to this size are copied out of the ring; larger ones are switched between."""
_NEVER = np.array(np.inf, "float32")


class Compiled:
    """A network as a session with two entries: `call` for one batch, `loop` for many in one call.

    A session whose operations run on the caller's thread and whose inputs are aligned NumPy arrays takes
    a few microseconds per call; an eager call of the same tf.function takes 50 to 100. With `resident` inputs, every
    batch of the ring lies on the device and has an entry of its own.
    """

    def __init__(
        self, network: Network, stored: Arrays, ring: Sequence[Sequence[Array]], *, xla: bool, resident: bool = False
    ) -> None:
        self.name, self._network, self._xla = "xla" if xla else "function", network, xla
        self._style = network.style(xla=xla)
        self._stored = stored
        held = sum(each.nbytes for each in stored.values())
        self.frozen = not network.training and held <= most_constants(network.graph)
        self.graph = tf.Graph()
        self._session = v1.Session(graph=self.graph, config=process.session_config(optimise=not xla))
        with self._building():
            self._make_variables()
        self._rate_now = 0.0
        self._call = self._enter(self._step, ring[0])
        self._calls = self._resident(ring) if resident else [partial(self._call, *each) for each in ring]
        self._ring = Ring(ring, gathered=xla)
        self._loop: Callable[..., list[Array]] | None = None
        self.load(stored)

    @property
    def kernels(self) -> dict[str, str]:
        """How operations that can be written in several ways were written, by node."""
        return dict(self._style.kernels)

    @property
    def call(self) -> Callable[..., list[Array]]:
        """One batch: takes its inputs, answers the outputs."""
        return self._call

    @property
    def calls(self) -> Sequence[Callable[..., list[Array]]]:
        """The same for every batch of the ring."""
        return self._calls

    def loop(self, start: int, batches: int) -> list[Array]:
        """The next batches of the ring in one call; answers the outputs of the last."""
        if self._loop is None:
            self._loop = self._enter(self._walk, (*self._ring.arrays, np.int32(0), np.int32(0), _NEVER))
        return self._loop(*self._ring.arrays, np.array(start, "int32"), np.array(batches, "int32"), _NEVER)

    def load(self, stored: Arrays) -> None:
        """Set the variables; constants cannot be set."""
        for name, (feed, assign) in self._assigns.items():
            self._session.run(assign, {feed: stored[name]})

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come: a variable, since to feed it every time costs small layers 1 %."""
        if self._network.training and rate != self._rate_now:
            feed, assign = self._set_rate
            self._session.run(assign, {feed: rate})
            self._rate_now = rate

    def weights(self) -> Arrays:
        """The parameters as they are now, as they are stored."""
        held: Arrays = self._session.run(self._reads) if self._reads else self._stored
        return held

    def close(self) -> None:
        """Let go of the session."""
        self._session.close()

    def _make_variables(self) -> None:
        held = {} if self.frozen else self._stored
        self._variables = {
            name: tf.Variable(tf.zeros(each.shape, each.dtype), name=name.replace("/", "_"))
            for name, each in held.items()
        }
        feeds = {name: _placeholder(each) for name, each in held.items()}
        self._assigns = {name: (feeds[name], each.assign(feeds[name])) for name, each in self._variables.items()}
        self._reads = {name: each.read_value() for name, each in self._variables.items()}
        made = list(self._variables.values())
        if self._network.training:
            self._rate, fed_rate = tf.Variable(0.0, name="rate"), v1.placeholder(tf.float32, ())
            self._set_rate = (fed_rate, self._rate.assign(fed_rate))
            made.append(self._rate)
        self._session.run(v1.variables_initializer(made))

    @contextmanager
    def _building(self) -> Iterator[None]:
        """What is written in here becomes part of the graph, on its device."""
        with self.graph.as_default(), tf.device(self._network.device):
            yield

    def _enter(self, function: Step, fed: Sequence[Any]) -> Callable[..., list[Array]]:
        """An entry of the session that takes values like these."""
        with self._building():
            feeds = [_placeholder(each) for each in fed]
            return self._entry(feeds, self._written(function)(*feeds))

    def _written(self, function: Step) -> Step:
        return tf.function(function, jit_compile=True, autograph=False) if self._xla else function

    def _entry(self, feeds: Sequence[Tensor], fetches: Sequence[Tensor]) -> Callable[..., list[Array]]:
        # make_callable, the public way, goes through the checks of Session.run: 300 microseconds a call.
        names = {"feed": [each.name for each in feeds], "fetch": [each.name for each in fetches]}
        entry: Callable[..., list[Array]] = self._session._make_callable_from_options(
            config_pb2.CallableOptions(**names)
        )
        return entry

    def _resident(self, ring: Sequence[Sequence[Array]]) -> list[Callable[..., list[Array]]]:
        """An entry for every batch of the ring, whose inputs lie on the device."""
        step = self._written(self._step)
        entries: list[Callable[..., list[Array]]] = []
        for batch in ring:
            with self._building():
                places = [_placeholder(each) for each in batch]
                inputs = [self._held(*each) for each in zip(places, batch, strict=True)]
                fed = [index for index, place in enumerate(places) if inputs[index] is place]
                entry = self._entry([places[index] for index in fed], step(*inputs))
            entries.append(partial(entry, *(batch[index] for index in fed)))
        return entries

    def _held(self, place: Tensor, values: Array) -> Tensor:
        """An input as a variable. Class numbers stay a feed: TensorFlow keeps no 32-bit integers on a GPU."""
        if values.dtype == np.int32:
            return place
        variable = tf.Variable(tf.zeros(values.shape, values.dtype))
        assign = variable.assign(place)
        self._session.run(variable.initializer)
        self._session.run(assign, {place: values})
        return variable.read_value()

    def _step(self, *inputs: Tensor) -> list[Tensor]:
        """One batch."""
        held = {name: each.read_value() for name, each in self._variables.items()}
        if self.frozen:
            held = {name: tf.constant(each) for name, each in self._stored.items()}
        self._style.moves.clear()
        fed = dict(zip(self._network.graph.inputs, inputs, strict=True))
        outputs = lower(self._network.graph, self._style, fed, held)
        return self._update(outputs, held) if self._network.training else [tf.identity(each) for each in outputs]

    def _update(self, outputs: list[Tensor], held: dict[str, Tensor]) -> list[Tensor]:
        """Plain gradient descent on the last output, and the running statistics."""
        names, moves, rate = self._network.trained, dict(self._style.moves), self._rate.read_value()
        gradients = tf.gradients(outputs[-1], [held[name] for name in names], unconnected_gradients="zero")
        # The variables are read before anything moves them.
        with tf.control_dependencies([*gradients, *moves.values()]):
            updates = [
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=self._variables[name].handle, alpha=tf.cast(rate, each.dtype), delta=each
                )
                for name, each in zip(names, gradients, strict=True)
            ]
            updates += [
                tf.raw_ops.AssignVariableOp(
                    resource=self._variables[name].handle, value=tf.cast(each, self._variables[name].dtype)
                )
                for name, each in moves.items()
            ]
        with tf.control_dependencies(updates):
            return [tf.identity(each) for each in outputs]

    def _walk(self, *args: Tensor) -> list[Tensor]:
        """Many batches: the ring's arrays, first input, number of batches, infinity.

        Which input comes next depends on the last output (no number is larger than infinity, but a compiler cannot
        know what is fed), so that no iteration can be left out or moved.
        """
        count = len(self._ring.arrays)
        arrays, (start, batches, never) = args[:count], args[count:]
        # All iterations give outputs of the same shapes and types; those of the first call say which.
        made = [tf.zeros(each.shape, each.dtype) for each in self._shapes()]

        def body(index: Tensor, skipped: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
            outputs = self._step(*self._ring.pick(arrays, (start + index + skipped) % self._ring.length))
            first = tf.cast(tf.reshape(outputs[0], (-1,))[0], tf.float32)
            return index + 1, tf.cast(first > never, tf.int32), *outputs

        def within(index: Tensor, *_: Tensor) -> Tensor:
            return index < batches

        zero = tf.constant(0)
        return list(tf.while_loop(within, body, (zero, zero, *made), parallel_iterations=1)[2:])

    def _shapes(self) -> list[tf.TensorSpec]:
        graph, types = self._network.graph, self._network.types
        found = []
        for name in graph.outputs:
            shape = graph.shapes[name]
            native = (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
            found.append(tf.TensorSpec(native, types.compute if shape else tf.float32))
        return found


class Ring:
    """The inputs as a loop takes them: each stacked, or one by one where a copy would cost."""

    def __init__(self, ring: Sequence[Sequence[Array]], *, gathered: bool) -> None:
        self.length = len(ring)
        columns = list(zip(*ring, strict=True))
        self._stacked = [gathered or column[0].nbytes <= _GATHERED_BYTES for column in columns]
        self.arrays: list[Array] = []
        for column, stacked in zip(columns, self._stacked, strict=True):
            self.arrays += [_stack(column)] if stacked else list(column)

    def pick(self, arrays: Sequence[Tensor], index: Tensor) -> list[Tensor]:
        """The inputs at one place of the ring, from tensors in the order of `arrays`."""
        left, found = list(arrays), []
        for stacked in self._stacked:
            if stacked:
                found.append(tf.gather(left.pop(0), index))
            else:
                choices, left = left[: self.length], left[self.length :]
                found.append(tf.switch_case(index, [_giving(each) for each in choices]))
        return found


def _giving(value: Tensor) -> Callable[[], Tensor]:
    return lambda: tf.identity(value)


def _stack(column: Sequence[Array]) -> Array:
    stacked = np.stack(column)
    return stacked if is_aligned(stacked) else aligned(stacked.shape, stacked.dtype, stacked)


def _placeholder(value: Any) -> Tensor:
    return v1.placeholder(tf.as_dtype(value.dtype), value.shape)
