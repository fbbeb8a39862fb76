"""Checkpoints: files of arrays under the names that torchvision or timm give them, brought into a graph by name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layermark import cache, ops, safetensors
from layermark.errors import UserError, shortened
from layermark.graph import Graph
from layermark.laws import Shape
from layermark.safetensors import Entry

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SUFFIX = safetensors.SUFFIX
PICKLES = (".pth", ".pt", ".bin")
"""Files that only PyTorch's weights-only loader reads, in a worker; it writes them out as safetensors."""

_NORM_WORDS = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}
_IGNORED = "num_batches_tracked"
_SECTIONS, _STATE = ("weights/", "statistics/"), "optimiser/"
"""How the arrays of a training run's own checkpoints begin; the optimiser's are nobody's weights."""
_NAMED = 6
"""How many names of a kind an error lists."""


@dataclass(frozen=True)
class Loaded:
    """Parameters from a checkpoint."""

    graph: Graph
    path: str

    def weights(self, names: Collection[str] | None = None) -> dict[str, Array]:
        """Every parameter of the graph, or some of them, in its canonical layout, as float32."""
        import numpy

        place = readable(self.path)
        entries = safetensors.header(place)
        data = numpy.memmap(place, "u1", "r")
        found = {}
        for name, source in fitted(self.graph, {key: each.shape for key, each in entries.items()}, self.path).items():
            if names is None or name in names:
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
        fitted(graph, {name: each.shape for name, each in safetensors.header(place).items()}, path)


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
            left += [key] * (not key.endswith(_IGNORED) and not key.startswith(_STATE))
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
    own = next((key.removeprefix(each) for each in _SECTIONS if key.startswith(each)), key)
    if own in graph.parameters:
        return own
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


def _array(data: Array, entry: Entry) -> Array:
    import numpy

    return numpy.array(safetensors.array(data, entry), "float32")


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """A safetensors file of float32 arrays; it appears whole or not at all."""
    safetensors.write(path, ((name, values.astype("<f4", copy=False)) for name, values in arrays))
