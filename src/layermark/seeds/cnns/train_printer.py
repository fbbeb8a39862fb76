"""What `train.py` prints while it trains, and what it writes down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.mlperf import MlperfLog
from layermark.seeds.cnns.train_bar import NoBar
from layermark.seeds.cnns.train_lines import TRAINING, VALIDATION, Validated, restoring_line, saved_line, summary
from layermark.seeds.cnns.train_meter import HostCall, Meter
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.seeds.printing import LONG_S, duration
from layermark.session.training import Called, TrainingListener
from layermark.spec import Spec
from layermark.training.lengths import Fitted, Lengths

_ANATOMY = {
    "end_to_end_per_s": "as trained",
    "compute_only_per_s": "computing alone",
    "loader_only_per_s": "loading alone",
}
_GOING_ON = ("step", "iteration", "total_time")
"""What a run that goes on takes from the last row of `training.csv`."""
_WORDS = {"waiting": "waiting for data", "rest": "the rest"}


class TrainPrinter(TrainingListener):
    """Prints every event of a run as soon as it happens, and keeps the rows of its tables."""

    def __init__(
        self, request: TrainRequest, length: Lengths, log: Log, folder: Path | None, bar: NoBar | None = None
    ) -> None:
        """`folder` is where checkpoints are to stay; of others nobody need know."""
        self._request, self._length, self._log, self._folder = request, length, log, folder
        self.mlperf = MlperfLog(log.say, wanted=request.mlperf_logging)
        self.last_checkpoint: Path | None = None
        self.bar = bar or NoBar()
        self._meter = self._new_meter()
        self._rates: list[float] = []

    def _new_meter(self, done: int = 0, row: Mapping[str, str] | None = None) -> Meter:
        """Begin after so many updates; `row` is the last one of the table that is not above them."""
        step, iteration, total_s = (float(row[name]) for name in _GOING_ON) if row else (0.0, 0.0, 0.0)
        calls = math.ceil((done - iteration) / self._length.updates_per_call)
        return Meter(
            global_batch=self._length.global_batch,
            epoch_pictures=self._length.pictures,
            calls_per_epoch=self._length.calls_per_epoch,
            steps_per_call=self._request.steps_per_call,
            done=done,
            step=int(step) + calls * self._request.steps_per_call,
            total_s=total_s,
        )

    def say(self, line: str) -> None:
        """Print a line and keep it."""
        self._log.say(line)

    def phase(self, spec: Spec, text: str) -> None:
        """Show on a terminal what is being done."""
        self.bar.phase(text)

    def begins(self, calls: int) -> None:
        """Begin to count host calls on a terminal."""
        self.bar.begins(calls)

    def note(self, text: str) -> None:
        """One line."""
        self.say(f"Note: {text}")

    def expected(self, seconds: float) -> None:
        """Warn of a long run, unless a budget ends it."""
        if seconds > LONG_S and self._request.budget_s is None:
            self.say(f"This run will take about {duration(seconds)}; --budget 2m would end it in time.")

    def shortened(self, fitted: Fitted) -> None:
        """Say what the budget leaves of the request."""
        budget = duration(self._request.budget_s or 0.0)
        self.say(f"Shortened to fit the budget of {budget}: {', '.join(fitted.shortened)}.")
        if not fitted.fits:
            self.say("Even this takes longer than the budget.")

    def compiled(self, seconds: float) -> None:
        """Say that training begins."""
        self.say(f"Compiled in {seconds:.3f} seconds")
        self.mlperf.begin()

    def restored(self, path: Path, update: int) -> None:
        """Say where the run goes on; what was written about later updates will be written again."""
        self.say(restoring_line(path.with_suffix("")))
        self._log.keep_rows(VALIDATION, "iteration", update)
        kept = self._log.keep_rows(TRAINING, "iteration", update)
        self._meter = self._new_meter(update, kept[-1] if kept else None)
        self.last_checkpoint = path

    def called(self, done: Called, *, line: bool) -> None:
        """Count a host call; where a line is due, print it."""
        self.bar.called(done.seconds, done.pictures, done.loss)
        self._meter.add(self._host_call(done))
        if line:
            progress = self._meter.progress()
            self._rates.append(progress.images_per_s)
            self.say(progress.line())
            self._log.row(TRAINING, progress.row())
            self.mlperf.progress(progress)

    def _host_call(self, done: Called) -> HostCall:
        """Of synthetic data, which never leave the device, loss, accuracy and rate read 0."""
        shown = self._request.spec.data != "synthetic"
        return HostCall(
            updates=done.call.last - done.call.first,
            pictures=done.pictures,
            seconds=done.seconds,
            rate=done.rate if shown else 0.0,
            loss=done.loss if shown else 0.0,
            accuracy=100 * done.accuracy if shown else 0.0,
        )

    def saved(self, path: Path, update: int, epoch: float) -> None:
        """Say where a checkpoint is."""
        if self._folder is not None:
            self.last_checkpoint = path  # before the line: whoever reads that may interrupt at once
            self.say(saved_line(path.with_suffix("")))

    def stopped(self, done: int, requested: int) -> None:
        """Say that the budget ended the run."""
        self.say(f"The budget ended the run after {done} of {requested} host calls.")

    def profiled(self, files: Sequence[str]) -> None:
        """Say where the profile is."""
        self.say(f"Profile: {', '.join(files)}")

    def validated(self, found: Validated) -> None:
        """Print and keep one validation."""
        self.say(found.line())
        self._log.row(VALIDATION, found.row())
        self.mlperf.validated(found)

    def close(self) -> None:
        """Take the bar away, and print the figures of the lines."""
        self.bar.close()
        for line in summary(self._rates):
            self.say(line)


def anatomy(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a step is made of, and what the rate leaves out."""
    parts = facts["anatomy"]
    rates = [f"{words} {parts[name]:.4g}/s" for name, words in _ANATOMY.items() if name in parts]
    if len(rates) > 1:
        yield f"  parts     {', '.join(rates)}; {parts['waiting_for_data']:.1%} of the time waiting for data"
    if seconds := parts.get("parts_s"):
        whole = sum(seconds.values())
        shares = [f"{_WORDS.get(name, name)} {each / whole:.1%}" for name, each in seconds.items()]
        yield f"  step      {', '.join(shares)} of {whole:.4g} s a micro-batch"
    left_out = [f"{name} {seconds:.3g} s" for name, seconds in facts["excluded_s"].items()]
    yield f"  excluded  {', '.join(left_out)}"
