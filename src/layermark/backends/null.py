"""A backend without a framework: the NumPy reference computes, and time passes on a clock of its own.

For tests of everything around a measurement. It is deterministic, and its results never meet a
measured one in a comparison, because its clock is named in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layermark.backends.base import Arrays, Backend, Probe, Program, Timeline
from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.workloads.base import Task

FLOPS_PER_S = 100e9
BYTES_PER_S = 50e9
CALL_NS = 1000


class NullProgram(Program):
    """Evaluates the graph when asked for outputs; a batch takes as long as half the ceiling says."""

    clock_name = "null"

    def __init__(self, spec: Spec, task: Task) -> None:
        self._spec, self._task = spec, task
        self._weights: dict[str, Any] = task.weights()
        graph = task.graph
        least_s = max(graph.flops(spec.mode) / FLOPS_PER_S, graph.compulsory_bytes(spec.mode) / BYTES_PER_S)
        self._batch_ns = CALL_NS + int(2e9 * least_s)
        self._now, self._done = 0, 0
        self.clock = lambda: self._now

    @property
    def settings(self) -> Mapping[str, str]:
        """Nothing was compiled."""
        return {"execution": "reference", "layout": "canonical", "compute_type": "float64", "output_type": "float32"}

    def run(self, batches: int) -> Timeline:
        """Let the time of these batches pass, with a ripple so that blocks are not all alike."""
        handed, done = [], []
        for _ in range(batches):
            handed.append(self._now)
            self._now += self._batch_ns + self._batch_ns * (self._done * 7 % 5) // 1000
            self._done += 1
            done.append(self._now)
        return Timeline(handed, done)

    def outputs(self) -> Arrays:
        """The last batch, evaluated by the reference."""
        from layermark.reference import evaluate

        fed = self._task.batch((self._done - 1) % self._spec.ring)
        wide = {name: value.astype("float64") if value.dtype.kind == "f" else value for name, value in fed.items()}
        weights = {name: value.astype("float64") for name, value in self._weights.items()}
        found = evaluate(self._task.graph, weights, wide)
        return {name: value.astype("float32") for name, value in found.items()}

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set the parameters and go back to the first input."""
        self._weights, self._done = dict(weights), 0

    def weights(self) -> Arrays:
        """The parameters."""
        return self._weights


class NullProbe(Probe):
    """The ceilings of the imaginary machine."""

    def peak(self, seconds: float) -> float:
        """Always the same."""
        return FLOPS_PER_S

    def bandwidth(self, working_set: int, seconds: float) -> float:
        """Always the same."""
        return BYTES_PER_S


class NullBackend(Backend):
    """Never chosen unless it is named."""

    name = "null"
    package = ""
    by_default = False
    probes = True
    half_on_cpus = True

    def prepare(self, spec: Spec, task: Task) -> Program:
        """A program on an imaginary machine."""
        if spec.mode == "train":
            raise Unsupported("null computes no gradients")
        if spec.execution not in ("auto", "reference"):
            raise Unsupported(f"null has no execution {spec.execution!r}; use --execution auto")
        return NullProgram(spec, task)

    def probe(self, spec: Spec) -> Probe:
        """The imaginary machine's ceilings."""
        return NullProbe()


BACKEND = NullBackend()
