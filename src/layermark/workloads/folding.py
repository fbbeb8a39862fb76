"""Batch norms folded into the convolutions and dense layers before them, as an expert does for inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from layermark.graph import Graph, Node
from layermark.ops import Conv2d, Dense, Norm

Array = np.ndarray[Any, Any]


def folded(graph: Graph, weights: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The same function with fewer norms, and its parameters."""
    slim, held = without_norms(graph), dict(weights)
    for into, node, op in _foldable(graph):
        held |= _products(held, into.name, node.name, op.epsilon)
    return slim, {name: held[name] for name in slim.parameters}


def without_norms(graph: Graph) -> Graph:
    """The graph that norms are folded away of; each stays as a node that does nothing."""
    nodes = dict(graph.by_name)
    for into, node, _ in _foldable(graph):
        nodes[into.name], nodes[node.name] = _with_bias(into), replace(node, op=Norm("none"))
    return replace(graph, nodes=tuple(nodes.values()))


def _foldable(graph: Graph) -> Iterator[tuple[Node, Node, Norm]]:
    """Every node that takes in a norm, and that norm."""
    for node in graph:
        into = graph.folds_into(node)
        if into is not None and isinstance(node.op, Norm) and not node.op.training:
            yield into, node, node.op


def products(graph: Graph) -> list[str]:
    """The weights of convolutions and dense layers, which are what is quantised."""
    return [f"{node.name}/weight" for node in graph if isinstance(node.op, Conv2d | Dense)]


def _with_bias(node: Node) -> Node:
    assert isinstance(node.op, Conv2d | Dense)
    return replace(node, op=replace(node.op, bias=True))


def _products(held: Mapping[str, Array], into: str, norm: str, epsilon: float) -> dict[str, Array]:
    """Weight and bias that give what the norm made of the earlier ones."""
    scale, shift, mean, variance = (held[f"{norm}/{name}"] for name in ("scale", "shift", "mean", "variance"))
    factor = scale / np.sqrt(variance + np.float32(epsilon))
    weight = held[f"{into}/weight"]
    bias = held.get(f"{into}/bias", np.zeros_like(mean))
    return {
        f"{into}/weight": weight * factor.reshape(-1, *[1] * (weight.ndim - 1)),
        f"{into}/bias": (bias - mean) * factor + shift,
    }
