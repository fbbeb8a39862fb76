"""What walks the ring of inputs: batch after batch here, several at a time in the runtimes' own packages."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from layermark.backends._onnx.writer import Array
from layermark.backends.base import Timeline, one_by_one
from layermark.timing import Step

FILLS = 4
"""A call of a program with several batches in flight has so many times more: it is full for most of the call."""


class Runner(ABC):
    """Runs batches of the ring; `last` is the place of the batch that ran last, if any did."""

    @property
    def least(self) -> int:
        """How many batches a call must have to be worth timing."""
        return 1

    @property
    def seamless(self) -> bool:
        """Whether one call of many batches is the same as many calls."""
        return False

    def close(self) -> None:
        """Let go of what it holds."""

    @abstractmethod
    def run(self, batches: int) -> Timeline:
        """Run the next batches and return when all are finished."""

    @abstractmethod
    def rewind(self) -> None:
        """Begin again at the first input."""

    @property
    @abstractmethod
    def last(self) -> int | None:
        """Which input ran last."""


class SequentialRunner(Runner):
    """One step per input, each finished when it returns; an evictor is overwritten before every batch, untimed."""

    def __init__(self, steps: Sequence[Step], evictor: Array | None) -> None:
        self._steps, self._evictor = steps, evictor
        self.rewind()

    @property
    def seamless(self) -> bool:
        """Whether nothing is done between batches."""
        return self._evictor is None

    def run(self, batches: int) -> Timeline:
        """Run the next batches, after something else has filled the caches if there is an evictor."""
        self._done += batches
        if self._evictor is not None:
            return self._run_cold(batches, self._evictor)
        return one_by_one(self._ring, batches, time.perf_counter_ns)[0]

    def _run_cold(self, batches: int, evictor: Array) -> Timeline:
        handed_over, done = [], []
        for step in itertools.islice(self._ring, batches):
            np.add(evictor, 1, out=evictor)
            handed_over.append(time.perf_counter_ns())
            step()
            done.append(time.perf_counter_ns())
        return Timeline(handed_over, done)

    def rewind(self) -> None:
        """Begin again at the first input."""
        self._ring: Iterator[Step] = itertools.cycle(self._steps)
        self._done = 0

    @property
    def last(self) -> int | None:
        """Which input ran last."""
        return (self._done - 1) % len(self._steps) if self._done else None
