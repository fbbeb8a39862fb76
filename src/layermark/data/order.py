"""In which order samples are read: the same on every machine, with any number of processes and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from layermark.data.base import Array
from layermark.errors import UserError


@dataclass(frozen=True)
class Order:
    """Positions of an endless stream to samples. Every pass over the set sees each sample once.

    With `of`, only `length` samples are used of a set of `of`: evenly spread, since sets are often sorted by class.

    >>> [Order(3).sample(position) for position in range(5)]
    [0, 1, 2, 0, 1]
    >>> [Order(2, of=10).sample(position) for position in range(3)]
    [0, 5, 0]
    """

    length: int
    shuffle: bool = False
    seed: int = 0
    of: int = 0

    def sample(self, position: int) -> int:
        """Return which sample stands at a position; after the last of a pass the next pass begins."""
        number, place = divmod(position, self.length)
        index = int(_permutation(self.length, self.seed, number)[place]) if self.shuffle else place
        return index * self.of // self.length if self.of else index


@dataclass(frozen=True)
class Shard:
    """Which batches of the stream one of several ranks takes: every `ranks`-th.

    The ranks share each pass, so together they see every sample once. What they see together does not depend on how
    many they are: 4 ranks x batch 8 take the pictures of 1 rank x 4 batches of 8.

    >>> [Shard(1, 3).position(batch, batch_size=10) for batch in range(3)]
    [10, 40, 70]
    """

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise UserError(f"rank {self.rank} of {self.ranks}: expected at least one rank, numbered from 0")

    def position(self, batch: int, batch_size: int) -> int:
        """Return where in the stream of all ranks a batch of this rank begins."""
        return (batch * self.ranks + self.rank) * batch_size


ALL = Shard()
"""The shard of a rank that is alone."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in a training stream, for a checkpoint: `asdict` writes it, `Position(**document)` reads it.

    Batch size and number of ranks may change from one run to the next, the set and the seed may not.
    """

    pictures: int = 0
    """That all ranks have taken."""
    samples: int = 0
    """In one pass over the set."""
    seed: int = 0

    def check(self, *, samples: int, seed: int) -> int:
        """Return how many pictures were taken; raise `UserError` if it was another stream."""
        if (self.samples, self.seed) != (samples, seed):
            raise UserError(
                f"the input to go on with had {self.samples} samples and seed {self.seed}, received {samples} samples "
                f"and seed {seed}; give the same --data-dir and --seed"
            )
        return self.pictures


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, number: int) -> Array:
    return np.random.default_rng([seed, number]).permutation(length)
