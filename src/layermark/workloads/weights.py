"""Where the parameters of a task come from: drawn, drawn and calibrated, or read from a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from layermark import cache
from layermark.graph import Graph
from layermark.laws import stream

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Array = np.ndarray[Any, Any]
    Weights = dict[str, Array]

_CACHE_BYTES = 256 << 20


class Source(Protocol):
    """Anything that can give a graph its parameters, the same in every process."""

    def weights(self) -> Weights:
        """The initial parameters under their canonical names."""
        ...


@dataclass(frozen=True)
class Seeded:
    """Every parameter drawn from its own law."""

    graph: Graph
    seed: int

    def weights(self) -> Weights:
        """Values that depend on seed and name only."""
        return {
            name: parameter.law.draw(stream(self.seed, "weight", name), parameter.shape)
            for name, parameter in self.graph.parameters.items()
        }


@dataclass(frozen=True)
class Calibrated:
    """Seeded parameters, brought by one reference pass to where every node's output has a variance near one.

    Deep networks of plain random weights answer every picture alike: their logits are little more than the last
    bias, and verification would be empty. The pass is made once, by whoever asks first, and cached.
    """

    graph_of: Callable[[int], Graph]
    """The network that infers, for a batch size."""
    seed: int
    identity: Mapping[str, Any]
    """What tells this network from others."""

    def weights(self) -> Weights:
        """Seeded values, scaled, with statistics that were seen."""
        found = self._calibration()
        drawn = Seeded(self.graph_of(1), self.seed).weights()
        # A file holds one number for a tensor that is scaled, and statistics as they are.
        return drawn | {name: each if each.ndim else drawn[name] * each for name, each in found.items()}

    def _calibration(self) -> Weights:
        import numpy

        path = cache.folder("calibration") / f"{self._key()}.npz"
        if not path.exists():
            cache.make_room(path.parent, _CACHE_BYTES)
            from layermark.workloads.calibration import calibration

            _write(path, calibration(self.graph_of, self.seed))
        with numpy.load(path, allow_pickle=False) as file:
            return dict(file)

    def _key(self) -> str:
        doc = {"seed": self.seed, "code": cache.code_version(), **self.identity}
        return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()[:24]


def _write(path: Path, arrays: Weights) -> None:
    import numpy

    with cache.whole(path) as part, part.open("wb") as file:
        numpy.savez(file, **arrays)  # type: ignore[arg-type]
