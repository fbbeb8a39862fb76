"""`session` and `session-xla`: the same graph behind a private entry of a TensorFlow 1 session.

`Session._make_callable_from_options` is what `Session.make_callable` is made of, without the checks. A call takes a few
microseconds of CPU time where that of a `tf.function` takes 200 to 300 on a busy machine (`make_callable`: 300). It is
private, so it may be gone in any release: then `MissingEntry` is raised, and `tf.function` takes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from layermark.backends.base import Arrays, MissingEntry
from layermark.backends.tensorflow import process
from layermark.backends.tensorflow.execution import Call, Execution, Inputs, Step, Tensor
from layermark.backends.tensorflow.network import Array, Network

v1 = tf.compat.v1
PRIVATE_ENTRY = "_make_callable_from_options"


class SessionExecution(Execution):
    """A network in a session whose operations run on the caller's thread, fed with aligned NumPy arrays.

    With `resident` inputs, every batch of the ring lies on the device and has an entry of its own.
    """

    path: ClassVar[str] = f"Session.{PRIVATE_ENTRY}, on the caller's thread"

    def __init__(self, network: Network, stored: Arrays, inputs: Inputs, *, xla: bool, resident: bool = False) -> None:
        super().__init__(network, stored, inputs, xla=xla)
        self._graph = tf.Graph()
        self._session = v1.Session(graph=self._graph, config=process.session_config(optimise=not xla))
        with self._building():
            self._make_variables()
            self._assigns = {name: _setting(each) for name, each in self._named.items()}
            self._session.run(v1.variables_initializer(list(self._named.values())))
        self._make_entries(inputs)
        if resident:
            self._bound = self._resident(inputs)
        self.load(stored)

    @property
    def name(self) -> str:
        """`session`, or `session-xla` for XLA."""
        return "session-xla" if self._xla else "session"

    def operations(self) -> list[str]:
        """Return the names of the operations of the session's graph."""
        return [op.name for op in self._graph.get_operations()]

    def close(self) -> None:
        """Let go of the session."""
        self._session.close()

    def _placed(self, arrays: Sequence[Array]) -> Sequence[Array]:
        return arrays

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, each in values.items():
            feed, assign = self._assigns[name]
            self._session.run(assign, {feed: each})

    def _read(self, variables: Mapping[str, tf.Variable]) -> Arrays:
        held: Arrays = self._session.run(dict(variables)) if variables else {}
        return held

    @contextmanager
    def _building(self) -> Iterator[None]:
        """What is written in here becomes part of the graph, on its device."""
        with self._graph.as_default(), tf.device(self._network.device):
            yield

    def _enter(self, function: Step, like: Sequence[Any]) -> Call:
        """Return an entry of the session that takes values like these."""
        with self._building():
            feeds = [_placeholder(each) for each in like]
            return self._entry(feeds, self._compiled(function)(*feeds))

    def _compiled(self, function: Step) -> Step:
        return tf.function(function, jit_compile=True, autograph=False) if self._xla else function

    def _entry(self, feeds: Sequence[Tensor], fetches: Sequence[Tensor]) -> Call:
        names = {"feed": [each.name for each in feeds], "fetch": [each.name for each in fetches]}
        try:
            entry: Call = getattr(self._session, PRIVATE_ENTRY)(config_pb2.CallableOptions(**names))
        except (AttributeError, TypeError) as error:
            raise MissingEntry(f"tensorflow {tf.__version__}: Session.{PRIVATE_ENTRY} ({error})") from error
        return entry

    def _resident(self, inputs: Inputs) -> list[list[Call]]:
        """Return, for every kind of step, an entry for each batch of the ring; its inputs lie on the device."""
        steps = [self._compiled(step) for step in self._step_functions]
        bound: list[list[Call]] = [[] for _ in steps]
        for batch in inputs:
            with self._building():
                places = [_placeholder(each) for each in batch]
                tensors = [self._on_device(*each) for each in zip(places, batch, strict=True)]
                fed = [index for index, place in enumerate(places) if tensors[index] is place]
                entries = [self._entry([places[index] for index in fed], step(*tensors)) for step in steps]
            for calls, entry in zip(bound, entries, strict=True):
                calls.append(partial(entry, *(batch[index] for index in fed)))
        return bound

    def _on_device(self, place: Tensor, values: Array) -> Tensor:
        """An input as a variable. Class numbers stay a feed: TensorFlow keeps no 32-bit integers on a GPU."""
        if values.dtype == np.int32:
            return place
        variable = tf.Variable(tf.zeros(values.shape, values.dtype))
        assign = variable.assign(place)
        self._session.run(variable.initializer)
        self._session.run(assign, {place: values})
        return variable.read_value()


def _setting(variable: tf.Variable) -> tuple[Tensor, Tensor]:
    """Return a place to feed, and the operation that sets a variable to what is fed there."""
    place = v1.placeholder(variable.dtype, variable.shape)
    return place, variable.assign(place)


def _placeholder(value: Any) -> Tensor:
    return v1.placeholder(tf.as_dtype(value.dtype), value.shape)
