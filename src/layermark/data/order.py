"""In which order samples are read: the same on every machine, with any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from layermark.data.base import Array


@dataclass(frozen=True)
class Order:
    """Positions of an endless stream to samples. One of several instances reads every n-th sample.

    >>> order = Order(5, instances=2, instance=1)
    >>> [order.sample(position) for position in range(4)]
    [1, 3, 1, 3]
    >>> list(Order(5).epoch(0, batch=2))
    [[0, 1], [2, 3], [4]]
    """

    length: int
    shuffle: bool = False
    seed: int = 0
    instances: int = 1
    instance: int = 0

    @property
    def own(self) -> int:
        """Samples that this instance reads in an epoch."""
        return max(1, len(range(self.instance, self.length, self.instances)))

    def sample(self, position: int) -> int:
        """Which sample stands at a position of the stream; after the last of an epoch the next epoch begins."""
        epoch, place = divmod(position, self.own)
        number = (place * self.instances + self.instance) % self.length
        return int(_permutation(self.length, self.seed, epoch)[number]) if self.shuffle else number

    def epoch(self, number: int, batch: int) -> Iterator[list[int]]:
        """The samples of one epoch in batches; the last may be short, and none comes twice."""
        if self.instance >= self.length:
            return
        for first in range(0, self.own, batch):
            start = number * self.own + first
            yield [self.sample(position) for position in range(start, start + min(batch, self.own - first))]


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, epoch: int) -> Array:
    return np.random.default_rng([seed, epoch]).permutation(length)
