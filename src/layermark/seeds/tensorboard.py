"""An event file that TensorBoard opens, written without TensorFlow: records, checksums and three small messages."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from layermark.graph import Graph, Node
from layermark.laws import Shape

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
_FLOAT = 1  # DT_FLOAT


class Drawn(NamedTuple):
    """A node as TensorBoard draws it."""

    name: str
    kind: str
    inputs: Sequence[str] = ()
    shape: Shape = ()


def write_events(nodes: Iterable[Drawn], folder: Path) -> Path:
    """Write a graph into a new event file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}"
    stamp = _tag(1, 1) + struct.pack("<d", now)
    graph_def = b"".join(_bytes(1, _fields(*each)) for each in nodes)
    events = [stamp + _bytes(3, b"brain.Event:2"), stamp + _bytes(4, graph_def)]
    path.write_bytes(b"".join(map(record, events)))
    return path


def drawn(graph: Graph) -> Iterator[Drawn]:
    """Parameters, then nodes with what they read and the shapes that they give."""
    for name, parameter in graph.parameters.items():
        yield Drawn(name, "Variable", (), parameter.shape)
    for node in graph:
        own = [f"{node.name}/{name}" for name in node.op.parameters(*graph.input_shapes(node))]
        inputs = [*(_name(graph.by_name[each], graph) for each in node.inputs), *own]
        yield Drawn(_name(node, graph), type(node.op).__name__, inputs, graph.shapes[node.name])


def _name(node: Node, graph: Graph) -> str:
    """A node below which parameters lie is a scope; its operation gets a name of its own there."""
    return f"{node.name}/{node.name}" if node.op.parameters(*graph.input_shapes(node)) else node.name


def _fields(name: str, kind: str, inputs: Iterable[str], shape: Shape) -> bytes:
    attributes = {"dtype": _tag(6, 0) + _varint(_FLOAT), "_output_shapes": _bytes(1, _bytes(7, _shape(shape)))}
    return b"".join(
        [
            _bytes(1, name.encode()),
            _bytes(2, kind.encode()),
            *(_bytes(3, each.encode()) for each in inputs),
            *(_bytes(5, _bytes(1, key.encode()) + _bytes(2, value)) for key, value in attributes.items()),
        ]
    )


def _shape(shape: Shape) -> bytes:
    return b"".join(_bytes(2, _tag(1, 0) + _varint(size)) for size in shape)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _bytes(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def record(content: bytes) -> bytes:
    """A TFRecord: length and content, each followed by its masked checksum."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked(length)) + content + struct.pack("<I", masked(content))


def masked(content: bytes) -> int:
    """The masked CRC-32C of some bytes."""
    found = crc32c(content)
    return ((found >> 15 | found << 17) + _MASK) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table, found = _table(), 0xFFFFFFFF
    for byte in content:
        found = table[(found ^ byte) & 0xFF] ^ found >> 8
    return found ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ _POLYNOMIAL * (value & 1)
        return value

    return tuple(map(entry, range(256)))
