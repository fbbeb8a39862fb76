"""Batch norms folded into the convolutions and dense layers before them, as an expert does before quantising."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from layermark.graph import Graph, Node
from layermark.ops import Conv2d, Dense, Norm

Array = np.ndarray[Any, Any]


def folded(graph: Graph, weights: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The same function with fewer norms, and its parameters; what is folded away stays as a node that does nothing."""
    nodes, held = dict(graph.by_name), dict(weights)
    for node in graph:
        into = graph.folds_into(node)
        if into is None or not isinstance(node.op, Norm) or node.op.training:
            continue
        nodes[into.name], nodes[node.name] = _with_bias(into), replace(node, op=Norm("none"))
        held |= _products(held, into.name, node.name, node.op.epsilon)
    whole = replace(graph, nodes=tuple(nodes.values()))
    return whole, {name: held[name] for name in whole.parameters}


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
