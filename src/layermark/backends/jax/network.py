"""A task in JAX's terms: the pure functions of a step, their types, and the way in and out for arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax

from layermark import ops
from layermark.backends.base import Arrays
from layermark.backends.jax import convolution, recurrent
from layermark.backends.jax.barrier import materialise
from layermark.backends.jax.lowering import TO_CANONICAL, TO_INSIDE, GraphFunction, native
from layermark.backends.jax.updating import Named, Slots, gathered, updated
from layermark.errors import Unsupported
from layermark.graph import Graph, Node
from layermark.spec import Spec

_TYPES = {
    "64": np.dtype("float64"),
    "32": np.dtype("float32"),
    "16": np.dtype("float16"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

Held = tuple[Array, ...]
"""Parameters in the graph's order, and in training what goes on beside them; in inference what is settled of them."""


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

    @property
    def loss(self) -> np.dtype[Any]:
        """What losses are computed in, and results are given in: fp32, or what is wider."""
        return self.compute if self.compute.itemsize > 4 else np.dtype("float32")


class Parts(NamedTuple):
    """What a training step moves, by name."""

    weights: Named
    slots: Slots
    total: Named
    sums: Array
    """The losses and the right answers since they were last asked for."""


class Network:
    """Pure functions over flat tuples of arrays, which cost least to call."""

    def __init__(self, spec: Spec, graph: Graph, *, shared: bool = False) -> None:
        """`shared` is for one of several replicas, whose gradients are gathered before the update."""
        self._shared = shared
        self.graph, self.types, self.training = graph, Types.of(spec.precision), spec.mode == "train"
        self._tuned = spec.formulation == "tuned"
        if self._tuned and not any(map(self._tunable, graph)):
            phase = "training" if self.training else "inference"
            raise Unsupported(f"no tuned formulation of {spec.workload} on jax in {phase}")
        scored = graph.with_outputs(graph.classified.inputs[0], *graph.outputs) if graph.classified else graph
        self._function = GraphFunction(
            scored if self.training else graph,
            self._tuned,
            self.training,
            self.types.compute.name,
            recompute=spec.execution == "recompute",
        )
        self._update = spec.update
        self._trained = spec.update.trained(graph.parameters)
        self._waiting = spec.update.gathered_statistics(graph.parameters)
        self._settled: list[str] = []
        self._settle = jax.jit(self._settle_flat)

    def _tunable(self, node: Node) -> bool:
        if isinstance(node.op, ops.Recurrent):
            return recurrent.tunable(node.op, training=self.training)
        return isinstance(node.op, ops.Conv2d) and convolution.tunable(node.op, self.graph.input_shapes(node)[0][1])

    @property
    def layout(self) -> str:
        """How pictures lie in memory."""
        return "NHWC" if any(len(shape) == 4 for shape in self.graph.shapes.values()) else "row-major"

    @property
    def cells(self) -> str:
        """What recurrent layers really are, if there are any."""
        found = [
            recurrent.describe(node.op, self.graph.input_shapes(node)[0][0], training=self.training, tuned=self._tuned)
            for node in self.graph
            if isinstance(node.op, ops.Recurrent)
        ]
        return ", ".join(dict.fromkeys(found))

    def hold(self, weights: Arrays, state: Arrays | None = None) -> Held:
        """Parameters on the device, copied: XLA would else use, and in training overwrite, the caller's memory.

        In training the optimiser's state follows, given or new, and nothing is summed up yet.
        """
        held = {name: self._stored(name, weights[name]) for name in self.graph.parameters}
        if not self.training:
            settled: Held = self._settle(tuple(held.values()))
            return settled
        trained = {name: held[name] for name in self._trained}
        slots = {
            slot: {
                name: jnp.full_like(each, fill) if state is None else self._stored(name, state[f"{name}/{slot}"])
                for name, each in trained.items()
            }
            for slot, fill in self._update.rule.slots.items()
        }
        total = {name: jnp.zeros_like(held[name]) for name in self._gathered}
        return self._flat(Parts(held, slots, total, self.no_sums()))

    def _flat(self, parts: Parts) -> Held:
        # By the names of the graph: JAX sorts dictionaries that pass through it.
        weights = (parts.weights[name] for name in self.graph.parameters)
        slots = (parts.slots[slot][name] for slot in self._update.rule.slots for name in self._trained)
        total = (parts.total[name] for name in self._gathered)
        return (*weights, *slots, *total, parts.sums)

    @property
    def gathers(self) -> bool:
        """Whether an update has several micro-batches."""
        return self._update.micro_batches > 1 or self._shared

    @property
    def _gathered(self) -> list[str]:
        """What the micro-batches of an update add up: gradients, and running statistics that wait for all of them."""
        return [*self._trained, *self._waiting] if self.gathers else []

    def no_sums(self) -> Array:
        """Losses and right answers of no batch at all."""
        return jnp.zeros(2, self.types.loss)

    def parts(self, held: Held) -> Parts:
        """What a training step holds, by name."""
        left = iter(held)
        weights = {name: next(left) for name in self.graph.parameters}
        slots = {slot: {name: next(left) for name in self._trained} for slot in self._update.rule.slots}
        total = {name: next(left) for name in self._gathered}
        return Parts(weights, slots, total, next(left))

    def _stored(self, name: str, values: np.ndarray[Any, Any]) -> Array:
        axes = self._axes(name)
        moved = values if axes is None else np.transpose(values, axes)
        return jnp.array(np.ascontiguousarray(moved), self.types.weight, copy=True)

    def _axes(self, name: str) -> tuple[int, ...] | None:
        node, _, parameter = name.rpartition("/")
        return native(self.graph.by_name[node].op, parameter)

    def read(self, held: Held) -> Arrays:
        """Trained parameters in the canonical layout."""
        return {name: self._canonical(name, each) for name, each in self.parts(held).weights.items()}

    def read_state(self, held: Held) -> Arrays:
        """The optimiser's state in the canonical layout."""
        slots = self.parts(held).slots
        return {f"{name}/{slot}": self._canonical(name, slots[slot][name]) for name in self._trained for slot in slots}

    def _canonical(self, name: str, values: Array) -> np.ndarray[Any, Any]:
        axes, array = self._axes(name), np.array(values, self.types.loss)
        return array if axes is None else np.ascontiguousarray(np.transpose(array, np.argsort(axes)))

    def _settle_flat(self, held: Held) -> Held:
        settled = self._function.settle(dict(zip(self.graph.parameters, held, strict=True)))
        self._settled = list(settled)
        return tuple(settled.values())

    def infer(self, held: Held, *inputs: Array) -> tuple[Array, ...]:
        """The outputs of one batch."""
        settled = dict(zip(self._settled, held, strict=True))
        return self._function.forward(settled, self._named(inputs))[0]

    def train(self, held: Held, knobs: Array, *inputs: Array) -> tuple[Held, Array]:
        """What is held after the last micro-batch of an update, and its loss; `knobs` are rate and share."""
        loss, parts, mean = self._learnt(self.parts(held), knobs[1], inputs)
        moving = {name: parts.weights[name] for name in self._trained}
        seen = {name: mean.pop(name) for name in self._waiting}
        moved, slots = updated(self._update, moving, mean, parts.slots, knobs[0])
        total = {name: jnp.zeros_like(each) for name, each in parts.total.items()}
        return self._flat(Parts(parts.weights | seen | moved, slots, total, parts.sums)), loss

    def gather(self, held: Held, knobs: Array, *inputs: Array) -> tuple[Held, Array]:
        """The same after a micro-batch whose gradients wait for those of others."""
        loss, parts, mean = self._learnt(self.parts(held), knobs[1], inputs)
        return self._flat(parts._replace(total=mean)), loss

    def packed(self, held: Held, statistics: Mapping[str, float], share: float) -> Array:
        """What replicas add up, in one piece: a share of the gathered gradients, and weighted running statistics."""
        parts = self.parts(held)
        gradients = [parts.total[name].ravel() * share for name in self._trained]
        return jnp.concatenate([*gradients, *(parts.weights[name].ravel() * by for name, by in statistics.items())])

    def applied(self, held: Held, flat: Array, knobs: Array, *, statistics: Mapping[str, float]) -> Held:
        """What is held after the update that the sums of all replicas make."""
        parts, place = self.parts(held), 0
        found: Named = {}
        for name in (*self._trained, *statistics):
            like = parts.weights[name]
            found[name] = flat[place : place + like.size].reshape(like.shape).astype(like.dtype)
            place += like.size
        weights = parts.weights | {name: found[name] for name in statistics}
        moving = {name: weights[name] for name in self._trained}
        mean = {name: found[name] for name in self._trained}
        moved, slots = updated(self._update, moving, mean, parts.slots, knobs[0])
        total = {name: jnp.zeros_like(each) for name, each in parts.total.items()}
        return self._flat(Parts(weights | moved, slots, total, parts.sums))

    def _learnt(self, parts: Parts, share: Array, inputs: Sequence[Array]) -> tuple[Array, Parts, Named]:
        """The loss of one micro-batch, statistics and sums after it, and the gradients of the update so far."""
        fed = self._named(inputs)
        moving = {name: parts.weights[name] for name in self._trained}

        def scaled(moving: Named) -> tuple[Array, tuple[Array, Named, Array]]:
            outputs, state = self._function.forward(self._function.settle(parts.weights | moving), fed)
            return outputs[-1] * self._update.loss_scaling, (outputs[-1], state, self._right(outputs[0], fed))

        (_, (loss, state, right)), slopes = jax.value_and_grad(scaled, has_aux=True)(moving)
        seen = {name: each.astype(parts.weights[name].dtype) for name, each in state.items()}
        waiting = {name: parts.total[name] + share.astype(seen[name].dtype) * seen.pop(name) for name in self._waiting}
        total = {name: parts.total[name] for name in self._trained} if self.gathers else {}
        mean = gathered(self._update, moving, slopes, total, share) | waiting
        sums = parts.sums + jnp.stack([loss, right]).astype(parts.sums.dtype)
        return loss, parts._replace(weights=parts.weights | seen, sums=sums), mean

    def _right(self, logits: Array, fed: Named) -> Array:
        """How many answers are right; none where there are no class labels."""
        if self.graph.classified is None:
            return jnp.zeros((), self.types.loss)
        labels = fed[self.graph.classified.inputs[1]]
        return jnp.sum(jnp.argmax(logits, -1) == labels).astype(self.types.loss)

    def _named(self, inputs: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.graph.inputs, inputs, strict=True))

    def infer_loop(self, held: Held, ring: Held, start: Array, count: Array) -> tuple[Array, ...]:
        """The outputs of the last of `count` batches.

        The place in the ring waits for the outputs of the batch before, so that no batch can be left out.
        """

        def turn(index: Array, last: tuple[Array, ...]) -> tuple[Array, ...]:
            place, _ = materialise((start + index, last))
            return self.infer(held, *_picked(ring, place))

        shapes = jax.eval_shape(self.infer, held, *(each[0] for each in ring))
        zeros = tuple(jnp.zeros(each.shape, each.dtype) for each in shapes)
        outputs: tuple[Array, ...] = lax.fori_loop(0, count, turn, zeros)
        return outputs

    def train_loop(
        self, held: Held, knobs: Array, ring: Held, start: Array, updates: Array, micro_batches: Array
    ) -> tuple[Held, Array]:
        """What is held after so many updates, and the loss of the last micro-batch."""

        def turn(index: Array, carried: tuple[Held, Array]) -> tuple[Held, Array]:
            place, now = start + index * micro_batches, carried[0]
            if self.gathers:
                now = lax.fori_loop(0, micro_batches - 1, functools.partial(wait, place), now)
            return self.train(now, knobs, *_picked(ring, place + micro_batches - 1))

        def wait(place: Array, index: Array, now: Held) -> Held:
            return self.gather(now, knobs, *_picked(ring, place + index))[0]

        end: tuple[Held, Array] = lax.fori_loop(0, updates, turn, (held, jnp.zeros((), self.types.loss)))
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
        return self.types.loss if op.role == "target" else self.types.compute

    def results(self, outputs: Sequence[Array]) -> Arrays:
        """What a call gave, under the graph's names, in the canonical layout."""
        arrays = (np.array(each, self.types.loss) for each in outputs)
        moved = (np.transpose(each, TO_CANONICAL) if each.ndim == 4 else each for each in arrays)
        return {name: np.array(each, order="C") for name, each in zip(self.graph.outputs, moved, strict=True)}


def _picked(ring: Held, place: Array) -> list[Array]:
    return [lax.dynamic_index_in_dim(each, place % each.shape[0], keepdims=False) for each in ring]
