"""Batches in order, made ahead of time by processes that share memory with the one that uses them."""

from __future__ import annotations

import math
import multiprocessing
import signal
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np

from layermark.data.base import Array, BadData
from layermark.data.pipeline import Pipeline, Tally
from layermark.errors import WorkerFailed

_CONTEXT = multiprocessing.get_context("spawn")
"""A process that holds a framework's threads must not be forked."""
_CHUNK = struct.Struct("<5q")
_LARGEST_CHUNK = 32
_GRACE_S = 2.0


class Batch(NamedTuple):
    """Pictures `[batch, channels, height, width]` and their labels; valid until the next batch is taken."""

    pictures: Array
    labels: Array


class Loader(ABC):
    """An endless stream of batches. `restart` goes back to the first."""

    def __init__(self, pipeline: Pipeline, batch_size: int) -> None:
        self.pipeline, self.batch_size = pipeline, batch_size
        self.tally = Tally()
        self.wait_ns = 0
        self.batches = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter_ns()
        batch = self._take()
        self.wait_ns += time.perf_counter_ns() - began
        self.batches += 1
        return batch

    def counters(self) -> dict[str, float]:
        """Sums since the beginning: seconds of every stage and of waiting, batches, pictures, bad samples."""
        tally = self.tally
        return {
            "read_s": tally.read / 1e9,
            "decode_s": tally.decode / 1e9,
            "preprocess_s": tally.preprocess / 1e9,
            "loader_wait_s": self.wait_ns / 1e9,
            "loader_batches": float(self.batches),
            "pictures": float(tally.pictures),
            "bad": float(len(tally.bad)),
        }

    @abstractmethod
    def _take(self) -> Batch:
        """The next batch."""

    @abstractmethod
    def restart(self) -> None:
        """Go back to the first batch."""

    def close(self) -> None:
        """End the processes."""


class Inline(Loader):
    """Makes every batch when it is asked for, in the same process."""

    def __init__(self, pipeline: Pipeline, batch_size: int) -> None:
        super().__init__(pipeline, batch_size)
        self._batch = Batch(pipeline.preprocess.empty(batch_size), np.zeros(batch_size, "int32"))
        self._next = 0

    def _take(self) -> Batch:
        self.pipeline.fill(*self._batch, self._next * self.batch_size, self.tally)
        self._next += 1
        return self._batch

    def restart(self) -> None:
        """Go back to the first batch."""
        self._next = 0


class _Chunk(NamedTuple):
    """Rows of a slot for a process to fill; those of an older generation are no longer wanted."""

    generation: int
    slot: int
    row: int
    rows: int
    position: int


@dataclass
class _Slot:
    """Memory for one batch, and how many of its chunks are still being made."""

    batch: Batch
    missing: int = 0
    problem: BadData | None = None


