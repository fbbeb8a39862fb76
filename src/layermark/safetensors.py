"""Files of named arrays in the safetensors format: a length, a JSON header, then the bytes of the arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from layermark import cache
from layermark.errors import UserError
from layermark.laws import Shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SUFFIX = ".safetensors"

# The types that a file may hold, as NumPy calls them; bfloat16 is the upper half of a float32.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
_KINDS = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "u1": "U8", "b1": "BOOL"}


class Entry(NamedTuple):
    """Where one array of a file is."""

    kind: str
    shape: Shape
    begin: int
    end: int


def header(path: Path) -> dict[str, Entry]:
    """Return where the arrays of a file are; nothing of their contents is read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if not 2 <= length <= size - 8:
                raise ValueError("the header does not fit into the file")
            doc = json.loads(file.read(length))
        return {name: _entry(facts, 8 + length, size) for name, facts in doc.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path.name} as safetensors: {error}") from None


def _entry(facts: Mapping[str, Any], start: int, size: int) -> Entry:
    begin, end = (start + int(each) for each in facts["data_offsets"])
    kind, shape = facts["dtype"], tuple(int(each) for each in facts["shape"])
    if kind not in _TYPES:
        raise ValueError(f"type {kind} is not known")
    if begin > end or end > size:
        raise ValueError("the file is cut short")
    return Entry(kind, shape, begin, end)


def array(data: Array, entry: Entry) -> Array:
    """Return one array of a file's bytes in its own type; bfloat16, which NumPy lacks, as float32."""
    values = data[entry.begin : entry.end].view(_TYPES[entry.kind])
    if entry.kind == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values.reshape(entry.shape)


def read(path: Path) -> dict[str, Array]:
    """Return every array of a file, copied into memory."""
    import numpy

    entries = header(path)
    data = numpy.fromfile(path, "u1")
    return {name: array(data, entry).copy() for name, entry in entries.items()}


def chunks(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file: the header, then every array in its own type, one at a time."""
    import numpy

    doc: dict[str, Any] = {}
    place = 0
    for name, values in arrays.items():
        end = place + values.nbytes
        doc[name] = {"dtype": _kind(name, values), "shape": list(values.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(doc).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for values in arrays.values():
        little = numpy.asarray(values, values.dtype.newbyteorder("<"))
        yield numpy.ascontiguousarray(little).reshape(-1).view("u1").data


def _kind(name: str, values: Array) -> str:
    kind = _KINDS.get(values.dtype.str.lstrip("<>|="))
    if kind is None:
        raise UserError(f"{name} has the type {values.dtype}; a safetensors file holds {', '.join(_TYPES)}")
    return kind


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Write a file that appears whole or not at all."""
    with cache.whole(path) as part, part.open("wb") as file:
        write_to(file, dict(arrays))


def write_to(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write all arrays to an open file."""
    for chunk in chunks(arrays):
        file.write(chunk)
