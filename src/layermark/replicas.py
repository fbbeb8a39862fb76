"""Replicas as plain facts: what each of several copies of a network does so that together they are one.

Micro-batches go to the replicas in turn. Gradients are averaged. Running statistics of batch norms move with every
micro-batch of a process that is alone: new = (1 - m) old + m seen. Of n replicas each moves its own with
M = 1 - (1 - m)^n, and with the update they are added up, that of replica r with the weight m (1 - m)^(n - 1 - r) / M.
These weights add up to one, and what comes out is what the process alone would have, whatever n is. Where statistics
move once an update (`together`), towards the mean of what all micro-batches have seen, every replica counts alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from layermark.graph import Graph, Node
from layermark.ops import Norm


def own_graph(graph: Graph, replicas: int, *, together: bool = False) -> Graph:
    """Return the network as one of so many replicas runs it: its running statistics move further at a time."""
    if replicas == 1 or together:
        return graph
    return replace(graph, nodes=tuple(_hastened(node, replicas) for node in graph))


def _hastened(node: Node, replicas: int) -> Node:
    if not _moves_statistics(node):
        return node
    assert isinstance(node.op, Norm)
    return replace(node, op=replace(node.op, momentum=1 - (1 - node.op.momentum) ** replicas))


def statistic_weights(graph: Graph, replicas: int, replica: int, *, together: bool = False) -> Mapping[str, float]:
    """Return what the running statistics of a replica count for, by name; `graph` is that of a process alone.

    >>> from layermark.ops import Input
    >>> norm = Node("norm", Norm("batch", momentum=0.5, training=True), ("x",))
    >>> graph = Graph((Node("x", Input((2, 3))), norm), ("norm",))
    >>> [round(statistic_weights(graph, 2, index)["norm/mean"], 4) for index in range(2)]
    [0.3333, 0.6667]
    """
    found: dict[str, float] = {}
    for node in graph:
        if _moves_statistics(node) and isinstance(node.op, Norm):
            momentum = node.op.momentum
            share = (
                1 / replicas
                if together
                else (1 - momentum) ** (replicas - 1 - replica) * momentum / (1 - (1 - momentum) ** replicas)
            )
            found |= {f"{node.name}/{name}": share for name in ("mean", "variance")}
    return found


def _moves_statistics(node: Node) -> bool:
    return isinstance(node.op, Norm) and node.op.kind == "batch" and node.op.training and node.op.momentum > 0


def turns(first: int, batches: int, replicas: int, replica: int) -> int:
    """Return how many of the batches from number `first` on are a replica's.

    >>> [turns(1, 3, 2, replica) for replica in range(2)]
    [1, 2]
    """
    begun = (first - replica + replicas - 1) // replicas
    return (first + batches - replica + replicas - 1) // replicas - begun
