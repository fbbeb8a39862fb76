"""Checkpoints: files of arrays under the names that torchvision or timm give them, brought into a graph by name."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from layermark import cache, ops
from layermark.errors import UserError, shortened
from layermark.graph import Graph
from layermark.laws import Shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SUFFIX = ".safetensors"
PICKLES = (".pth", ".pt", ".bin")
"""Files that only PyTorch's weights-only loader reads, in a worker; it writes them out as safetensors."""

# The types that a file may hold, as NumPy calls them; bfloat16 is the upper half of a float32.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
_NORM_WORDS = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}
_IGNORED = "num_batches_tracked"
_NAMED = 6
"""How many names of a kind an error lists."""


class Entry(NamedTuple):
    """Where one array of a file is."""

    kind: str
    shape: Shape
    begin: int
    end: int


@dataclass(frozen=True)
class Loaded:
    """Parameters from a checkpoint."""

    graph: Graph
    path: str

    def weights(self) -> dict[str, Array]:
        """Every parameter of the graph in its canonical layout, as float32."""
        import numpy

        place = readable(self.path)
        entries = header(place)
        data = numpy.memmap(place, "u1", "r")
        found = {}
        for name, source in fitted(self.graph, {key: each.shape for key, each in entries.items()}, self.path).items():
            found[name] = _shaped(_array(data, entries[source]), self.graph.parameters[name].shape)
        return found


def check(graph: Graph, path: str) -> None:
    """Refuse a checkpoint that does not fit; of one that PyTorch has yet to read, only whether it is there."""
    if not Path(path).is_file():
        raise UserError(f"--weights {path}: no such file; expected a checkpoint that ends in {SUFFIX} or .pth")
    if Path(path).suffix not in (SUFFIX, *PICKLES):
        raise UserError(f"--weights {path}: expected a file that ends in {SUFFIX} or {', '.join(PICKLES)}")
    place = readable(path)
    if place.exists():
        fitted(graph, {name: each.shape for name, each in header(place).items()}, path)


def readable(path: str) -> Path:
    """The safetensors file behind a checkpoint: itself, or what a worker makes of it."""
    if Path(path).suffix == SUFFIX:
        return Path(path)
    return cache.folder("checkpoints") / f"{digest(path)}{SUFFIX}"


def digest(path: str) -> str:
    """A name for what a file holds."""
    facts = Path(path).stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns)


@remembered
def _digest(path: str, size: int, changed_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:24]


def fitted(graph: Graph, shapes: Mapping[str, Shape], path: str) -> dict[str, str]:
    """Which array of the file each parameter takes, or an error that names what is missing, left over or misshapen."""
    found: dict[str, str] = {}
    left, misshapen = [], []
    for key, shape in shapes.items():
        name = _parameter(graph, key)
        if name is None:
            left += [key] * (not key.endswith(_IGNORED))
        elif not _fits(shape, graph.parameters[name].shape):
            misshapen.append(f"{key} {list(shape)} instead of {list(graph.parameters[name].shape)}")
        else:
            found[name] = key
    missing = [_spelled(graph, name) for name in graph.parameters if name not in found] if not misshapen else []
    troubles = {"missing": missing, "left over": left, "of another shape": misshapen}
    told = "; ".join(f"{kind}: {shortened(names, _NAMED)}" for kind, names in troubles.items() if names)
    if told:
        raise UserError(f"--weights {path} does not fit: {told}")
    return found


def _parameter(graph: Graph, key: str) -> str | None:
    """The parameter that a name of any vocabulary means: dots part modules, the last word is the tensor."""
    *modules, word = key.removeprefix("module.").split(".")
    node = "/".join(modules)
    node = graph.aliases.get(node, node)
    if node in graph.by_name and isinstance(graph.by_name[node].op, ops.Norm):
        word = _NORM_WORDS.get(word, word)
    name = f"{node}/{word}"
    return name if name in graph.parameters else None


def _spelled(graph: Graph, name: str) -> str:
    node, _, word = name.rpartition("/")
    words = {own: theirs for theirs, own in _NORM_WORDS.items()}
    word = words.get(word, word) if isinstance(graph.by_name[node].op, ops.Norm) else word
    return f"{node.replace('/', '.')}.{word}"


def _fits(received: Shape, wanted: Shape) -> bool:
    """A 1x1 convolution may stand for a dense layer, and a kernel may lack the channel of zeros."""
    plain = _without_ones(received, len(wanted))
    return plain == wanted or (len(wanted) == 4 and wanted[1] == 4 and plain == (wanted[0], 3, *wanted[2:]))


def _without_ones(shape: Shape, rank: int) -> Shape:
    return shape[:rank] if set(shape[rank:]) <= {1} else shape


def _shaped(values: Array, wanted: Shape) -> Array:
    import numpy

    if values.size == math.prod(wanted):
        return values.reshape(wanted)
    return numpy.concatenate([values, numpy.zeros_like(values[:, :1])], axis=1)


def header(path: Path) -> dict[str, Entry]:
    """The arrays of a safetensors file; nothing of their contents is read."""
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


def _array(data: Array, entry: Entry) -> Array:
    import numpy

    values = data[entry.begin : entry.end].view(_TYPES[entry.kind])
    if entry.kind == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return numpy.array(values, "float32").reshape(entry.shape)


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """A safetensors file of float32 arrays; it appears whole or not at all."""
    doc, place, parts = {}, 0, []
    for name, values in arrays:
        raw = values.astype("<f4").tobytes()
        doc[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [place, place + len(raw)]}
        place += len(raw)
        parts.append(raw)
    text = json.dumps(doc).encode()
    text += b" " * (-len(text) % 8)
    with cache.whole(path) as part, part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(parts)