class Ahead(Loader):
    """Processes fill slots of shared memory in order; each batch is split so that all of them work on it."""

    def __init__(self, pipeline: Pipeline, batch_size: int, *, workers: int, prefetch: int = 0, chunk: int = 0) -> None:
        super().__init__(pipeline, batch_size)
        share = min(_LARGEST_CHUNK, math.ceil(batch_size / workers))
        self._chunk = min(batch_size, chunk or share)
        ahead = prefetch or max(2, math.ceil(2 * workers / batch_size))
        memory, size = pipeline.preprocess.batch_bytes(batch_size), batch_size * 4
        self._memory = [(_CONTEXT.RawArray("B", memory), _CONTEXT.RawArray("B", size)) for _ in range(ahead + 1)]
        self._slots = [_Slot(_view(pipeline, batch_size, each)) for each in self._memory]
        self._generation = _CONTEXT.RawValue("L", 0)
        self._lines, self._processes = self._hire(workers)
        self._begin()

    def _hire(self, workers: int) -> tuple[list[Connection], list[Any]]:
        """Every process takes tasks from one socket, a whole one at a time, and answers on a pipe of its own."""
        self._tasks, tasks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lines, processes = [], []
        for _ in range(workers):
            line, theirs = _CONTEXT.Pipe(duplex=False)
            given = (self.pipeline, self.batch_size, self._memory, self._generation, tasks, theirs)
            process = _CONTEXT.Process(target=_serve, args=given, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of its line
            lines.append(line)
            processes.append(process)
        tasks.close()
        return lines, processes

    def _begin(self) -> None:
        self._sent = self._given = 0
        for _ in self._slots[:-1]:
            self._send()

    def _send(self) -> None:
        """Order the next batch, chunk by chunk."""
        number = self._sent
        slot = self._slots[number % len(self._slots)]
        rows = range(0, self.batch_size, self._chunk)
        slot.missing, slot.problem = len(rows), None
        for row in rows:
            count = min(self._chunk, self.batch_size - row)
            chunk = _Chunk(
                self._generation.value, number % len(self._slots), row, count, number * self.batch_size + row
            )
            try:
                self._tasks.send(_CHUNK.pack(*chunk))
            except (BrokenPipeError, ConnectionResetError):  # nobody is left to take it
                raise WorkerFailed(self._death(self._lines[0])) from None
        self._sent += 1

    def _take(self) -> Batch:
        self._send()  # the slot that was taken last is free again
        slot = self._slots[self._given % len(self._slots)]
        self._until(lambda: not slot.missing)
        if slot.problem is not None:
            raise slot.problem
        self._given += 1
        return slot.batch

    def restart(self) -> None:
        """Go back to the first batch; what was made ahead is thrown away."""
        if self._given == 0:
            return
        self._generation.value += 1
        self._until(lambda: not any(slot.missing for slot in self._slots))
        self._begin()

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            for line in wait(self._lines):
                self._receive(line)

    def _receive(self, line: Any) -> None:
        try:
            slot, tally, problem = line.recv()
        except EOFError:
            raise WorkerFailed(self._death(line)) from None
        self.tally.add(tally)
        self._slots[slot].missing -= 1
        self._slots[slot].problem = self._slots[slot].problem or problem

    def _death(self, line: Any) -> str:
        process = self._processes[self._lines.index(line)]
        process.join(_GRACE_S)
        status = process.exitcode
        if status is not None and status < 0:
            return f"a loader process was killed by signal {signal.Signals(-status).name}"
        return f"a loader process ended with status {status}"

    def close(self) -> None:
        """End the processes."""
        self._tasks.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_GRACE_S)


def loader(pipeline: Pipeline, batch_size: int, *, workers: int, prefetch: int = 0, chunk: int = 0) -> Loader:
    """A loader with so many processes; with none, batches are made when they are asked for."""
    if workers == 0:
        return Inline(pipeline, batch_size)
    return Ahead(pipeline, batch_size, workers=workers, prefetch=prefetch, chunk=chunk)


def _view(pipeline: Pipeline, batch_size: int, memory: tuple[Any, Any]) -> Batch:
    pictures, labels = memory
    return Batch(pipeline.preprocess.empty(batch_size, memoryview(pictures)), np.frombuffer(labels, "int32"))


def _serve(
    pipeline: Pipeline, batch_size: int, memory: list[Any], generation: Any, tasks: socket.socket, line: Any
) -> None:
    """The life of a loader process: it ends with the socket that tasks come from."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    slots = [_view(pipeline, batch_size, each) for each in memory]
    while task := tasks.recv(_CHUNK.size):
        chunk = _Chunk(*_CHUNK.unpack(task))
        tally, problem = Tally(), None
        if chunk.generation == generation.value:
            problem = _fill(pipeline, slots[chunk.slot], chunk, tally)
        line.send((chunk.slot, tally, problem))


def _fill(pipeline: Pipeline, batch: Batch, chunk: _Chunk, tally: Tally) -> BadData | None:
    rows = slice(chunk.row, chunk.row + chunk.rows)
    try:
        pipeline.fill(batch.pictures[rows], batch.labels[rows], chunk.position, tally)
    except BadData as problem:
        return problem
    return None
