"""Replicas on runtimes whose ranks can add up arrays: all that they say to each other is a sum."""

from __future__ import annotations

import itertools
import pickle
import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from layermark.backends._led import LedProgram, Line, Order
from layermark.backends.base import Arrays, Program
from layermark.spec import Group, Spec
from layermark.workloads.base import Task

Array = np.ndarray[Any, Any]
Add = Callable[[Array], Array]
"""Return the sum over all ranks of an array that each of them gives."""

_LADDER = tuple(4096 << (2 * step) for step in range(7))
"""Sizes of messages, in bytes: 4 KiB to 16 MiB."""
_REPEATS = 5


class SummingLine(Line):
    """Messages as sums of whole numbers: whoever has nothing to say gives zeros."""

    def __init__(self, group: Group, add: Add) -> None:
        self._group, self._add = group, add

    def numbers(self, values: Sequence[float]) -> list[float]:
        """Return the numbers of rank 0."""
        own = np.array(values, "float64").view("int32")
        found: list[float] = self._add(own if self._group.rank == 0 else own * 0).view("float64").tolist()
        return found

    def object(self, value: Any) -> Any:
        """Return what rank 0 gives."""
        return self._exchanged([value if self._group.rank == 0 else None], 1)[0]

    def gathered(self, value: Any) -> list[Any]:
        """Return what every rank gives, on rank 0."""
        own = [value if rank == self._group.rank else None for rank in range(self._group.size)]
        found = self._exchanged(own, self._group.size)
        return found if self._group.rank == 0 else []

    def _exchanged(self, values: Sequence[Any], count: int) -> list[Any]:
        """Return objects of which every rank has one at most, and the others None."""
        mine = [_packed(each) if self._speaks(index, count) else _NOTHING for index, each in enumerate(values)]
        sizes = self._add(np.array([len(each) for each in mine], "int32")).tolist()
        # One length in a power of two: runtimes compile a sum for each.
        whole = np.zeros(1 << max(4, (sum(sizes) - 1).bit_length()), "int32")
        places = np.cumsum([0, *sizes])
        for place, each in zip(places, mine, strict=False):
            whole[place : place + len(each)] = each
        told = self._add(whole)
        return [_unpacked(told[first:last]) for first, last in itertools.pairwise(places)]

    def _speaks(self, index: int, count: int) -> bool:
        return index == self._group.rank if count > 1 else self._group.rank == 0

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._add(np.zeros(1, "int32"))


_NOTHING = np.zeros(0, "int32")


def _packed(value: Any) -> Array:
    data = pickle.dumps(value)
    framed = len(data).to_bytes(8, "little") + data
    return np.frombuffer(framed + b"\0" * (-len(framed) % 4), "int32")


def _unpacked(words: Array) -> Any:
    data = np.ascontiguousarray(words).tobytes()
    length = int.from_bytes(data[:8], "little")
    return pickle.loads(data[8 : 8 + length])  # what ranks of one job say to each other


class WholeReplica(LedProgram):
    """One of several replicas, each a whole network in one rank, around a program that shares its gradients."""

    def __init__(self, spec: Spec, task: Task, group: Group, line: Line, program: Program, averaging: str) -> None:
        super().__init__(spec, task, group, line)
        self._program, self._averaging = program, averaging

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built."""
        return {**self._program.settings, "replicas": str(self._group.replicas), "averaging": self._averaging}

    @property
    def least_batches(self) -> int:
        """Every replica has one."""
        return self._group.replicas

    def close(self) -> None:
        """Let the other ranks go."""
        super().close()
        self._program.close()

    def _load_own(self, weights: Arrays, state: Arrays | None) -> None:
        self._program.micro_batches = self.own_micro_batches
        self._program.load(weights, state)

    def _run_own(self, batches: int) -> None:
        self._program.learning_rate = self.learning_rate
        self._program.run(batches)

    def _answer(self, order: Order) -> Any:
        if order == Order.TOTALS:
            return [self._program.totals()]
        if order == Order.COMMUNICATION:
            return self._communication()
        if order == Order.OUTPUTS:
            return self._program.outputs()
        # They are the same everywhere: nobody but the first rank needs to send them.
        return self._held(order) if self._group.rank == 0 else {}

    def _held(self, order: Order) -> Arrays:
        return self._program.weights() if order == Order.WEIGHTS else self._program.state()

    @abstractmethod
    def _communication(self) -> dict[str, Any]:
        """Return what averaging takes."""


class SummingReplica(WholeReplica):
    """A replica on a runtime whose ranks can add up arrays."""

    def __init__(self, spec: Spec, task: Task, group: Group, program: Program, add: Add, averaging: str) -> None:
        super().__init__(spec, task, group, SummingLine(group, add), program, averaging)
        self._add = add

    def _communication(self) -> dict[str, Any]:
        """What averaging takes: it comes after the backward pass, so nothing of it hides."""
        trained = {name for name, each in self._task.graph.parameters.items() if each.trainable}
        size = sum(each.nbytes for name, each in self._program.weights().items() if name in trained)
        ladder = all_reduce_ceiling(self._add, self._group, size)
        return {
            "replicas": self._group.replicas,
            "gradient_bytes": size,
            "micro_batches": self.own_micro_batches,
            "average_s": ladder[-1]["seconds"],
            "hidden": 0.0,
            "overlaps": False,
            "all_reduce": ladder,
        }


def all_reduce_ceiling(add: Add, group: Group, most_bytes: int) -> list[dict[str, Any]]:
    """Return how quickly messages of several sizes are added up over the ranks, up to the size that is needed."""
    return [_reading(add, group, each) for each in message_sizes(most_bytes)]


def message_sizes(most_bytes: int) -> list[int]:
    """Return the sizes of messages that a ceiling is read for, up to the one that is needed.

    >>> message_sizes(50_001)
    [4096, 16384, 50000]
    """
    return sorted({each for each in _LADDER if each < most_bytes // 4 * 4} | {max(4096, most_bytes // 4 * 4)})


def all_reduced(count: int, ranks: int, seconds: float, *, right: bool) -> dict[str, Any]:
    """Return what the result says about a message that was added up over ranks.

    Each rank sends 2 (n - 1) / n of it at least, which is what the bandwidth of the bus counts. Sums are checked: a
    ceiling of something else is none.
    """
    return {
        "bytes": count,
        "seconds": seconds,
        "algorithm_bytes_per_s": count / seconds,
        "bus_bytes_per_s": count / seconds * 2 * (ranks - 1) / ranks,
        "right": right,
    }


def _reading(add: Add, group: Group, count: int) -> dict[str, Any]:
    size, own = group.size, np.full(count // 4, group.rank + 1, "float32")
    found, times = add(own), []
    for _ in range(_REPEATS):
        add(np.zeros(1, "int32"))  # all begin together
        began = time.perf_counter()
        found = add(own)
        times.append(time.perf_counter() - began)
    right = bool((found == size * (size + 1) / 2).all())
    return all_reduced(count, size, statistics.median(times), right=right)
