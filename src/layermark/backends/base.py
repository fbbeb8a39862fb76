"""What a backend is: it prepares a program from a task, or says why it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from layermark import registry
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.workloads.base import Stream, Task

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Clock = Callable[[], int]
Result = TypeVar("Result")


class Timeline(NamedTuple):
    """When each batch was handed over and when it was done, in nanoseconds of the program's clock.

    A runtime that cannot tell for every batch of a call gives one entry for the call. Of many short batches only
    some are watched.
    """

    handed_over: Sequence[int]
    done: Sequence[int]


_FEW = 8
"""So many batches are all watched, however short they are."""
_APART_NS = 5_000_000
"""Of more, some are watched: as few as may be, but no further apart than this."""
_STRIDES = (997, 401, 199, 101, 47, 23, 11, 5)
"""Every how many batches that may be: primes, so that every input of a ring is watched in its turn."""


def one_by_one(calls: Iterator[Callable[[], Result]], batches: int, clock: Clock) -> tuple[Timeline, Result]:
    """Run the next batches, each of which is done when its call returns; answers the result of the last, too.

    To look at the clock between two calls costs both of them: up to 3 % of a small layer, were it done for each. Every
    result but the last is let go at once, so that the next may lie where it lay, in the cache.
    """
    handed_over: list[int] = []
    done: list[int] = []
    left, stride = batches, 1
    while left > stride:
        for call in itertools.islice(calls, stride - 1):
            call()
        call = next(calls)
        handed_over.append(clock())
        call()
        done.append(clock())
        left -= stride
        if len(done) == 1 and batches > _FEW:
            stride = _stride(done[0] - handed_over[0])
    for call in itertools.islice(calls, left - 1):
        call()
    call = next(calls)
    handed_over.append(clock())
    result = call()
    done.append(clock())
    return Timeline(handed_over, done), result


def _stride(batch_ns: int) -> int:
    for each in _STRIDES:
        if each * batch_ns <= _APART_NS:
            return each
    return 1


def apart(build: Callable[[], Result]) -> Result:
    """Build something in a thread of its own, which has a heap of its own (glibc's arenas) that a compiler may litter.

    The C library looks for places among the holes of a heap in every call of an operation. Small training steps of
    TensorFlow's graph executor were 3 to 5 % slower after XLA had compiled in the thread that makes the calls.
    """
    with ThreadPoolExecutor(1) as builder:
        return builder.submit(build).result()


class OperatorTime(NamedTuple):
    """What one kind of operator took in a profile."""

    operator: str
    calls: int
    seconds: float


TRACE_FILE = "trace.json"
"""What `Program.profile` calls its trace."""


class Program(ABC):
    """A prepared network. It walks a ring of inputs and never waits for anybody inside a call."""

    clock: Clock = staticmethod(time.perf_counter_ns)
    clock_name: ClassVar[str] = "perf_counter"
    learning_rate: float = 0.0

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, layout, effective types, ..."""

    @property
    def least_batches(self) -> int:
        """How many batches a call needs to be what it is meant for; shorter calls are timed as one that long."""
        return 1

    @property
    def seamless(self) -> bool:
        """Whether one call of many batches is the same as many calls: nothing is begun or awaited around a call.

        Calls are then joined, so that a layer of a few microseconds is not charged with the calls around it.
        """
        return False

    @abstractmethod
    def run(self, batches: int) -> Timeline:
        """Run the next batches of the ring and return when the work is finished."""

    def running(self) -> AbstractContextManager[Any]:
        """What many calls of `run` share, entered once around them; `run` alone works too, and pays for it."""
        return nullcontext()

    @abstractmethod
    def outputs(self) -> Arrays:
        """The outputs of the last batch, under the graph's names, in the canonical layout."""

    @abstractmethod
    def load(self, weights: Arrays) -> None:
        """Set the parameters (canonical names and layout) and go back to the ring's first input."""

    @abstractmethod
    def weights(self) -> Arrays:
        """The parameters as they are now."""

    def accuracy(self) -> Mapping[str, Any] | None:
        """What quantising lost against the same runtime in full precision; None where nothing was quantised."""
        return None

    def products(self) -> Arrays:
        """The weights that a quantised program multiplies with, norms folded in, read back from what it runs."""
        return {}

    def profile(self, folder: Path, batches: int) -> list[OperatorTime]:
        """Run some batches under the runtime's profiler; answers the time of every kind of operator.

        A trace in the form of chrome://tracing appears in the folder as `TRACE_FILE`.
        """
        raise Unsupported("this runtime has no profiler that Layermark knows")

    def close(self) -> None:
        """Let go of what the program holds."""


class Backend(ABC):
    """A runtime. The module that holds it imports no framework until `prepare` or `probe` is called."""

    name: ClassVar[str]
    package: ClassVar[str]
    """What is imported; also what must be installed."""
    also: ClassVar[tuple[str, ...]] = ()
    """What must be installed besides."""
    extra: ClassVar[str] = ""
    by_default: ClassVar[bool] = True
    """Whether a request that names no backend includes this one."""
    executions: ClassVar[tuple[str, ...]] = ("auto",)
    """The words that `--execution` takes here."""
    quantises: ClassVar[bool] = False
    """Whether it knows `--precision int8`."""
    probes: ClassVar[bool] = False
    """Whether `probe` can measure the machine's ceilings."""
    probes_for_others: ClassVar[bool] = False
    """Whether its probe is asked for every runtime, and not only where this one is measured itself."""

    @property
    def installed(self) -> bool:
        """Whether the framework is there, without importing it."""
        needed = [name for name in (self.package, *self.also) if name]
        return all(importlib.util.find_spec(name) is not None for name in needed)

    @property
    def version(self) -> str:
        """The installed version of the framework."""
        return importlib.metadata.version(self.package) if self.package else ""

    @property
    def install_line(self) -> str:
        """What to type when it is missing."""
        return f"pip install 'layermark[{self.extra or self.name}]'"

    def weight_copies(self, spec: Spec) -> int:
        """How many times the weights are in memory at the worst moment of building a program."""
        return 4

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """Variables of the worker's environment, set before anything is imported."""
        return {}

    def load(self) -> Mapping[str, str]:
        """Import the framework and set its process-wide switches; answers the versions that matter."""
        return {}

    @abstractmethod
    def prepare(self, spec: Spec, task: Task) -> Program:
        """Build and compile the program, or raise `Unsupported` with the reason."""

    def probe(self, spec: Spec) -> Probe | None:
        """What this runtime can say about the machine's ceilings, if anything."""
        return None

    def read_checkpoint(self, path: Path) -> Arrays | None:
        """The arrays of a file in the framework's own form, read without running anything in it; None: no such form."""
        return None

    def profiled(self, work: Callable[[], object], folder: Path) -> list[OperatorTime]:
        """Do some work of this process under the runtime's profiler; answers the time of every kind of operator.

        A trace in the form of chrome://tracing appears in the folder as `TRACE_FILE`.
        """
        raise Unsupported(f"{self.name} has no profiler that Layermark knows")

    def reference_arrays(self) -> Any:
        """An array module with automatic differentiation in float64 for the oracle, if the runtime has one."""
        return None


class Live:
    """Inputs that are another batch every time they are read, each valid until the next."""

    def __init__(self, stream: Stream, feed: Callable[[Arrays], Iterable[Any]]) -> None:
        self._stream, self._feed = stream, feed

    def __iter__(self) -> Iterator[Any]:
        return iter(self._feed(self._stream.take()))

    def rewind(self) -> None:
        """Begin again with the first batch."""
        self._stream.rewind()


def live(task: Task, layout: str, feed: Callable[[Arrays], Iterable[Any]]) -> Live | None:
    """The stream of a task that has one, in the order, types and layout that a program takes."""
    if task.stream is None:
        return None
    task.stream.start(layout)
    return Live(task.stream, feed)


class Probe(ABC):
    """Measures what the machine can do at best: arithmetic of one type, and bytes at one working-set size."""

    @abstractmethod
    def peak(self, seconds: float) -> float:
        """Scalar operations per second of the best matrix product, over about this long."""

    @abstractmethod
    def bandwidth(self, working_set: int, seconds: float) -> float:
        """Bytes per second that a simple kernel moves when it touches this many bytes again and again."""


def backend(name: str) -> Backend:
    """The backend of this name; its framework need not be installed."""
    found = registry.find("backends", name).BACKEND
    if not isinstance(found, Backend):
        raise UserError(f"the plug-in for backend {name!r} holds no Backend")
    return found
