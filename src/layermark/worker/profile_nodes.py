"""Rows of a profile tied to the nodes of the graph, with their arithmetic and the bytes that they must move."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layermark import ops
from layermark.backends.base import OperatorTime
from layermark.graph import Graph, Node

_MOSTLY = 0.95
"""Nodes that no row names are taken for fused into others only where nearly all of the time has a node."""
_PRODUCTS = (ops.Conv2d, ops.Dense)
_MOVES = ("reorder", "transpose", "copy")
_POINTWISE = (ops.Norm, ops.Activation, ops.Add, ops.Multiply, ops.Dropout, ops.Pad)


@dataclass(frozen=True, kw_only=True)
class TiedOperator:
    """A kernel or primitive, and the node (or the nodes, where they were fused) that it works for."""

    operator: str
    calls: int
    seconds: float
    node: tuple[str, ...] = ()
    kind: str = ""
    """What the node with the most arithmetic is, such as Conv2d."""
    flops: int | None = None
    """Scalar operations of these nodes in one batch; None where they are not known, or another row has them."""
    bytes: int | None = None
    """What these nodes together must read and write in one batch."""

    def to_json(self) -> dict[str, Any]:
        """A plain document."""
        return {**vars(self), "node": list(self.node)}


def tied(
    rows: Iterable[OperatorTime], graph: Graph | None, mode: str = "infer", item_bytes: int = 4
) -> list[TiedOperator]:
    """Return the rows by node, the longest first; without a graph no row has one.

    A node is counted in the longest of its rows: a change of layout before a convolution has no arithmetic of its own.
    In training rows hold a part of a node's passes, so that neither FLOPs nor bytes are told.
    """
    names = [node.name for node in graph if not isinstance(node.op, ops.Input)] if graph else []
    found = _merged((row, nodes_of(row.names, names)) for row in rows)
    if graph is None:
        return found
    seconds = sum(row.seconds for row in found)
    if mode != "train" and sum(row.seconds for row in found if row.node) >= _MOSTLY * seconds:
        found = with_unseen(found, graph)
    found = [replace(row, kind=_kind(row.node, graph)) for row in found]
    return found if mode == "train" else _counted(found, graph, item_bytes)


def nodes_of(scopes: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes whose names are in these scopes, each scope with the longest.

    >>> nodes_of(["b0/conv1/bn/Mul", "conv1_nchwc", "other"], ["conv1", "conv1/bn"])
    ('conv1/bn', 'conv1')
    """
    known = set(names)
    found = (_node_of(scope, known) for scope in scopes)
    return tuple(dict.fromkeys(name for name in found if name))


def _node_of(scope: str, known: set[str]) -> str:
    """The longest name that stands in a scope from the beginning of a part to the end of a word.

    Some runtimes replace what they do not allow in names, and put suffixes behind `_` or `:`.
    """
    best = ""
    starts = [0, *(match.end() for match in re.finditer("/", scope))]
    for start in starts:
        ends = [match.start() for match in re.finditer(r"[/_:.]|$", scope[start:])]
        for end in reversed(ends):
            word = scope[start : start + end]
            if word in known:
                best = max(best, word, key=len)
                break
    return best


def _merged(rows: Iterable[tuple[OperatorTime, tuple[str, ...]]]) -> list[TiedOperator]:
    found: dict[tuple[str, frozenset[str]], TiedOperator] = {}
    for row, nodes in rows:
        key = row.operator, frozenset(nodes)
        known = found.get(key) or TiedOperator(operator=row.operator, calls=0, seconds=0.0, node=nodes)
        found[key] = replace(known, calls=known.calls + row.calls, seconds=known.seconds + row.seconds)
    return sorted(found.values(), key=lambda row: -row.seconds)


def with_unseen(rows: Sequence[TiedOperator], graph: Graph) -> list[TiedOperator]:
    """Add nodes that no row names to the rows that they must have been fused into.

    ONNX Runtime and TensorFlow name a fused operator after one of its nodes. A convolution or dense layer that is not
    seen is in the first row down its only way; whatever else is not seen was done where its latest input was made.
    """
    owner = {name: index for index, row in reversed(list(enumerate(rows))) for name in row.node}
    joined: dict[int, list[str]] = {}
    for node in graph:
        if node.name in owner or isinstance(node.op, ops.Input):
            continue
        index = _below(node, graph, owner) if isinstance(node.op, _PRODUCTS) else None
        index = _above(node, graph, owner) if index is None else index
        if index is not None:
            owner[node.name] = index
            joined.setdefault(index, []).append(node.name)
    order = {node.name: place for place, node in enumerate(graph)}
    return [
        replace(row, node=tuple(sorted({*row.node, *joined[index]}, key=order.__getitem__))) if index in joined else row
        for index, row in enumerate(rows)
    ]


def _below(node: Node, graph: Graph, owner: Mapping[str, int]) -> int | None:
    """The row of the first node that has one, down a way of single readers that work element by element."""
    while True:
        readers = [each for each in graph if node.name in each.inputs]
        if len(readers) != 1 or not isinstance(readers[0].op, _POINTWISE):
            return None
        node = readers[0]
        if node.name in owner:
            return owner[node.name]


def _above(node: Node, graph: Graph, owner: Mapping[str, int]) -> int | None:
    """The row that made the latest input; one with a product in it first, which is what runtimes fuse into."""
    order = {each.name: place for place, each in enumerate(graph)}
    products = {owner[each.name] for each in graph if each.name in owner and isinstance(each.op, _PRODUCTS)}
    made = [name for name in node.inputs if name in owner]
    return owner[max(made, key=lambda name: (owner[name] in products, order[name]))] if made else None


def _counted(rows: Sequence[TiedOperator], graph: Graph, item_bytes: int) -> list[TiedOperator]:
    taken: set[str] = set()
    counts: dict[int, tuple[int, int]] = {}
    # However long they take, changes of layout do nothing of a node's own work.
    for index, row in sorted(enumerate(rows), key=lambda each: each[1].operator.lower().startswith(_MOVES)):
        own = set(row.node) - taken
        taken |= own
        if own:
            counts[index] = _flops(own, graph), moved_bytes(own, graph, item_bytes)
    return [
        replace(row, flops=counts[index][0], bytes=counts[index][1]) if index in counts else row
        for index, row in enumerate(rows)
    ]


def _kind(names: Sequence[str], graph: Graph) -> str:
    heaviest = max(names, key=lambda name: _flops({name}, graph), default="")
    return type(graph.by_name[heaviest].op).__name__ if heaviest else ""


def _flops(names: set[str], graph: Graph) -> int:
    return sum(graph.by_name[name].op.flops(*graph.input_shapes(graph.by_name[name])) for name in names)


def moved_bytes(names: set[str], graph: Graph, item_bytes: int = 4) -> int:
    """Return what a set of nodes must read and write: parameters, and values that cross its border."""
    read = {name for node in names for name in graph.by_name[node].inputs} - names
    made = {
        name
        for name in names
        if name in graph.outputs or any(name in each.inputs for each in graph if each.name not in names)
    }
    held = sum(each.count for name, each in graph.parameters.items() if name.rpartition("/")[0] in names)
    return item_bytes * (held + sum(math.prod(graph.shapes[name]) for name in read | made))
