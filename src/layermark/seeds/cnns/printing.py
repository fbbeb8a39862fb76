"""What the CNN programs print: their lines exactly as the seeds have them, and what must be said besides."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layermark.outcome import Block
from layermark.report.text import arms, human
from layermark.seeds.cnns.inference import InferenceRequest
from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.validation import ValidationRequest
from layermark.seeds.job import tag
from layermark.seeds.printing import Printer
from layermark.seeds.request import ScriptRequest
from layermark.spec import Spec

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


class CnnPrinter(Printer):
    """What both programs keep of a run for the figures at its end."""

    def __init__(self, request: ScriptRequest, log: Log) -> None:
        super().__init__(request)
        self._log = log
        self._rates: list[float] = []
        self.document: Mapping[str, Any] | None = None
        """The result, once it is there."""

    @property
    def spec(self) -> Spec:
        """What is measured."""
        return self._request.spec

    @property
    def left_out(self) -> int:
        """How many of the first rates the documents leave out."""
        return self._request.steps.dropped

    @property
    def counted_rates(self) -> Sequence[float]:
        """The rates that the documents take the mean of."""
        return counted(self._rates, self.left_out)

    @property
    def dropped(self) -> str:
        """The first steps, in words."""
        return dropped_words(len(self._rates), self.left_out, self.step_word)


class InferencePrinter(CnnPrinter):
    """The form of `run_benchmark.py`: every line begins with its level."""

    step_word = "host call"

    def __init__(self, request: InferenceRequest, log: Log) -> None:
        super().__init__(request, log)
        self._inference = request
        self._latencies_ms: list[float] = []

    def say(self, line: str) -> None:
        """One line of information."""
        self._log.say(f"[INFO] {line}".rstrip())

    def open(self) -> None:
        """Where the log is, and what the user should know."""
        self.say(f"Logging to {self._log.folder}")
        for text in self._request.notes:
            self.note(text)

    def begin(self) -> None:
        """Say that the program is being built."""
        self.say("Compiling...")

    def compiled(self, seconds: float) -> None:
        """Say how long it took."""
        self.say(f"Compiled in {seconds:.3f} seconds")

    def step(self, block: Block, items: int) -> None:
        """The line of one host call: what this instance reached. The figures at the end are those of all together."""
        latencies = [] if self._request.spec.data == "synthetic" else [each / 1e6 for each in block.latencies_ns]
        self._rates.append(items / (block.samples_ns[0] / 1e9))
        self._latencies_ms += latencies
        instances = self._request.spec.plan.instances
        rate, own = self._rates[-1], latencies[: len(latencies) // instances]
        if instances > 1:
            slowest_ns = max(block.ranks_ns[0][: len(block.ranks_ns[0]) // instances])
            rate = items / instances / (slowest_ns / 1e9)
        span = f"{min(own):.1f}..{max(own):.1f} ms" if own else _NOTHING
        self.say(f"{tag()}Throughput: {rate:.1f} imgs/sec; Latency range: {span}")

    def end(self, document: Mapping[str, Any]) -> None:
        """The figures of all host calls."""
        self.document = document
        if not self._rates:
            return
        spec = self._request.spec
        setting = (
            f"bs={spec.batch_size}, data_mode={spec.data}, data_type={output_type(document)}, "
            f"num_ipus={spec.plan.replicas * self._inference.stages}, of {spec.workload}"
        )
        self.say("-" * 50)
        self.say(f"Throughput at {setting}: {spread(self.counted_rates, 'imgs/s')}.")
        self.say(f"Latency: {self._latency()}")

    def _latency(self) -> str:
        found = self._latencies_ms
        if not found:
            return _NOTHING
        return f"min={min(found):.2f} ms, max={max(found):.2f} ms, mean={statistics.fmean(found):.2f} ms."


def output_type(document: Mapping[str, Any]) -> str:
    """The type of the network's outputs, as PyTorch calls it where that is what ran."""
    name = str(document["settings"].get("output_type") or "unknown").rpartition(".")[2]
    return f"torch.{name}" if document["spec"]["backend"] == "torch" else name


class ValidationPrinter(CnnPrinter):
    """The form of `validation.py`: one line for every validation."""

    step_word = "validation"

    def __init__(self, request: ValidationRequest, log: Log) -> None:
        super().__init__(request, log)
        self._validation = request
        self._accuracy = 0.0

    def say(self, line: str) -> None:
        """One line."""
        self._log.say(line)

    def open(self) -> None:
        """Where the log is, and what the user should know."""
        if self._log.folder is not None:
            self.say(f"Saving to {self._log.folder}")
        for text in self._request.notes:
            self.note(text)

    def begin(self) -> None:
        """Say what one validation is."""
        steps, replicas = self._request.steps, self._request.spec.plan.replicas
        pictures = steps.step_batches * self._request.spec.batch_size * replicas
        self.say(f"Batch Size: {self._request.spec.batch_size * replicas}")
        self.say(f"{pictures} pictures per validation: {steps.calls} host calls of {steps.batches} batches")
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
        point, epoch = self._validation.point, self._validation.epoch
        latency = f", latency (ms): {mean_ms(block)}" if self._validation.latency else ""
        self.say(
            f"Validation top-1 accuracy [None] (iteration: {point:6d}, epoch: {epoch:6.2f}, "
            f"img/sec: {items / seconds:.2f}, time: {seconds:.6f}{latency}): {self._accuracy:.3f}%"
        )
        names = ("name", "iteration", "epoch", "val_acc", "val_time", "val_size", "img_per_sec")
        cells = (self._validation.name, point, epoch, self._accuracy, seconds, items, items / seconds)
        self._log.row(VALIDATION, dict(zip(names, cells, strict=True)))

    def end(self, document: Mapping[str, Any]) -> None:
        """The figures of all validations but the first."""
        self.document = document
        if self._rates:
            kept = self.counted_rates
            without = f" without {self.dropped}" if len(kept) < len(self._rates) else ""
            self.say(f"Throughput{without}: {spread(kept, 'img/sec')}.")


def mean_ms(block: Block) -> str:
    """The mean latency of a block's batches: as they were told, else of all of them together."""
    times = block.latencies_ns or [block.samples_ns[0] / block.batches]
    return f"{statistics.fmean(times) / 1e6:.3f}"


def table(printers: Sequence[CnnPrinter]) -> Iterator[str]:
    """A row per batch size: the mean of single rates, as the documents take it, beside all items over all time."""
    without = f"the first {printers[0].left_out} {printers[0].step_word}s"
    yield ""
    yield f"{'batch size':>10}  {'mean of rates':>13}  all items over all time; both without {without}"
    for each in printers:
        yield f"{each.spec.batch_size:>10}  {_mean(each):>13}  {_ours(each)}"


def _mean(printer: CnnPrinter) -> str:
    return f"{statistics.fmean(printer.counted_rates):.2f}" if printer.counted_rates else "-"


def _ours(printer: CnnPrinter) -> str:
    document = printer.document or {"status": "failed", "reason": "not measured"}
    if document["status"] != "ok":
        return f"{document['status']}: {document['reason'].removeprefix('not measured: ')}"
    rate = document["sustained"]
    return f"{human(rate['value'])} {rate['unit']} {arms(rate)}"
