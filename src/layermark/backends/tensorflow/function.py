"""`function` and `xla`: a `tf.function` that is called on resident tensors, as TensorFlow's guide calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from layermark.backends.base import Arrays
from layermark.backends.tensorflow.execution import Call, Execution, Inputs, Step, Tensor
from layermark.backends.tensorflow.network import Array, Network


class FunctionExecution(Execution):
    """A network behind `tf.function`, with `jit_compile` or without; variables live in TensorFlow's eager runtime.

    `resident` is what this execution always is: a tf.function takes tensors, which lie on the device.
    """

    path: ClassVar[str] = "tf.function"

    def __init__(self, network: Network, stored: Arrays, inputs: Inputs, *, xla: bool, resident: bool = False) -> None:
        super().__init__(network, stored, inputs, xla=xla)
        self._functions: list[Any] = []
        if network.device is not None:
            # An operation that the device does not have is an error, not placed elsewhere.
            tf.config.set_soft_device_placement(False)
        with tf.device(network.device):
            self._make_variables()
        self._assignable = self._named
        self._make_entries(inputs)
        self.load(stored)

    @property
    def name(self) -> str:
        """`function`, or `xla` for `jit_compile`."""
        return "recompute" if self._style.recompute else "xla" if self._xla else "function"

    def operations(self) -> list[str]:
        """Return the names of the operations of every concrete function."""
        return [op.name for each in self._functions for op in each.get_concrete_function().graph.get_operations()]

    def _enter(self, function: Step, like: Sequence[Any]) -> Call:
        """A call of tensors or arrays; fetching the outputs waits for them, and copies nothing on a CPU."""
        signature = [tf.TensorSpec(each.shape, tf.as_dtype(each.dtype)) for each in like]

        sharing = self._network.sharing

        def on_device(*inputs: Tensor) -> list[Tensor]:
            with tf.device(self._network.device):
                return function(*inputs) if sharing is None else list(sharing.run(function, inputs))

        made = tf.function(on_device, input_signature=signature, jit_compile=self._xla or None, autograph=False)
        self._functions.append(made)
        return partial(_fetched, made)

    def _placed(self, arrays: Sequence[Array]) -> list[Tensor]:
        with tf.device(self._network.device):
            return [tf.constant(each) for each in arrays]

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, each in values.items():
            self._assignable[name].assign(each)

    def _read(self, variables: Mapping[str, tf.Variable]) -> Arrays:
        return {name: each.numpy() for name, each in variables.items()}


def _fetched(function: Any, *inputs: Any) -> list[Array]:
    return [each.numpy() for each in function(*inputs)]
