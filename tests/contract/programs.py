"""Small programs of every layer on every runtime, and what the tests of them share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from layermark import reference
from layermark.backends.base import backend
from layermark.cli.support import ROWS
from layermark.spec import Spec
from layermark.workloads.base import Task
from layermark.workloads.base import task as task_of

SMALL: dict[str, dict[str, Any]] = {
    name: dict(ROWS[name]) for name in ("dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi")
}
"""The layers at the sizes that the page of what runs where is made with."""
EVERY_LAYER = pytest.mark.parametrize("workload", SMALL)
RECURRENT = ("rnn", "gru", "lstm", "lstm_multi")


@dataclass(frozen=True)
class Variant:
    """A runtime, and one of its executions."""

    backend: str
    execution: str
    trains: bool = True
    loops: bool = False
    """Whether a call of several batches is one call of the runtime too."""

    def __str__(self) -> str:
        return f"{self.backend}-{self.execution}"

    def spec(self, workload: str = "dense", **changes: Any) -> Spec:
        """A small measurement of a layer, or of a model at the size that the changes say."""
        params = SMALL.get(workload, {}) | changes.pop("params", {})
        facts = {"batch_size": 3, "execution": self.execution, "threads": 1, "learning_rate": 0.5} | changes
        return Spec(workload=workload, backend=self.backend, params=params, **facts)

    def prepared(self, workload: str = "dense", **changes: Any) -> tuple[Any, Task]:
        """The program and its task, where the runtime is installed."""
        if not backend(self.backend).installed:
            pytest.skip(f"{self.backend} is not installed")
        spec = self.spec(workload, **changes)
        task = task_of(spec)
        return backend(self.backend).prepare(spec, task), task


TORCH = Variant("torch", "eager")
TENSORFLOW = Variant("tensorflow", "function", loops=True)
TENSORFLOW_XLA = Variant("tensorflow", "xla", loops=True)
TENSORFLOW_SESSION = Variant("tensorflow", "session", loops=True)
JAX = Variant("jax", "jit", loops=True)
ONNXRUNTIME = Variant("onnxruntime", "sequential", trains=False)
OPENVINO = Variant("openvino", "latency", trains=False)

RUNTIMES = (TORCH, TENSORFLOW, JAX, ONNXRUNTIME, OPENVINO)
VARIANTS = (*RUNTIMES, TENSORFLOW_XLA, TENSORFLOW_SESSION)
TRAINING = tuple(variant for variant in VARIANTS if variant.trains)
LOOPING = tuple(variant for variant in VARIANTS if variant.loops)
CONNECTED = tuple(variant for variant in RUNTIMES if backend(variant.backend).connects)


def each_of(variants: tuple[Variant, ...]) -> Any:
    """A test for each of these."""
    return pytest.mark.parametrize("variant", variants, ids=str)


def oracle(task: Task, index: int, weights: Any = None) -> dict[str, Any]:
    """The reference's outputs for one input of the ring."""
    held, fed = reference.doubles(weights or task.weights()), reference.doubles(task.batch(index))
    return reference.evaluate(task.graph, held, fed)


def slopes(task: Task, index: int = 0) -> tuple[float, dict[str, Any]]:
    """The reference's loss and gradients for one input of the ring."""
    torch = pytest.importorskip("torch")
    return reference.gradients(task.graph, task.weights(), task.batch(index), torch)


def close(actual: Any, expected: Any, tolerance: float = 1e-5, floor: float = 1e-12) -> None:
    """Every array equal up to a share of its largest value."""
    assert list(actual) == list(expected)
    for name, wanted in expected.items():
        assert actual[name].shape == np.shape(wanted), name
        assert np.abs(actual[name] - wanted).max() <= tolerance * np.abs(wanted).max() + floor, name


def blank(host: Any) -> None:
    """Zeros over a batch as it lies on the host, in the memory of the runtime's own tensors."""
    for each in host:
        np.asarray(each)[...] = 0


def fresh(script: str, *arguments: str, **variables: str) -> str:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
