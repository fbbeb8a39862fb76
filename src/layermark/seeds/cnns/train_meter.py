"""From the host calls of a training run to the figures of its lines."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from layermark.seeds.cnns.train_lines import Progress


@dataclass(frozen=True, kw_only=True)
class HostCall:
    """What one host call of all processes did. The accuracy is a percentage."""

    updates: int
    pictures: int
    """Really processed, which a budget may make fewer than the global batch times the updates."""
    seconds: float
    rate: float
    """The learning rate."""
    loss: float
    accuracy: float


class Meter:
    """Adds up host calls: times since the last line, losses and accuracies of at most one epoch."""

    def __init__(
        self,
        *,
        global_batch: int,
        epoch_pictures: int,
        calls_per_epoch: int,
        steps_per_call: int,
        done: int = 0,
        step: int = 0,
        total_s: float = 0.0,
    ) -> None:
        """Begin after `done` updates, which took so many steps and seconds.

        Without a pipeline a call counts as accumulation-count steps, with one as 1.
        """
        self._global_batch, self._epoch_pictures, self._steps_per_call = global_batch, epoch_pictures, steps_per_call
        self._recent: deque[HostCall] = deque(maxlen=max(1, calls_per_epoch))
        self._since: list[HostCall] = []
        self._step, self._iteration, self._total_s = step, done, total_s

    @property
    def iteration(self) -> int:
        """Updates so far."""
        return self._iteration

    @property
    def epoch(self) -> float:
        """Epochs so far."""
        return self._iteration * self._global_batch / self._epoch_pictures

    def add(self, call: HostCall) -> None:
        """Count one host call."""
        self._recent.append(call)
        self._since.append(call)
        self._step += self._steps_per_call
        self._iteration += call.updates
        self._total_s += call.seconds

    def progress(self) -> Progress:
        """Return the figures of a line, and begin the next one; there must have been a call since the last."""
        last, since = self._since[-1], self._since
        seconds = sum(call.seconds for call in since)
        self._since = []
        return Progress(
            step=self._step,
            iteration=self._iteration,
            epoch=self.epoch,
            rate=last.rate,
            loss_batch=last.loss,
            loss_mean=statistics.fmean(call.loss for call in self._recent),
            accuracy_batch=last.accuracy,
            accuracy_mean=statistics.fmean(call.accuracy for call in self._recent),
            update_s=seconds / sum(call.updates for call in since),
            images_per_s=sum(call.pictures for call in since) / seconds,
            total_s=self._total_s,
        )
