"""What the CNN programs print: their lines exactly as the seeds have them, and what must be said besides."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from layermark.outcome import Block
from layermark.seeds.cnns.inference import InferenceRequest
from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.validation import ValidationRequest
from layermark.seeds.printing import Printer

VALIDATION = "validation.csv"
_NOTHING = "N/A"


def counted(values: Sequence[float], dropped: int) -> Sequence[float]:
    """What is left without the first ones, as far as others are left.

    >>> counted([1, 2, 3], 2), counted([1, 2], 2)
    ([3], [2])
    """
    return values[min(dropped, len(values) - 1) :] if values else values


def dropped_words(done: int, dropped: int, word: str) -> str:
    """What was left out, in words."""
    left_out = max(0, min(dropped, done - 1))
    plural = "" if left_out == 1 else f" {left_out}"
    return f"the first{plural} {word}{'s' if left_out != 1 else ''}" if left_out else f"nothing: one {word} is all"


def spread(rates: Sequence[float], unit: str) -> str:
    """The figures that the seeds take from single rates."""
    figures = {
        "min": min(rates),
        "max": max(rates),
        "mean": statistics.fmean(rates),
        "std": statistics.pstdev(rates),
    }
    return ", ".join(f"{name}={value:.2f} {unit}" for name, value in figures.items())


class InferencePrinter(Printer):
    """The form of `run_benchmark.py`: every line begins with its level."""

    step_word = "host call"

    def __init__(self, asked: InferenceRequest, log: Log) -> None:
        super().__init__(asked)
        self._log = log
        self._rates: list[float] = []
        self._latencies_ms: list[float] = []

    def say(self, line: str) -> None:
        """One line of information."""
        self._log.say(f"[INFO] {line}".rstrip())

    def open(self) -> None:
        """Where the log is, and what the user should know."""
        self.say(f"Logging to {self._log.folder}")
        for text in self._asked.notes:
            self.note(text)

    def begin(self) -> None:
        """Say that the program is being built."""
        self.say("Compiling...")

    def compiled(self, seconds: float) -> None:
        """Say how long it took."""
        self.say(f"Compiled in {seconds:.3f} seconds")

    def step(self, block: Block, items: int) -> None:
        """The line of one host call."""
        rate = items / (block.samples_ns[0] / 1e9)
        latencies = [] if self._asked.spec.data == "synthetic" else [each / 1e6 for each in block.latencies_ns]
        self._rates.append(rate)
        self._latencies_ms += latencies
        span = f"{min(latencies):.1f}..{max(latencies):.1f} ms" if latencies else _NOTHING
        self.say(f"Throughput: {rate:.1f} imgs/sec; Latency range: {span}")

    def end(self, document: Mapping[str, Any]) -> None:
        """The figures of all host calls."""
        if not self._rates:
            return
        spec = self._asked.spec
        setting = (
            f"bs={spec.batch_size}, data_mode={spec.data}, data_type={output_type(document)}, "
            f"num_ipus={spec.plan.replicas}, of {spec.workload}"
        )
        self.say("-" * 50)
        self.say(f"Throughput at {setting}: {spread(counted(self._rates, self._asked.course.dropped), 'imgs/s')}.")
        self.say(f"Latency: {self._latency()}")

    def _latency(self) -> str:
        found = self._latencies_ms
        if not found:
            return _NOTHING
        return f"min={min(found):.2f} ms, max={max(found):.2f} ms, mean={statistics.fmean(found):.2f} ms."

    @property
    def dropped(self) -> str:
        """The first host calls."""
        return dropped_words(len(self._rates), self._asked.course.dropped, self.step_word)


def output_type(document: Mapping[str, Any]) -> str:
    """The type of the network's outputs, as PyTorch calls it where that is what ran."""
    name = str(document["settings"].get("output_type") or "unknown").rpartition(".")[2]
    return f"torch.{name}" if document["spec"]["backend"] == "torch" else name


class ValidationPrinter(Printer):
    """The form of `validation.py`: one line for every validation."""

    step_word = "validation"

    def __init__(self, asked: ValidationRequest, log: Log) -> None:
        super().__init__(asked)
        self._validation, self._log = asked, log
        self._rates: list[float] = []
        self._accuracy = 0.0

    def say(self, line: str) -> None:
        """One line."""
        self._log.say(line)

    def open(self) -> None:
        """Where the log is, and what the user should know."""
        if self._log.folder is not None:
            self.say(f"Saving to {self._log.folder}")
        for text in self._asked.notes:
            self.note(text)

    def begin(self) -> None:
        """Say what one validation is."""
        course, replicas = self._asked.course, self._asked.spec.plan.replicas
        pictures = course.step_batches * self._asked.spec.batch_size * replicas
        self.say(f"Batch Size: {self._asked.spec.batch_size * replicas}")
        self.say(f"{pictures} pictures per validation: {course.calls} host calls of {course.batches} batches")
        self.say("Compiling...")

    def compiled(self, seconds: float) -> None:
        """Say how long it took."""
        self.say(f"Compiled in {seconds:.3f} seconds")

    def scored(self, right: int, pictures: int) -> None:
        """Keep the accuracy for the lines that follow."""
        self._accuracy = 100 * right / pictures

    def step(self, block: Block, items: int) -> None:
        """The line of one validation, and its row."""
        seconds = block.samples_ns[0] / 1e9
        self._rates.append(items / seconds)
        point = self._validation.point
        latency = f", latency (ms): {mean_ms(block)}" if self._validation.latency else ""
        self.say(
            f"Validation top-1 accuracy [None] (iteration: {point:6d}, epoch: {0.0:6.2f}, "
            f"img/sec: {items / seconds:.2f}, time: {seconds:.6f}{latency}): {self._accuracy:.3f}%"
        )
        names = ("name", "iteration", "epoch", "val_acc", "val_time", "val_size", "img_per_sec")
        cells = (self._validation.name, point, 0.0, self._accuracy, seconds, items, items / seconds)
        self._log.row(VALIDATION, dict(zip(names, cells, strict=True)))

    def end(self, document: Mapping[str, Any]) -> None:
        """The figures of all validations but the first."""
        if self._rates:
            kept = counted(self._rates, self._asked.course.dropped)
            without = f" without {self.dropped}" if len(kept) < len(self._rates) else ""
            self.say(f"Throughput{without}: {spread(kept, 'img/sec')}.")

    @property
    def dropped(self) -> str:
        """The first validation."""
        return dropped_words(len(self._rates), self._asked.course.dropped, self.step_word)


def mean_ms(block: Block) -> str:
    """The mean latency of a block's batches: as they were told, else of all of them together."""
    times = block.latencies_ns or [block.samples_ns[0] / block.batches]
    return f"{statistics.fmean(times) / 1e6:.3f}"
