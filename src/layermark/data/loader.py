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
from layermark.data.order import ALL, Shard
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
    """An endless stream of batches: those that fall to one rank, from any position on.

    Positions count the pictures of all ranks, so that one rank can go on where another left off.
    """

    def __init__(self, pipeline: Pipeline, batch_size: int, shard: Shard, start: int) -> None:
        self.pipeline, self.batch_size, self.shard = pipeline, batch_size, shard
        self.tally = Tally()
        self.wait_ns = 0
        self.batches = 0
        self._origin, self._taken = start, 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter_ns()
        batch = self._take()
        self.wait_ns += time.perf_counter_ns() - began
        self.batches += 1
        self._taken += 1
        return batch

    @property
    def position(self) -> int:
        """The pictures that all ranks have taken, if each has taken as many batches as this one."""
        return self._origin + self._taken * self.shard.ranks * self.batch_size

    def seek(self, position: int) -> None:
        """Go on from here, forwards or backwards; what was made ahead is thrown away if it is not wanted."""
        if position != self.position:
            self._origin, self._taken = position, 0
            self._begin_again()

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

    def _first(self, number: int) -> int:
        """The position of the first picture of a batch, counted from the origin."""
        return self._origin + self.shard.position(number, self.batch_size)

    @abstractmethod
    def _take(self) -> Batch:
        """The next batch."""

    @abstractmethod
    def _begin_again(self) -> None:
        """Forget what was made ahead and begin at the origin."""

    @abstractmethod
    def close(self) -> None:
        """End the processes."""


class Inline(Loader):
    """Makes every batch when it is asked for, in the same process."""

    def __init__(self, pipeline: Pipeline, batch_size: int, shard: Shard = ALL, *, start: int = 0) -> None:
        super().__init__(pipeline, batch_size, shard, start)
        self._batch = Batch(pipeline.preprocess.empty(batch_size), np.zeros(batch_size, "int32"))

    def _take(self) -> Batch:
        self.pipeline.fill(*self._batch, self._first(self._taken), self.tally)
        return self._batch

    def _begin_again(self) -> None:
        """Nothing was made ahead."""

    def close(self) -> None:
        """There are no processes to end."""


class _Chunk(NamedTuple):
    """Rows of a buffer for a process to fill; those of an older generation are no longer wanted."""

    generation: int
    buffer: int
    row: int
    rows: int
    position: int


@dataclass
class _Buffer:
    """Memory for one batch, and how many of its chunks are still being made."""

    batch: Batch
    missing: int = 0
    problem: BadData | None = None


class Ahead(Loader):
    """Processes fill buffers of shared memory in order; each batch is split so that all of them work on it."""

    def __init__(
        self,
        pipeline: Pipeline,
        batch_size: int,
        shard: Shard = ALL,
        *,
        workers: int,
        prefetch: int = 0,
        chunk: int = 0,
        start: int = 0,
    ) -> None:
        super().__init__(pipeline, batch_size, shard, start)
        share = min(_LARGEST_CHUNK, math.ceil(batch_size / workers))
        self._chunk = min(batch_size, chunk or share)
        ahead = prefetch or max(2, math.ceil(2 * workers / batch_size))
        memory, size = pipeline.preprocess.batch_bytes(batch_size), batch_size * 4
        self._memory = [(_CONTEXT.RawArray("B", memory), _CONTEXT.RawArray("B", size)) for _ in range(ahead + 1)]
        self._buffers = [_Buffer(_view(pipeline, batch_size, each)) for each in self._memory]
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
        self._sent = 0
        for _ in self._buffers[:-1]:
            self._send()

    def _send(self) -> None:
        """Order the next batch, chunk by chunk."""
        number = self._sent
        buffer = self._buffers[number % len(self._buffers)]
        rows = range(0, self.batch_size, self._chunk)
        buffer.missing, buffer.problem = len(rows), None
        for row in rows:
            count = min(self._chunk, self.batch_size - row)
            chunk = _Chunk(self._generation.value, number % len(self._buffers), row, count, self._first(number) + row)
            try:
                self._tasks.send(_CHUNK.pack(*chunk))
            except (BrokenPipeError, ConnectionResetError):  # nobody is left to take it
                raise WorkerFailed(self._death(self._lines[0])) from None
        self._sent += 1

    def _take(self) -> Batch:
        if self._sent < self._taken + len(self._buffers):  # not after a bad batch, which is still to be taken
            self._send()  # the slot that was taken last is free again
        buffer = self._buffers[self._taken % len(self._buffers)]
        self._until(lambda: not buffer.missing)
        if buffer.problem is not None:
            raise buffer.problem
        return buffer.batch

    def _begin_again(self) -> None:
        self._generation.value += 1
        self._until(lambda: not any(buffer.missing for buffer in self._buffers))
        self._begin()

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            for line in wait(self._lines):
                self._receive(line)

    def _receive(self, line: Any) -> None:
        try:
            buffer, tally, problem = line.recv()
        except EOFError:
            raise WorkerFailed(self._death(line)) from None
        self.tally.add(tally)
        self._buffers[buffer].missing -= 1
        self._buffers[buffer].problem = self._buffers[buffer].problem or problem

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


def loader(
    pipeline: Pipeline,
    batch_size: int,
    shard: Shard = ALL,
    /,
    *,
    workers: int,
    prefetch: int = 0,
    chunk: int = 0,
    start: int = 0,
) -> Loader:
    """Return a loader with so many processes; with none, batches are made when they are asked for."""
    if workers == 0:
        return Inline(pipeline, batch_size, shard, start=start)
    return Ahead(pipeline, batch_size, shard, workers=workers, prefetch=prefetch, chunk=chunk, start=start)


def _view(pipeline: Pipeline, batch_size: int, memory: tuple[Any, Any]) -> Batch:
    pictures, labels = memory
    return Batch(pipeline.preprocess.empty(batch_size, memoryview(pictures)), np.frombuffer(labels, "int32"))


def _serve(
    pipeline: Pipeline, batch_size: int, memory: list[Any], generation: Any, tasks: socket.socket, line: Any
) -> None:
    """The life of a loader process: it ends with the socket that tasks come from."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    buffers = [_view(pipeline, batch_size, each) for each in memory]
    while task := tasks.recv(_CHUNK.size):
        chunk = _Chunk(*_CHUNK.unpack(task))
        tally, problem = Tally(), None
        if chunk.generation == generation.value:
            problem = _fill(pipeline, buffers[chunk.buffer], chunk, tally)
        line.send((chunk.buffer, tally, problem))


def _fill(pipeline: Pipeline, batch: Batch, chunk: _Chunk, tally: Tally) -> BadData | None:
    rows = slice(chunk.row, chunk.row + chunk.rows)
    try:
        pipeline.fill(batch.pictures[rows], batch.labels[rows], chunk.position, tally)
    except BadData as problem:
        return problem
    return None
