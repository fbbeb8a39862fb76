"""A task in JAX's terms: the pure functions of a step, their types, and the way in and out for arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax

from layermark import ops
from layermark.backends.base import Arrays
from layermark.backends.jax import cells, convolution
from layermark.backends.jax.barrier import made
from layermark.backends.jax.lowering import TO_CANONICAL, TO_INSIDE, Lowering, native
from layermark.errors import Unsupported
from layermark.graph import Graph, Node
from layermark.spec import Spec

_TYPES = {"32": np.dtype("float32"), "16": np.dtype("float16"), "bf16": np.dtype(ml_dtypes.bfloat16)}

Held = tuple[Array, ...]
"""Parameters in the graph's order; in inference what is settled of them."""


@dataclass(frozen=True)
class Types:
    """What is computed in, and what weights are stored in."""

    compute: np.dtype[Any]
    weight: np.dtype[Any]

    @classmethod
    def of(cls, precision: str) -> Types:
        """The types behind a precision such as 16.32."""
        compute, weight = precision.split(".")
        return cls(_TYPES[compute], _TYPES[weight])


class Network:
    """Pure functions over flat tuples of arrays, which cost least to call."""

    def __init__(self, spec: Spec, graph: Graph) -> None:
        self.graph, self.types, self.training = graph, Types.of(spec.precision), spec.mode == "train"
        self._tuned = spec.formulation == "tuned"
        if self._tuned and not any(map(self._tunable, graph)):
            phase = "training" if self.training else "inference"
            raise Unsupported(f"no tuned formulation of {spec.workload} on jax in {phase}")
        self._lowering = Lowering(graph, self._tuned, self.training, self.types.compute.name)
        self._trained = [name for name, facts in graph.parameters.items() if facts.trainable]
        self._settled: list[str] = []
        self._settle = jax.jit(self._settle_flat)

    def _tunable(self, node: Node) -> bool:
        if isinstance(node.op, ops.Recurrent):
            return cells.tunable(node.op, training=self.training)
        return isinstance(node.op, ops.Conv2d) and convolution.tunable(node.op, self.graph.input_shapes(node)[0][1])

    @property
    def layout(self) -> str:
        """How pictures lie in memory."""
        return "NHWC" if any(len(shape) == 4 for shape in self.graph.shapes.values()) else "row-major"

    @property
    def cells(self) -> str:
        """What recurrent layers really are, if there are any."""
        found = [
            cells.describe(node.op, self.graph.input_shapes(node)[0][0], training=self.training, tuned=self._tuned)
            for node in self.graph
            if isinstance(node.op, ops.Recurrent)
        ]
        return ", ".join(dict.fromkeys(found))

    def hold(self, weights: Arrays) -> Held:
        """Parameters on the device, copied: XLA would else use, and in training overwrite, the caller's memory."""
        held = tuple(self._stored(name, weights[name]) for name in self.graph.parameters)
        return held if self.training else self._settle(held)

    def _stored(self, name: str, values: np.ndarray[Any, Any]) -> Array:
        axes = self._axes(name)
        moved = values if axes is None else np.transpose(values, axes)
        return jnp.array(np.ascontiguousarray(moved), self.types.weight, copy=True)

    def _axes(self, name: str) -> tuple[int, ...] | None:
        node, _, parameter = name.rpartition("/")
        return native(self.graph.by_name[node].op, parameter)

    def read(self, held: Held) -> Arrays:
        """Trained parameters in the canonical layout."""
        return {name: self._canonical(name, each) for name, each in zip(self.graph.parameters, held, strict=True)}

    def _canonical(self, name: str, values: Array) -> np.ndarray[Any, Any]:
        axes, array = self._axes(name), np.array(values, "float32")
        return array if axes is None else np.ascontiguousarray(np.transpose(array, np.argsort(axes)))

    def _settle_flat(self, held: Held) -> Held:
        settled = self._lowering.settle(dict(zip(self.graph.parameters, held, strict=True)))
        self._settled = list(settled)
        return tuple(settled.values())

    def infer(self, held: Held, *inputs: Array) -> tuple[Array, ...]:
        """The outputs of one batch."""
        settled = dict(zip(self._settled, held, strict=True))
        return self._lowering.forward(settled, self._named(inputs))[0]

    def train(self, held: Held, rate: Array, *inputs: Array) -> tuple[Held, Array]:
        """The parameters after one step of gradient descent, and the loss before it."""
        weights = dict(zip(self.graph.parameters, held, strict=True))
        fixed = {name: each for name, each in weights.items() if name not in self._trained}

        def loss(moving: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            outputs, state = self._lowering.forward(self._lowering.settle(fixed | moving), self._named(inputs))
            return outputs[-1], state

        moving = {name: weights[name] for name in self._trained}
        (value, state), slopes = jax.value_and_grad(loss, has_aux=True)(moving)
        moved = {name: (each - rate * slopes[name]).astype(each.dtype) for name, each in moving.items()}
        moved |= {name: each.astype(weights[name].dtype) for name, each in state.items()}
        return tuple((weights | moved).values()), value

    def _named(self, inputs: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.graph.inputs, inputs, strict=True))

    def infer_loop(self, held: Held, ring: Held, start: Array, count: Array) -> tuple[Array, ...]:
        """The outputs of the last of `count` batches.

        The place in the ring waits for the outputs of the batch before, so that no batch can be left out.
        """

        def turn(index: Array, last: tuple[Array, ...]) -> tuple[Array, ...]:
            place, _ = made((start + index, last))
            return self.infer(held, *_picked(ring, place))

        shapes = jax.eval_shape(self.infer, held, *(each[0] for each in ring))
        zeros = tuple(jnp.zeros(each.shape, each.dtype) for each in shapes)
        outputs: tuple[Array, ...] = lax.fori_loop(0, count, turn, zeros)
        return outputs

    def train_loop(self, held: Held, rate: Array, ring: Held, start: Array, count: Array) -> tuple[Held, Array]:
        """The parameters after `count` steps, and the loss of the last."""

        def turn(index: Array, carried: tuple[Held, Array]) -> tuple[Held, Array]:
            return self.train(carried[0], rate, *_picked(ring, start + index))

        end: tuple[Held, Array] = lax.fori_loop(0, count, turn, (held, jnp.zeros((), jnp.float32)))
        return end

    def feed(self, batch: Arrays) -> tuple[np.ndarray[Any, Any], ...]:
        """One batch of inputs in the order, types and layout that the functions take, on the host."""
        return tuple(self._input(op, batch[name]) for name, op in self.graph.inputs.items())

    def _input(self, op: ops.Input, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        moved = np.transpose(values, TO_INSIDE) if values.ndim == 4 else values
        return np.ascontiguousarray(moved, self._input_type(op, values))

    def _input_type(self, op: ops.Input, values: np.ndarray[Any, Any]) -> np.dtype[Any]:
        if op.item_bytes == 1:
            return np.dtype("uint8")
        if values.dtype.kind != "f":
            return np.dtype("int32")
        return np.dtype("float32") if op.role == "target" else self.types.compute

    def results(self, outputs: Sequence[Array]) -> Arrays:
        """What a call gave, under the graph's names, in the canonical layout."""
        arrays = (np.array(each, "float32") for each in outputs)
        moved = (np.transpose(each, TO_CANONICAL) if each.ndim == 4 else each for each in arrays)
        return {name: np.array(each, order="C") for name, each in zip(self.graph.outputs, moved, strict=True)}


def _picked(ring: Held, place: Array) -> list[Array]:
    return [lax.dynamic_index_in_dim(each, place % each.shape[0], keepdims=False) for each in ring]
