"""What a program is: a workload that no graph describes, with one implementation per backend.

An implementation lives beside its workload in a module named after the backend. Only that backend's worker
imports it, so it may import the framework.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.outcome import Verification
from layermark.spec import Spec
from layermark.timing import Timer, seconds_of, trial
from layermark.workloads.base import Task, Workload

if TYPE_CHECKING:
    import numpy as np

Call = Callable[[int], Any]
"""Runs one batch; the number of the call chooses its random numbers."""

_TRIAL_ROUNDS = 2


class Implementation(ABC):
    """A program in the words of one runtime."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, str]:
        """What was really built: execution, formulation, types, library, generator."""

    @abstractmethod
    def call(self, number: int) -> Any:
        """Run the batch of this number and return when the work is done."""

    @abstractmethod
    def outputs(self, result: Any) -> Mapping[str, np.ndarray[Any, Any]]:
        """The outputs of a finished call in the canonical layout."""


class Runs(Protocol):
    """What verification needs of a prepared program."""

    def run(self, batches: int) -> Any:
        """Run the next batches."""

    def outputs(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The outputs of the last batch."""

    def load(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go back to the first batch."""


@dataclass(frozen=True)
class ProgramTask(Task):
    """A task without a graph: it counts its own work, finds its own implementation and proves its own results."""

    @abstractmethod
    def implementation(self, spec: Spec) -> Implementation:
        """The program in the words of the spec's backend, or `Unsupported`."""

    @abstractmethod
    def verify(self, program: Runs) -> Verification:
        """Whether the prepared program computes what it should; it stands at its first batch afterwards."""


class ProgramWorkload(Workload):
    """A workload under a name whose `task` is a `ProgramTask`."""

    modes: ClassVar[tuple[str, ...]] = ("infer",)
    needs: ClassVar[str]
    """What a runtime must be able to do; said where there is no implementation."""

    def graph(self, params: Any, *, batch_size: int, mode: str, loss: str) -> Graph:
        """Nothing: a program is no network."""
        return Graph((), ())

    def find(self, spec: Spec) -> Any:
        """The module with the implementation for the spec's backend."""
        check(spec)
        name = f"{type(self).__module__}.{spec.backend}"
        if importlib.util.find_spec(name) is None:
            raise Unsupported(f"{spec.workload} has no implementation on {spec.backend}: it needs {self.needs}")
        return importlib.import_module(name)


def check(spec: Spec) -> None:
    """Refuse what no program can do."""
    allowed = {"mode": "infer", "precision": "32.32", "device": "cpu", "data": "synthetic", "cache": "warm"}
    for name, value in allowed.items():
        received = getattr(spec, name)
        if received != value:
            raise Unsupported(f"{spec.workload} has no --{name} {received}; it runs with {value} only")
    if spec.batch_size != 1:
        raise Unsupported(f"{spec.workload} has no --batch-size {spec.batch_size}; one batch is one call")


def chosen(spec: Spec, executions: Mapping[str, Callable[[], Call]]) -> tuple[Call, dict[str, str]]:
    """The call that `--execution` asks for, run once, and its settings; `auto` is the better of a short trial."""
    if spec.execution in executions or (len(executions) == 1 and spec.execution == "auto"):
        name = spec.execution if spec.execution in executions else next(iter(executions))
        return _started(executions[name]), {"execution": name}
    if spec.execution != "auto":
        known = ", ".join((*executions, "auto"))
        raise Unsupported(f"{spec.workload} on {spec.backend} has no execution {spec.execution}; it knows {known}")
    return _best(executions)


def _started(make: Callable[[], Call]) -> Call:
    call = make()
    call(0)
    return call


def _best(executions: Mapping[str, Callable[[], Call]]) -> tuple[Call, dict[str, str]]:
    calls: dict[str, Call] = {}
    broken: dict[str, Exception] = {}
    for name, make in executions.items():
        try:
            calls[name] = _started(make)
        except Exception as error:  # whatever one compiler raises, another execution still runs
            broken[name] = error
    if not calls:
        raise next(iter(broken.values()))
    rates = dict(zip(calls, trial([_timer(call) for call in calls.values()], rounds=_TRIAL_ROUNDS), strict=True))
    told = [f"{name} {rate:.4g} calls/s" for name, rate in rates.items()]
    told += [f"{name} failed: {type(error).__name__}" for name, error in broken.items()]
    best = max(rates, key=lambda name: rates[name])
    return calls[best], {"execution": best, "execution_trial": ", ".join(told)}


def _timer(call: Call) -> Timer:
    """Calls with numbers of their own."""
    numbers = itertools.count(1)
    return partial(seconds_of, lambda: call(next(numbers)))
