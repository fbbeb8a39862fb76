"""The ceiling probes as the session sees them: what this machine can do at best, read in the same alternation."""

from __future__ import annotations

from collections.abc import Collection

from layermark import registry
from layermark.backends.base import Backend, backend
from layermark.devices import cpu
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.process import Crew, Worker, worker_environment
from layermark.spec import Spec


class Ceilings:
    """The probes: more workers of the alternation, with the same threads as the others.

    The best of all probes counts, so that no runtime is called impossible only because another's probe is weak.
    """

    def __init__(self, crew: Crew, timeout: float) -> None:
        self._crew = crew
        self._timeout = timeout
        self._workers: dict[tuple[str, int, str], Worker] = {}
        self.among: Collection[str] = ()
        """The runtimes that are measured together."""

    def probes(self, spec: Spec) -> list[str]:
        """The runtimes that are asked for a spec; raises `Unsupported` where no installed one can probe."""
        return [each.name for each in probing_backends(spec, {spec.backend, *self.among})]

    def reading(self, spec: Spec, working_set: int, seconds: float) -> dict[str, float]:
        """One reading of peak and bandwidth: the best of every probe that answers."""
        found: list[dict[str, float]] = []
        failure: WorkerFailed | None = None
        for name in self.probes(spec):
            try:
                found.append(self._ask(spec.replace(backend=name), working_set, seconds))
            except WorkerFailed as error:
                failure = error
        if not found:
            raise failure or WorkerFailed("no probe answered")
        return {key: max(each[key] for each in found) for key in found[0]}

    def _ask(self, spec: Spec, working_set: int, seconds: float) -> dict[str, float]:
        worker = self._worker(spec)
        cpu.wait_until_quiet(self._crew.others(worker))
        try:
            return worker.call("ceiling", self._timeout, working_set=working_set, seconds=seconds)
        except WorkerFailed:
            self._workers = {key: each for key, each in self._workers.items() if each is not worker}
            self._crew.dismiss(worker)
            raise

    def _worker(self, spec: Spec) -> Worker:
        """A probe's worker for this runtime, thread budget and type, started when first needed."""
        key = (spec.backend, spec.threads, spec.precision)
        if key not in self._workers:
            worker = self._crew.hire(worker_environment(spec))
            worker.call("probe", self._timeout, spec=spec.to_json())
            self._workers[key] = worker
        return self._workers[key]


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
