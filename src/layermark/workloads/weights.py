"""Where the parameters of a task come from: drawn, drawn and calibrated, or read from a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from layermark import cache
from layermark.graph import Graph
from layermark.laws import random_generator

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Array = np.ndarray[Any, Any]
    Weights = dict[str, Array]

_CACHE_BYTES = 256 << 20


class InitialWeights(Protocol):
    """Anything that can give a graph its parameters, the same in every process."""

    def weights(self, names: Collection[str] | None = None) -> Weights:
        """The initial parameters under their canonical names; of all there are, or of some."""
        ...


@dataclass(frozen=True)
class Seeded:
    """Every parameter drawn from its own law."""

    graph: Graph
    seed: int

    def weights(self, names: Collection[str] | None = None) -> Weights:
        """Values that depend on seed and name only."""
        return {
            name: parameter.law.draw(random_generator(self.seed, "weight", name), parameter.shape)
            for name, parameter in self.graph.parameters.items()
            if names is None or name in names
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

    def weights(self, names: Collection[str] | None = None) -> Weights:
        """Seeded values, scaled, with statistics that were seen."""
        found = {name: each for name, each in self._calibration().items() if names is None or name in names}
        drawn = Seeded(self.graph_of(1), self.seed).weights(names)
        # A file holds one number for a tensor that is scaled, and statistics as they are.
        return drawn | {name: each if each.ndim else drawn[name] * each for name, each in found.items()}

    def _calibration(self) -> Weights:
        import numpy

        path = cache.folder("calibration") / f"{self._key()}.npz"
        if not path.exists():
            self._calibrate(path)
        with numpy.load(path, allow_pickle=False) as file:
            return dict(file)

    def _calibrate(self, path: Path) -> None:
        """Make the pass, once for all ranks that ask for it at the same time."""
        cache.make_room(path.parent, _CACHE_BYTES)
        from layermark.workloads.calibration import calibration

        with cache.alone(path):
            if not path.exists():
                _write(path, calibration(self.graph_of, self.seed))

    def _key(self) -> str:
        doc = {"seed": self.seed, "code": cache.code_version(), **self.identity}
        return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()[:24]


def _write(path: Path, arrays: Weights) -> None:
    import numpy

    with cache.whole(path) as part, part.open("wb") as file:
        numpy.savez(file, **arrays)  # type: ignore[arg-type]
