"""Encoded samples in memory that all loader processes share, so that a set is held once and files are read once."""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np

from layermark.data.base import Sample, Source
from layermark.data.files import file_facts

_OVERHEAD = 512
"""Bytes beside its picture that a kept sample takes: place, label, boxes."""
_GROUP = Path("/sys/fs/cgroup")


class Cache:
    """Samples by number, up to so many bytes; the pages are taken as they are filled. What no longer fits is not kept.

    Behind it is a file without a name: a table (bytes used; offset and length of every sample), then the samples.
    """

    def __init__(self, samples: int, capacity: int) -> None:
        self._samples, self._capacity = samples, capacity
        file = os.memfd_create("layermark-samples")
        os.ftruncate(file, self._table_bytes + capacity)
        self._attach(file)

    @property
    def _table_bytes(self) -> int:
        return (1 + 2 * self._samples) * 8

    def _attach(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        self._memory = mmap.mmap(file, 0)
        self._table = np.frombuffer(self._memory, "int64", 1 + 2 * self._samples)

    def __getstate__(self) -> tuple[int, int, Any]:
        return self._samples, self._capacity, reduction.DupFd(self._file)

    def __setstate__(self, state: tuple[int, int, Any]) -> None:
        self._samples, self._capacity, file = state
        self._attach(file.detach())

    def __len__(self) -> int:
        """How many samples are kept."""
        return int(np.count_nonzero(self._table[2::2]))

    def get(self, index: int) -> Sample | None:
        """Return a sample that is kept, or None."""
        with self._locked():
            offset, length = map(int, self._table[1 + 2 * index : 3 + 2 * index])
        if not length:
            return None
        found: Sample = pickle.loads(self._memory[offset : offset + length])
        return found

    def put(self, index: int, sample: Sample) -> None:
        """Keep a sample, unless another process has done so or there is no room."""
        data = pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
        with self._locked():
            used, known = int(self._table[0]), self._table[2 + 2 * index]
            if known or used + len(data) > self._capacity:
                return
            offset = self._table_bytes + used
            self._memory[offset : offset + len(data)] = data
            self._table[1 + 2 * index : 3 + 2 * index] = offset, len(data)
            self._table[0] = used + len(data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time. The system lets go of this lock when a process is killed; a semaphore would stay."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def cache_for(source: Source, share: float) -> Cache | None:
    """Return an empty cache for a share of the samples, of at most half of the memory that is free; None for none."""
    if share <= 0:
        return None
    wanted = share * (_OVERHEAD * len(source) + sum(file_facts(path).st_size for path in source.files))
    return Cache(len(source), int(min(wanted, _free_memory() / 2)))


def _free_memory() -> int:
    """Bytes that nobody uses: the machine's, or what the control group's limit leaves if that is less."""
    machine = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit, used = ((_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return machine
    return min(machine, int(limit) - int(used)) if limit.isdigit() else machine
