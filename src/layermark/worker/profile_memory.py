"""Memory over a pass and what is alive at its peak: as the runtime's allocator told, or derived from the graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from layermark import ops
from layermark.graph import Graph, Node

POINTS, SHOWN = 120, 20

_VIEWS = (ops.Flatten,)
_NOTHING_TO_INFER = (ops.Dropout, ops.StochasticDepth)


class Buffer(NamedTuple):
    """A piece of memory, from the moment that makes it to the last one that needs it."""

    name: str
    size: int
    first: int
    last: int


def told(points: Sequence[Sequence[float]], alive: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the liveness that an allocator told: pairs of seconds and bytes, and whose memory it was at the peak."""
    return _document("allocator", "s", points, alive)


def derived(graph: Graph, mode: str, item_bytes: int) -> dict[str, Any]:
    """Return the liveness that follows from the graph: every value from its node to its last reader, in order.

    The moments are the nodes in their order; in training then once more, backwards. It knows neither what a runtime
    fuses nor what it writes in place, so that it is the same on every runtime. Weights and inputs are not counted.
    """
    buffers = list((_training if mode == "train" else _inference)(graph, item_bytes))
    moments = len(graph.nodes) * (2 if mode == "train" else 1)
    held = [sum(each.size for each in buffers if each.first <= at <= each.last) for at in range(moments)]
    peak = max(range(moments), key=held.__getitem__)
    sizes = {each.name: each.size for each in buffers if each.first <= peak <= each.last and each.size}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:SHOWN]
    alive = [{"node": name, "bytes": size} for name, size in largest]
    return _document("graph", "node", list(enumerate(held)), alive)


def _document(
    source: str, unit: str, points: Sequence[Sequence[float]], alive: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    at, most = max(points, key=lambda point: point[1])
    shown = [[float(f"{x:.6g}"), int(held)] for x, held in thinned(points)]
    head = {"source": source, "unit": unit, "peak_bytes": int(most), "peak_at": float(f"{at:.6g}")}
    return {**head, "points": shown, "alive": list(alive)}


def thinned(points: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return few enough points to draw; of neighbours the highest stays, so that the peak does.

    >>> len(thinned([(x, x % 7) for x in range(1000)])), max(y for _, y in thinned([(x, x) for x in range(1000)]))
    (112, 999)
    """
    stride = math.ceil(len(points) / POINTS)
    heaps = (points[start : start + stride] for start in range(0, len(points), stride))
    return [max(each, key=lambda point: point[1]) for each in heaps]


def _inference(graph: Graph, item_bytes: int) -> Iterator[Buffer]:
    place, owners = _places(graph), _owners(graph, (*_VIEWS, *_NOTHING_TO_INFER))
    for node in _made(graph, owners):
        readers = [place[each.name] for each in graph if any(owners[name] == node.name for name in each.inputs)]
        kept = any(owners[name] == node.name for name in graph.outputs)
        last = len(place) - 1 if kept else max([place[node.name], *readers])
        yield Buffer(node.name, _size(graph, node, item_bytes), place[node.name], last)


def _training(graph: Graph, item_bytes: int) -> Iterator[Buffer]:
    """Values wait for the backward pass of their first reader; gradients live from their last reader's to their own."""
    place, owners = _places(graph), _owners(graph, _VIEWS)
    end = 2 * len(place) - 1
    for node in _made(graph, owners):
        readers = [place[each.name] for each in graph if any(owners[name] == node.name for name in each.inputs)]
        own, size = end - place[node.name], _size(graph, node, item_bytes)
        yield Buffer(node.name, size, place[node.name], end - min(readers, default=place[node.name]))
        yield Buffer(f"gradient of {node.name}", size, end - max(readers, default=place[node.name]), own)
        yield Buffer(f"gradients of the weights of {node.name}", _weights(graph, node) * item_bytes, own, end)


def _places(graph: Graph) -> dict[str, int]:
    return {node.name: place for place, node in enumerate(graph)}


def _owners(graph: Graph, views: tuple[type[ops.Op], ...]) -> dict[str, str]:
    """Whose memory the value of each node is in: a view has none of its own."""
    found: dict[str, str] = {}
    for node in graph:
        found[node.name] = found[node.inputs[0]] if isinstance(node.op, views) and node.inputs else node.name
    return found


def _made(graph: Graph, owners: Mapping[str, str]) -> Iterator[Node]:
    return (node for node in graph if owners[node.name] == node.name and not isinstance(node.op, ops.Input))


def _size(graph: Graph, node: Node, item_bytes: int) -> int:
    return item_bytes * math.prod(graph.shapes[node.name])


def _weights(graph: Graph, node: Node) -> int:
    return sum(each.count for name, each in graph.parameters.items() if name.rpartition("/")[0] == node.name)
