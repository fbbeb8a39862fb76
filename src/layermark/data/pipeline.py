"""Read, decode, preprocess: what one process does to fill rows of a batch, with the time of each stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from layermark.data.base import Array, BadData, Sample, Source
from layermark.data.cache import Cache
from layermark.data.order import Order
from layermark.data.preprocess import Preprocess

STAGES = ("read", "decode", "preprocess")
_MOST_IN_A_ROW = 1000
"""So many bad samples one after the other are no accident."""


@dataclass
class Tally:
    """What filling rows took: nanoseconds of every stage, how many pictures, and which samples were bad."""

    read: int = 0
    decode: int = 0
    preprocess: int = 0
    pictures: int = 0
    bad: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Count this in."""
        self.read += other.read
        self.decode += other.decode
        self.preprocess += other.preprocess
        self.pictures += other.pictures
        self.bad |= other.bad


@dataclass
class Pipeline:
    """Turns positions of the stream into rows of a batch.

    With `skip_bad` a bad sample is replaced by the next good one, so that batches stay whole and are the same
    whichever process makes them. Samples that were read are kept in `cache`, if there is one.
    """

    source: Source
    order: Order
    preprocess: Preprocess
    skip_bad: bool = False
    cache: Cache | None = None

    def fill(self, pictures: Array, labels: Array, first: int, tally: Tally) -> None:
        """Fill these rows with the samples from position `first` on."""
        for row in range(len(labels)):
            position = first + row
            labels[row] = self._row(position, pictures[row], tally)

    def _row(self, position: int, out: Array, tally: Tally) -> int:
        index = self.order.sample(position)
        for step in range(min(_MOST_IN_A_ROW, len(self.source))):
            try:
                return self._timed((index + step) % len(self.source), position, out, tally)
            except BadData as problem:
                if not self.skip_bad:
                    raise
                tally.bad[problem.where] = problem.reason
                last = problem
        raise BadData(last.where, f"{last.reason}; no sample near it is good")

    def _timed(self, index: int, position: int, out: Array, tally: Tally) -> int:
        began = time.perf_counter_ns()
        sample = self._read(index)
        read = time.perf_counter_ns()
        pixels = sample.decode()
        decoded = time.perf_counter_ns()
        self.preprocess.write(pixels, sample, position, out)
        done = time.perf_counter_ns()
        tally.read += read - began
        tally.decode += decoded - read
        tally.preprocess += done - decoded
        tally.pictures += 1
        return sample.label

    def _read(self, index: int) -> Sample:
        if self.cache is None:
            return self.source.read(index)
        sample = self.cache.get(index)
        if sample is None:
            sample = self.source.read(index)
            self.cache.put(index, sample)
        return sample
