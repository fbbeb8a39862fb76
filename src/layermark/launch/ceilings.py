"""The ceiling probes as the session sees them: what this machine can do at best, read in the same alternation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from layermark import registry
from layermark.backends.base import Backend, backend
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.process import Crew, Worker, await_all, worker_environment
from layermark.spec import Spec

_Key = tuple[str, int, str]
"""Runtime, threads and precision of a probe."""


@dataclass
class Reached:
    """Readings of what a machine reached, shared by everybody with the same probes, threads, type and working set."""

    flops_per_s: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)
    last_s: float = 0.0
    """When the last of them was taken, on the monotonic clock."""


class Ceilings:
    """The probes: more workers of the alternation, with the same threads as the others.

    The best of all probes counts, so that no runtime is called impossible only because another's probe is weak.
    """

    def __init__(self, crew: Crew, timeout: Callable[[], float]) -> None:
        self._crew = crew
        self._timeout = timeout
        self._workers: dict[_Key, list[Worker]] = {}
        self._starting: list[Worker] = []
        self.among: Collection[str] = ()
        """The runtimes that are measured together."""

    def probes(self, spec: Spec) -> list[str]:
        """The runtimes that are asked for a spec; raises `Unsupported` where no installed one can probe."""
        return [each.name for each in probing_backends(spec, {spec.backend, *self.among})]

    def held_bytes(self) -> int:
        """Return the memory of the probes that are running: what is free is less by that already."""
        return sum(cpu.resident_bytes(each.pid) for probes in self._workers.values() for each in probes)

    def begin(self, spec: Spec, copies: int = 1) -> None:
        """Start the probes of a spec without waiting for them. What cannot be had is told by `reading`."""
        with contextlib.suppress(Unsupported, WorkerFailed):
            for name in self.probes(spec):
                self._hire(spec.replace(backend=name), copies)

    def settle(self) -> None:
        """Wait for the probes that were begun."""
        for key in list(self._workers):
            with contextlib.suppress(Unsupported, WorkerFailed):
                self._started(key)

    def reading(self, spec: Spec, working_set: int, seconds: float, copies: int = 1) -> dict[str, float]:
        """Return one reading of peak and bandwidth: the best of every runtime's probe.

        Of several copies, each with the threads of the spec, it is the sum of what they reach all at work.
        """
        found: list[dict[str, float]] = []
        failure: WorkerFailed | None = None
        for name in self.probes(spec):
            try:
                found.append(self._ask(spec.replace(backend=name), working_set, seconds, copies))
            except WorkerFailed as error:
                failure = error
        if not found:
            raise failure or WorkerFailed("no probe answered")
        return {key: max(each[key] for each in found) for key in found[0]}

    def _ask(self, spec: Spec, working_set: int, seconds: float, copies: int) -> dict[str, float]:
        key = self._hire(spec, copies)
        workers = self._started(key)[:copies]
        cpu.wait_until_quiet(self._crew.others(*workers))
        try:
            for worker in workers:
                worker.begin("ceiling", working_set=working_set, seconds=seconds)
            answers = await_all(workers, self._timeout())
        except WorkerFailed:
            self._dismiss(key)
            raise
        return {name: sum(each[name] for each in answers) for name in answers[0]}

    def _hire(self, spec: Spec, copies: int) -> _Key:
        """Start what is missing of the probes of this runtime, thread budget and type; they stay for the session."""
        key = (spec.backend, spec.threads, spec.precision)
        probes = self._workers.setdefault(key, [])
        for _ in range(copies - len(probes)):
            probes.append(self._crew.hire(worker_environment(spec)))
            self._starting.append(probes[-1])
            probes[-1].begin("probe", spec=spec.to_json())
        return key

    def _started(self, key: _Key) -> list[Worker]:
        """Return the probes of a runtime, thread budget and type once all of them are ready."""
        probes = self._workers[key]
        try:
            await_all([each for each in probes if each in self._starting], self._timeout())
        except (Unsupported, UserError, WorkerFailed):
            self._dismiss(key)
            raise
        self._starting = [each for each in self._starting if each not in probes]
        return probes

    def _dismiss(self, key: _Key) -> None:
        for worker in self._workers.pop(key):
            self._crew.dismiss(worker)
            self._starting = [each for each in self._starting if each is not worker]


def probing_backends(spec: Spec, among: Collection[str]) -> list[Backend]:
    """The runtimes that probe for a spec: its own if that lives on a clock of its own, else all that have a say.

    Those that probe for others always have one, and those of the group; where there are none, whoever can.
    """
    if spec.device != "cpu":
        raise Unsupported(f"no runtime can measure the ceilings of {spec.device} yet")
    own = backend(spec.backend)
    if not own.by_default and own.probes and own.installed:
        return [own]
    every = [backend(name) for name in registry.modules("backends")]
    able = [each for each in every if each.by_default and each.probes and each.installed]
    if spec.quantised:
        able = [each for each in able if each.quantises]
    if not able:
        raise Unsupported("no installed runtime can measure the ceilings")
    return [each for each in able if each.probes_for_others or each.name in among] or able
