"""A training run as its worker sees it: host calls whose state goes on, checkpoints, and the scores of checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from layermark import safetensors
from layermark.backends.base import Arrays, Program
from layermark.errors import UserError
from layermark.spec import Spec
from layermark.training import checkpoint
from layermark.training.checkpoint import Checkpoint
from layermark.worker.host_calls import LONG_ENOUGH_NS, timed_call
from layermark.worker.score import right_answers
from layermark.workloads.base import InputStream, Task

Array = np.ndarray[Any, Any]
_COPIES = 9


class Trainer:
    """One program in training. Nothing is loaded between its calls: weights, statistics, state and data go on."""

    def __init__(self, program: Program, spec: Spec, task: Task) -> None:
        self._program, self._spec, self._task = program, spec, task
        self._micro_batches = 1

    def begin(self, micro_batches: int, marker: str = "") -> dict[str, Any]:
        """Start from the weights of the task, or where a checkpoint was taken; return update and epoch."""
        self._micro_batches = micro_batches
        if not marker:
            self._load(self._task.weights())
            return {"update": 0, "epoch": 0.0}
        read = checkpoint.load(Path(marker))
        weights = {**read.weights, **read.statistics}
        self._check(weights, marker)
        self._load(weights, read.optimiser)
        self._seek(read)
        return {"update": read.update, "epoch": read.epoch}

    def _load(self, weights: Arrays, state: Arrays | None = None) -> None:
        self._program.micro_batches = self._micro_batches
        self._program.load(weights, state)

    def train(self, updates: int, rate: float) -> dict[str, Any]:
        """Make some updates in one timed host call; return the block, the mean loss and the right answers."""
        batches = updates * self._micro_batches
        self._program.learning_rate = rate
        done = timed_call(self._program, batches, 1, self._task.stream)
        found = self._program.totals()
        return {"block": {**done["block"], "latencies_ns": ()}, "loss": found.loss / batches, "right": found.right}

    def seconds_per_batch(self) -> float:
        """Return about how many seconds a batch takes, from calls that grow until one is long enough to trust."""
        updates, taken = 1, 0
        while taken < LONG_ENOUGH_NS:
            (taken,) = self.train(updates, 0.0)["block"]["samples_ns"]
            updates *= 2
        return taken / 1e9 / (updates // 2 * self._micro_batches)

    def save(self, folder: str, update: int, epoch: float) -> dict[str, Any]:
        """Write a checkpoint; return where it is, or the name of an array that is not finite: then nothing is written.

        The loss of a call is older than its last update, so it says nothing about the weights that are kept here.

        Inputs that are made up begin again with the first here, in the run that goes on as in one that is restored.
        """
        held, state = self._program.weights(), self._program.state()
        broken = next((name for name, each in {**held, **state}.items() if not np.isfinite(each).all()), "")
        if broken:
            return {"not_finite": broken}
        trained, statistics = self._parted(held)
        taken = Checkpoint(
            update=update,
            epoch=epoch,
            weights=trained,
            statistics=statistics,
            optimiser=state,
            random={"seed": self._spec.seed},
            position=_position(self._task.stream),
            execution=self._program.settings.get("execution", ""),
        )
        path = checkpoint.save(Path(folder), taken)
        if self._task.stream is None:
            # Copies, since a program may hand out the very memory that it is about to fill.
            kept = {name: np.array(each) for name, each in held.items()}
            copied = {name: np.array(each) for name, each in state.items()}
            self._load(kept, copied)
        return {"path": str(path)}

    def digest(self) -> dict[str, Any]:
        """Return a digest of weights, statistics and optimiser state: equal ones are equal to the bit."""
        found = hashlib.sha256()
        for kind, arrays in (("weights", self._program.weights()), ("state", self._program.state())):
            for name in sorted(arrays):
                found.update(f"{kind}/{name}".encode())
                found.update(np.ascontiguousarray(arrays[name]).tobytes())
        return {"sha256": found.hexdigest()}

    def _parted(self, held: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        trained: dict[str, Array] = {}
        statistics: dict[str, Array] = {}
        for name, each in held.items():
            place = trained if self._task.graph.parameters[name].trainable else statistics
            place[name] = each
        return trained, statistics

    def _check(self, weights: Arrays, marker: str) -> None:
        wanted = {name: tuple(each.shape) for name, each in self._task.graph.parameters.items()}
        odd = sorted(wanted.items() ^ {(name, each.shape) for name, each in weights.items()})
        if odd:
            name, shape = odd[0]
            raise UserError(
                f"checkpoint {Path(marker).stem} is that of another network: {name} {list(shape)} is not in both; "
                "restore it with the options of its own run"
            )

    def _seek(self, read: Checkpoint) -> None:
        from layermark.data.feed import Pictures
        from layermark.data.order import Position

        if isinstance(self._task.stream, Pictures):
            if not read.position:
                raise UserError(f"{read.name} was made without real data; restore it with --generated-data")
            self._task.stream.seek(Position(**read.position))
            self._program.seek(read.position)


def _position(stream: InputStream | None) -> dict[str, Any]:
    from layermark.data.feed import Pictures

    return dataclasses.asdict(stream.position) if isinstance(stream, Pictures) else {}


def validate(program: Program, task: Task, path: str, batches: int) -> dict[str, Any]:
    """Count the right answers of an inference program with the weights of a checkpoint or of an average."""
    program.load(_weights_at(Path(path)))
    began = time.perf_counter()
    right = right_answers(program, task, batches)
    return {"right": right, "seconds": time.perf_counter() - began}


def _weights_at(path: Path) -> dict[str, Array]:
    return checkpoint.weights_of(path) if path.suffix == ".json" else safetensors.read(path)


def copy_seconds(program: Program) -> float:
    """Return how long it takes to bring a batch to where the program reads it: the median of a few times."""
    taken = []
    for _ in range(_COPIES):
        began = time.perf_counter()
        program.copy_batch()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def loader_rate(stream: InputStream | None, seconds: float, skip: int = 1) -> dict[str, Any]:
    """Take batches and do nothing with them; return how many came in how long.

    `skip` batches are taken before: what was made ahead says nothing about the rate.
    """
    if stream is None:
        return {"batches": 0, "seconds": 0.0}
    for _ in range(skip):
        stream.take()
    began, taken = time.perf_counter(), 0
    while taken == 0 or time.perf_counter() - began < seconds:
        stream.take()
        taken += 1
    return {"batches": taken, "seconds": time.perf_counter() - began}
