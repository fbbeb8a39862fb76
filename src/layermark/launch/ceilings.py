"""The ceiling probe as the session sees it: what this machine can do at best, read in the same alternation."""

from __future__ import annotations

from layermark import registry
from layermark.backends.base import Backend, backend
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.process import Crew, Worker, worker_environment
from layermark.spec import Spec


class Ceilings:
    """The probe: one more worker of the alternation, with the same threads as the others."""

    def __init__(self, crew: Crew, timeout: float) -> None:
        self._crew = crew
        self._timeout = timeout
        self._workers: dict[tuple[str, int, str], Worker] = {}

    def reading(self, spec: Spec, working_set: int, seconds: float) -> dict[str, float]:
        """One reading of peak and bandwidth; raises `Unsupported` where no installed runtime can probe."""
        worker = self.worker(spec)
        try:
            return worker.call("ceiling", self._timeout, working_set=working_set, seconds=seconds)
        except WorkerFailed:
            self._workers = {key: each for key, each in self._workers.items() if each is not worker}
            self._crew.dismiss(worker)
            raise

    def worker(self, spec: Spec) -> Worker:
        """The probe's worker for this thread budget and type, started when first needed."""
        runtime = probing_backend(spec)
        key = (runtime.name, spec.threads, spec.precision)
        if key not in self._workers:
            asked = spec.replace(backend=runtime.name)
            worker = self._crew.hire(worker_environment(asked))
            worker.call("probe", self._timeout, spec=asked.to_json())
            self._workers[key] = worker
        return self._workers[key]


def probing_backend(spec: Spec) -> Backend:
    """The runtime that probes for a spec: its own if that lives on a clock of its own, else the best installed."""
    own = backend(spec.backend)
    if not own.by_default and own.probes and own.installed:
        return own
    for name in registry.modules("backends"):
        found = backend(name)
        if found.by_default and found.probes and found.installed:
            return found
    raise Unsupported("no installed runtime can measure the ceilings")
