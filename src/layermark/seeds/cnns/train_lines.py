"""The lines that `train.py` prints while it trains and validates, the rows of its tables, and its closing summary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from layermark.seeds.cnns.printing import counted, dropped_words, spread

TRAINING = "training.csv"
VALIDATION = "validation.csv"
DROPPED = 1
"""The first line of the original program contains compilation, so it is left out of the mean."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where training stands at one line. Accuracies are percentages."""

    step: int
    """Host calls so far with a pipeline; without one, each adds the accumulation count."""
    iteration: int
    """Updates so far."""
    epoch: float
    rate: float
    """The learning rate."""
    loss_batch: float
    """Of the last host call."""
    loss_mean: float
    """Over at most one epoch of host calls."""
    accuracy_batch: float
    accuracy_mean: float
    update_s: float
    """Mean seconds of an update since the last line."""
    images_per_s: float
    """Of the whole system, in every process."""
    total_s: float

    def line(self) -> str:
        """Return the line of the terminal and of the log."""
        return (
            f"step: {self.step:6d}, iteration: {self.iteration:6d}, epoch: {self.epoch:6.2f}, lr: {self.rate:6.4g}, "
            f"loss: {self.loss_mean:6.3f}, top-1 accuracy: {self.accuracy_mean:6.3f}%, "
            f"img/sec: {self.images_per_s:6.2f}, time: {self.update_s:8.6f}, total_time: {self.total_s:8.1f}"
        )

    def row(self) -> dict[str, float]:
        """Return the row of `training.csv`."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "epoch": self.epoch,
            "lr": self.rate,
            "loss_batch": self.loss_batch,
            "loss_avg": self.loss_mean,
            "train_acc_batch": self.accuracy_batch,
            "train_acc_avg": self.accuracy_mean,
            "it_time": self.update_s,
            "img_per_sec": self.images_per_s,
            "total_time": self.total_s,
        }


@dataclass(frozen=True, kw_only=True)
class Validated:
    """What one validation has found. The accuracy is a percentage."""

    name: str
    """The checkpoint, such as ckpt-1600."""
    iteration: int
    epoch: float
    accuracy: float
    seconds: float
    pictures: int
    latency_ms: float | None = None
    """Shown where it is asked for."""

    @property
    def images_per_s(self) -> float:
        """Pictures per second of the whole system."""
        return self.pictures / self.seconds

    def line(self) -> str:
        """Return the line of the terminal and of the log."""
        latency = "" if self.latency_ms is None else f", latency (ms): {self.latency_ms:.3f}"
        return (
            f"Validation top-1 accuracy [{self.name}] (iteration: {self.iteration:6d}, epoch: {self.epoch:6.2f}, "
            f"img/sec: {self.images_per_s:.2f}, time: {self.seconds:.6f}{latency}): {self.accuracy:.3f}%"
        )

    def row(self) -> dict[str, float | str]:
        """Return the row of `validation.csv`."""
        return {
            "name": self.name,
            "iteration": self.iteration,
            "epoch": self.epoch,
            "val_acc": self.accuracy,
            "val_time": self.seconds,
            "val_size": self.pictures,
            "img_per_sec": self.images_per_s,
        }


def saved_line(path: object) -> str:
    """Return the line of a checkpoint that was written."""
    return f"Saved checkpoint to {path}"


def restoring_line(path: object) -> str:
    """Return the line of the checkpoint that a run goes on from."""
    return f"Restoring training from latest checkpoint: {path}"


def summary(rates: Sequence[float]) -> list[str]:
    """Return the closing lines: the documents' figures without the first line, beside the median of the same lines."""
    if not rates:
        return []
    kept = counted(rates, DROPPED)
    without = f" without {dropped_words(len(rates), DROPPED, 'line')}" if len(kept) < len(rates) else ""
    return [
        f"Throughput{without}: {spread(kept, 'img/sec')}.",
        f"Median throughput of {len(kept)} line{'s' * (len(kept) != 1)}: {statistics.median(kept):.2f} img/sec.",
    ]
