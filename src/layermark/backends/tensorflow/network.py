"""A task's graph in its types and layout: what is fed, what comes out, and how parameters are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from layermark import ops
from layermark.backends.base import Arrays
from layermark.backends.tensorflow import process
from layermark.backends.tensorflow.lowering import Style, stored_axes, to_canonical, to_native, wide
from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.spec import Spec
from layermark.workloads.folding import folded, without_norms

if TYPE_CHECKING:
    from layermark.backends.tensorflow.replicas import Sharing

Array = np.ndarray[Any, Any]
_TYPES = {"64": tf.float64, "32": tf.float32, "16": tf.float16, "bf16": tf.bfloat16}
_ALIGNMENT = 64


@dataclass(frozen=True)
class Types:
    """What is computed in, and what weights are stored in."""

    compute: tf.DType
    weight: tf.DType

    @classmethod
    def of(cls, precision: str) -> Types:
        """The types behind a precision such as 16.32."""
        compute, weight = precision.split(".")
        return cls(_TYPES[compute], _TYPES[weight])

    @property
    def loss(self) -> tf.DType:
        """What losses and statistics are computed in."""
        return wide(self.compute)

    @property
    def low(self) -> bool:
        """Whether products are computed in less than fp32."""
        return bool(self.compute.size < 4)


class Network:
    """A graph with everything that does not depend on how it is executed."""

    def __init__(self, spec: Spec, graph: Graph, sharing: Sharing | None = None) -> None:
        self.sharing = sharing
        self.types, self.device = Types.of(spec.precision), process.DEVICES[spec.device]
        self.training, self.tuned = spec.mode == "train", spec.formulation == "tuned"
        self.update, self._recompute = spec.update, spec.execution == "recompute"
        self._given = graph
        # TensorFlow joins a norm with its convolution by itself, but then not also with the sum and the ReLU after it.
        self._folds = not self.training and spec.precision == "32.32"
        self.graph = graph = without_norms(graph) if self._folds else graph
        self._axes = {
            f"{node.name}/{name}": stored_axes(node.op, name)
            for node in graph
            for name in node.op.parameters(*graph.input_shapes(node))
        }
        if self.tuned:
            refuse_untunable(spec, graph)

    def style(self, *, xla: bool) -> Style:
        """How the graph is written for one way of executing it."""
        return Style(self.types.compute, xla, self.training, self.tuned, self._recompute)

    def stored(self, weights: Arrays) -> dict[str, Array]:
        """Parameters as the program keeps them."""
        kept = self.types.weight.as_numpy_dtype
        if self._folds:
            weights = folded(self._given, weights)[1]
        found = {}
        for name, axes in self._axes.items():
            values = np.asarray(weights[name])
            found[name] = np.ascontiguousarray(values if axes is None else values.transpose(axes)).astype(kept)
        return found

    def stored_state(self, state: Arrays) -> dict[str, Array]:
        """The optimiser's state as the program keeps it: each array like the parameter it belongs to."""
        kept = self.types.weight.as_numpy_dtype
        return {name: _turned(np.asarray(each), self._owner(name)).astype(kept) for name, each in state.items()}

    def canonical_state(self, stored: Arrays) -> dict[str, Array]:
        """The optimiser's state in the canonical layout."""
        found = {}
        for name, each in stored.items():
            axes = self._owner(name)
            back = None if axes is None else tuple(np.argsort(axes))
            found[name] = _turned(self._readable(np.asarray(each)), back)
        return found

    def _owner(self, name: str) -> tuple[int, ...] | None:
        return self._axes[name.rpartition("/")[0]]

    def _readable(self, values: Array) -> Array:
        return values.astype("float64" if self.types.compute == tf.float64 else "float32")

    def canonical(self, stored: Arrays) -> dict[str, Array]:
        """Parameters in the canonical layout, from what a training program keeps."""
        found = {}
        for name, axes in self._axes.items():
            values = self._readable(np.asarray(stored[name]))
            found[name] = np.ascontiguousarray(values if axes is None else values.transpose(np.argsort(axes)))
        return found

    def feed(self, batch: Arrays) -> list[Array]:
        """One batch in the order, types and layout that the program takes."""
        return [self._input(op, np.asarray(batch[name])) for name, op in self.graph.inputs.items()]

    def native(self, batch: Arrays) -> list[Array]:
        """One batch in the order and layout that the program takes, for copying from."""
        return [to_native(np.asarray(batch[name])) for name in self.graph.inputs]

    def _input(self, op: ops.Input, values: Array) -> Array:
        values = to_native(values)
        return aligned(values.shape, self._input_type(op, values), values)

    def _input_type(self, op: ops.Input, values: Array) -> Any:
        if op.item_bytes == 1:
            return np.uint8
        if values.dtype.kind != "f":
            return np.int32
        return (self.types.loss if op.role == "target" else self.types.compute).as_numpy_dtype

    def results(self, values: Sequence[Array]) -> dict[str, Array]:
        """What a call gave, under the graph's names, in the canonical layout."""
        return {
            name: np.asarray(to_canonical(self._readable(np.asarray(value))), order="C")
            for name, value in zip(self.graph.outputs, values, strict=True)
        }


def _turned(values: Array, axes: tuple[int, ...] | None) -> Array:
    return np.ascontiguousarray(values if axes is None else values.transpose(axes))


def aligned(shape: Sequence[int], dtype: Any, values: Array | None = None) -> Array:
    """An array that TensorFlow takes as it is; arrays that begin anywhere else are copied on every call."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    array: Array = memory[begin : begin + size].view(dtype).reshape(tuple(shape))
    if values is not None:
        array[...] = values
    return array


def is_aligned(array: Array) -> bool:
    """Whether TensorFlow takes the array without a copy."""
    return array.ctypes.data % _ALIGNMENT == 0


def refuse_untunable(spec: Spec, graph: Graph) -> None:
    """Raise unless there is a grouped convolution, for which XLA has no fast kernel of its own."""
    grouped = any(isinstance(node.op, ops.Conv2d) and node.op.groups > 1 for node in graph)
    if not grouped or spec.execution in ("function", "session"):
        where = f"tensorflow's {spec.execution}" if grouped else "tensorflow"
        reason = f"no tuned formulation of {spec.workload} on {where}; use --formulation library"
        raise Unsupported(reason, code="no_tuned_formulation", instead={"formulation": "library"})
