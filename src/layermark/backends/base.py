"""What a backend is: it prepares a program from a task, or says why it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from layermark import environment, registry
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.workloads.base import InputStream, Task

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Clock = Callable[[], int]
Result = TypeVar("Result")


class Timeline(NamedTuple):
    """When each batch was handed over and when it was done, in nanoseconds of the program's clock.

    A runtime that cannot tell for each batch of a call gives one entry for it. Of many short batches some are watched.
    """

    handed_over: Sequence[int]
    done: Sequence[int]


_FEW, _MOST_BETWEEN_NS = 8, 5_000_000
"""So many batches are all watched; of more as few as may be, but no longer after each other than this."""
_STRIDES = (997, 401, 199, 101, 47, 23, 11, 5)
"""Every how many batches that may be: primes, so that every input of a ring is watched in its turn."""


def one_by_one(calls: Iterator[Callable[[], Result]], batches: int, clock: Clock) -> tuple[Timeline, Result]:
    """Run the next batches, each of which is done when its call returns; return the result of the last, too.

    A look at the clock between two calls costs up to 3 % of a small layer. Results are let go at once to stay in cache.
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
        if each * batch_ns <= _MOST_BETWEEN_NS:
            return each
    return 1


def build_in_thread(build: Callable[[], Result]) -> Result:
    """Build something in a thread of its own, which has a heap of its own (glibc's arenas) that a compiler may litter.

    The C library looks for places among the holes of a heap in every call of an operation. Small training steps of
    TensorFlow's graph executor were 3 to 5 % slower after XLA had compiled in the thread that makes the calls.
    """
    with ThreadPoolExecutor(1) as builder:
        return builder.submit(build).result()


class MissingEntry(Exception):
    """A private function of a framework, which an execution rests on, is gone or takes other arguments now.

    The backend then runs the documented execution instead, and says so in the setting `fallback`.
    """


_LEAD = 1.01
"""A private entry must be this much faster than everything documented, or it is not worth its name."""


def fastest(rates: Sequence[float], private: Sequence[bool]) -> int:
    """Return the index of the best of a trial; what goes through a private entry has to lead by a percent."""
    weighed = [rate / _LEAD if hidden else rate for rate, hidden in zip(rates, private, strict=True)]
    return weighed.index(max(weighed))


class Totals(NamedTuple):
    """What training came to since it was last asked: batches, the sum of their losses, and how many answers were right.

    `right` is None where a graph has no class labels.
    """

    batches: int
    loss: float
    right: int | None


class OperatorTime(NamedTuple):
    """What one kernel or primitive took in a profile, for one set of nodes.

    `names` is what the runtime calls the pieces of the graph in it; empty where it does not tell.
    """

    operator: str
    calls: int
    seconds: float
    names: tuple[str, ...] = ()


class Profile(NamedTuple):
    """Where the time of a pass under the runtime's profiler went."""

    operators: list[OperatorTime]
    pass_s: float
    """Wall time of the pass, the profiler's own work included."""
    window_s: float | None = None
    """From the first traced call to the end of the last, where `pass_s` is the sum of calls with something between."""
    memory: Mapping[str, Any] = {}
    """`peak_bytes`, as `alive` what was held at the peak, as `over_time` pairs of seconds and bytes; where it tells."""


TRACE_FILE = "trace.json"
"""What `Program.profile` calls its trace."""


MOST_BUILT_WITH = 2
"""Micro-batches of an update while a program is built: an update of a thousand would take hours to try."""


