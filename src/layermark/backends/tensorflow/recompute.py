"""Activations that are computed again in the backward pass, block by block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from layermark.backends.tensorflow.lowering import Style, Tensor, Tensors, write
from layermark.graph import Graph, Node

Run = Callable[..., tuple[Tensor, dict[str, Tensor]]]

AGAIN = "again"
"""What operations are called that hand a block its inputs for the second time."""


def lower_again(graph: Graph, style: Style, inputs: Tensors, parameters: Tensors) -> list[Tensor]:
    """Write a graph as `lower` does; of all blocks but the last only what they hand on is kept for the way back."""
    values = dict(inputs)
    *blocks, rest = graph.blocks()
    for block in blocks:
        values = {**inputs, block[-1].name: _again(graph, block, style, values, parameters)}
    write(graph, rest, style, values, parameters)
    return [values[name] for name in graph.outputs]


def _again(graph: Graph, block: Sequence[Node], style: Style, values: Tensors, parameters: Tensors) -> Tensor:
    made = {node.name for node in block}
    read = sorted({name for node in block for name in node.inputs} - made)
    own = [f"{node.name}/{name}" for node in block for name in node.op.parameters(*graph.input_shapes(node))]

    def run(*args: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        fresh = dataclasses.replace(style, moves={})
        held = dict(zip(read, args[: len(read)], strict=True))
        write(graph, block, fresh, held, dict(zip(own, args[len(read) :], strict=True)))
        return held[block[-1].name], fresh.moves

    names: list[str] = []
    result, *moved = _forgetful(run, names)(*(values[name] for name in read), *(parameters[name] for name in own))
    style.moves.update(zip(names, moved, strict=True))
    return result


def _forgetful(run: Run, names: list[str]) -> Callable[..., Sequence[Tensor]]:
    """The block as one operation, with statistics as further results under `names`.

    Not `tf.recompute_grad`: that leaves it to the runtime when to compute again. Here the gradient must be there first,
    which also keeps the optimiser from taking the second time for the first, and it is handed on when the block has all
    of its own: a runtime with one thread for operations follows it to the first block before it turns to the gradients
    of weights, and until then every block would hold what they need.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def block(*args: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., list[Any]]]:
        result, moves = run(*args)
        names[:] = list(moves)
        return (result, *moves.values()), partial(_backward, run, args)

    made: Callable[..., Sequence[Tensor]] = block
    return made


def _backward(run: Run, args: Sequence[Tensor], gradient: Tensor, *_: Tensor) -> list[Any]:
    with tf.control_dependencies([gradient]):
        again = [tf.identity(each, AGAIN) for each in args]
    result, _moves = run(*again)
    places = [place for place, each in enumerate(again) if each.dtype.is_floating]
    found = tf.gradients(result, [again[place] for place in places], gradient, unconnected_gradients="zero")
    with tf.control_dependencies(found):
        by_place = {place: tf.identity(each) for place, each in zip(places, found, strict=True)}
    return [by_place.get(place) for place in range(len(args))]
