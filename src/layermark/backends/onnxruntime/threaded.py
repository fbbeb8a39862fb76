"""Several batches at a time: threads that each run a batch by themselves, on one session without a pool."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple

import numpy as np

from layermark.backends._onnx.runners import FILLS, Runner
from layermark.backends._onnx.writer import Array
from layermark.backends.base import Timeline
from layermark.timing import Step

Stamp = tuple[int, int, int]
"""The number of a batch, when it was handed over and when it was done."""


class BoundCall(NamedTuple):
    """How a caller runs a batch; what a loader makes is taken first, one at a time, so that it comes in order."""

    run: Step
    take: Step | None = None


class ThreadedRunner(Runner):
    """As many threads as callers; whoever is free takes the next batch. Each has its own calls, one per input."""

    def __init__(self, callers: Sequence[Sequence[BoundCall]], evictor: Array | None) -> None:
        self._callers, self._evictor, self._turn = callers, evictor, Lock()
        # New threads take over how the thread that starts them treats subnormal numbers.
        self._pool = ThreadPoolExecutor(len(callers), thread_name_prefix="caller")
        self._done = 0
        self._last: int | None = None

    def run(self, batches: int) -> Timeline:
        """Hand the next batches out and sleep until all are finished."""
        if self._evictor is not None:
            np.add(self._evictor, 1, out=self._evictor)
        end = self._done + batches
        numbers = iter(range(self._done, end))
        work = [self._pool.submit(_work, calls, numbers, self._turn) for calls in self._callers]
        stamps = sorted((*stamp, caller) for caller, each in enumerate(work) for stamp in each.result())
        self._done, self._last = end, stamps[-1][-1]
        return Timeline([stamp[1] for stamp in stamps], [stamp[2] for stamp in stamps])

    def rewind(self) -> None:
        """Begin again at the first input."""
        self._done, self._last = 0, None

    @property
    def last(self) -> int | None:
        """Which caller ran the last batch."""
        return self._last

    @property
    def least(self) -> int:
        """Enough for every caller to have several."""
        return FILLS * len(self._callers)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown()


def _work(calls: Sequence[BoundCall], numbers: Iterator[int], turn: Lock) -> list[Stamp]:
    """Run what nobody else has taken yet."""
    clock = time.perf_counter_ns
    stamps: list[Stamp] = []
    while True:
        with turn:
            number = next(numbers, None)
            if number is None:
                return stamps
            call, handed_over = calls[number % len(calls)], clock()
            if call.take is not None:
                call.take()
        call.run()
        stamps.append((number, handed_over, clock()))