class Program(ABC):
    """A prepared network. It walks a ring of inputs and never waits for anybody inside a call."""

    clock: Clock = staticmethod(time.perf_counter_ns)
    clock_name: ClassVar[str] = "perf_counter"
    learning_rate: float = 0.0
    micro_batches: int = 1
    """Batches whose gradients make one update; calls take multiples of them. A new number counts from `load` on."""

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
        """Run the next batches of the ring and return when the work is finished.

        In training every `micro_batches` of them make one update, and a call makes whole updates. State goes on
        from call to call.
        """

    def whole(self, batches: int) -> int:
        """Return the least number of batches, not below this one, that makes whole updates."""
        return math.ceil(batches / self.micro_batches) * self.micro_batches

    def check_whole(self, batches: int) -> None:
        """Raise ValueError unless these batches make whole updates."""
        if batches % self.micro_batches:
            raise ValueError(f"{batches} batches in a call: expected a multiple of {self.micro_batches}, one update")

    def running(self) -> AbstractContextManager[Any]:
        """What many calls of `run` share, entered once around them; `run` alone works too, and pays for it."""
        return nullcontext()

    @abstractmethod
    def outputs(self) -> Arrays:
        """The outputs of the last batch, under the graph's names, in the canonical layout."""

    @abstractmethod
    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set the parameters (canonical names and layout) and go back to the ring's first input.

        `state` is that of the optimiser, as `state()` returns it; without one it is as before the first update.
        """

    @abstractmethod
    def weights(self) -> Arrays:
        """The parameters as they are now."""

    def state(self) -> Arrays:
        """The optimiser's state as it is now, under the names and in the layout of `Update.state`."""
        return {}

    def totals(self) -> Totals:
        """Return what training came to since the last `load` or `totals`."""
        raise Unsupported("this program does not train; use --mode train on torch, tensorflow or jax")

    def copy_batch(self) -> None:
        """Bring the first batch of the host to where a step reads it, as steps of data that is not resident do."""
        raise Unsupported("this program does not say how it copies its inputs")

    def accuracy(self) -> Mapping[str, Any] | None:
        """What quantising lost against the same runtime in full precision; None where nothing was quantised."""
        return None

    def products(self) -> Arrays:
        """The weights that a quantised program multiplies with, norms folded in, read back from what it runs."""
        return {}

    def profile(self, folder: Path, batches: int) -> Profile:
        """Run some batches under the runtime's profiler; return the time of every operator.

        A trace in the form of chrome://tracing appears in the folder as `TRACE_FILE`.
        """
        raise Unsupported("this runtime has no profiler that Layermark knows")

    def seek(self, position: Mapping[str, Any]) -> None:
        """Have ranks that work with this one go on reading where a checkpoint was taken; alone there are none."""

    def follow(self) -> None:
        """Do what the first of several ranks says, until it lets go; only their programs can."""
        raise RuntimeError("this program has nobody to follow")

    def pipeline(self) -> Mapping[str, Any] | None:
        """Return when the stages of a pipeline were at work in the last passes; None for what is no pipeline."""
        return None

    def communication(self) -> Mapping[str, Any] | None:
        """Return what it takes ranks to average their gradients; None for a program that is alone."""
        return None

    def peak_rss_bytes(self) -> int:
        """The most memory that the process, or all ranks together, have had."""
        return environment.peak_rss_bytes()

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
    executions_name_loops: ClassVar[bool] = True
    """Whether such a word also says how several batches in a call are run; if not, a trial chooses that besides."""
    connects: ClassVar[bool] = False
    """Whether its ranks can work on one thing together: `prepare` then finds their `Group` in the task."""
    pipelines: ClassVar[bool] = False
    """Whether it runs a network in stages, each in a process of its own."""
    half_on_cpus: ClassVar[bool] = False
    """Whether it computes in fp16 on CPUs that can, instead of converting to fp32 and back."""
    buckets: ClassVar[bool] = False
    """Whether replicas begin to average gradients once so many bytes of them wait (`--bucket-bytes`)."""
    quantises: ClassVar[bool] = False
    """Whether it knows `--precision int8`."""
    widens_norms: ClassVar[bool] = False
    """Whether it knows `--norms full`."""
    probes: ClassVar[bool] = False
    """Whether `probe` can measure the machine's ceilings."""
    probes_for_others: ClassVar[bool] = False
    """Whether its probe is asked for every runtime, and not only where this one is measured itself."""

    @property
    def installed(self) -> bool:
        """Whether the framework is there, without importing it."""
        return all(importlib.util.find_spec(name) is not None for name in (self.package, *self.also) if name)

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

    def half_partials(self, spec: Spec) -> bool:
        """Whether `--partials half` sets a switch here: products of 16-bit floats are then added up in 16 bits."""
        return False

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """Variables of the worker's environment, set before anything is imported."""
        return {}

    def load(self) -> Mapping[str, str]:
        """Import the framework and set its process-wide switches; return the versions that matter."""
        return {}

    @abstractmethod
    def prepare(self, spec: Spec, task: Task) -> Program:
        """Build and compile the program, or raise `Unsupported` with the reason."""

    def piece_times(self, spec: Spec, task: Task) -> list[tuple[str, float]]:
        """Return where the pieces of a network begin and how many seconds each takes, to cut it into equal stages."""
        raise Unsupported(f"{self.name} runs no pipelines", code="no_pipelines")

    def probe(self, spec: Spec) -> Probe | None:
        """What this runtime can say about the machine's ceilings, if anything."""
        return None

    def read_checkpoint(self, path: Path) -> Arrays | None:
        """The arrays of a file in the framework's own form, read without running anything in it; None: no such form."""
        return None

    def write_onnx(self, spec: Spec, task: Task, path: Path) -> bool:
        """Write the network of a task as an ONNX model; returns whether this runtime can."""
        return False

    def profiled(self, work: Callable[[], object], folder: Path) -> Profile:
        """Do some work of this process under the runtime's profiler; return the time of every operator.

        A trace in the form of chrome://tracing appears in the folder as `TRACE_FILE`.
        """
        raise Unsupported(f"{self.name} has no profiler that Layermark knows")

    def reference_arrays(self) -> Any:
        """An array module with automatic differentiation in float64 for the oracle, if the runtime has one."""
        return None


class Live:
    """Inputs that are another batch every time they are read, each valid until the next."""

    def __init__(self, stream: InputStream, feed: Callable[[Arrays], Iterable[Any]]) -> None:
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
