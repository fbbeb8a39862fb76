"""A number carries its meaning: tag, unit, interval, which way is better, one line of help."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["number", "thousands", "share", "bytes", "error"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a result. `tag` is its dotted path in the result document."""

    tag: str
    name: str
    """What a heading calls it."""
    unit: str
    better: Literal["higher", "lower"]
    help: str
    form: Form = "number"
    """How it is written: as a number, in steps of a thousand, in percent, in bytes, or as a power of ten."""
    value: float | None = None
    low: float | None = None
    high: float | None = None

    def read(self, document: Mapping[str, Any]) -> Metric:
        """This metric with the numbers that a result document holds for it."""
        found = _find(document, self.tag)
        numbers = found if isinstance(found, Mapping) else {"value": found}
        known = {name: numbers[name] for name in ("value", "low", "high") if name in numbers}
        return dataclasses.replace(self, unit=numbers.get("unit") or self.unit, **known)

    def better_than(self, other: Metric) -> bool:
        """Whether this value is the better of two; a missing value never is."""
        if self.value is None or other.value is None:
            return False
        return self.value > other.value if self.better == "higher" else self.value < other.value


def _find(document: Mapping[str, Any], tag: str) -> Any:
    found: Any = document
    for name in tag.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _known(
    tag: str, name: str, unit: str, better: Literal["higher", "lower"], help: str, form: Form = "number"
) -> Metric:
    return Metric(tag=tag, name=name, unit=unit, better=better, help=help, form=form)


KNOWN: tuple[Metric, ...] = (
    _known(
        "throughput",
        "rate",
        "items/s",
        "higher",
        "items over the median block time, 95 % bootstrap interval over blocks",
        "thousands",
    ),
    _known(
        "sustained",
        "sustained rate",
        "items/s",
        "higher",
        "all items over all timed seconds, 95 % bootstrap interval over blocks",
        "thousands",
    ),
    _known(
        "mean_rate",
        "mean rate",
        "items/s",
        "higher",
        "mean of the blocks' rates without the first, as the seed documents average; the rate is the figure to quote",
        "thousands",
    ),
    _known(
        "latency_ms.p50",
        "median latency",
        "ms",
        "lower",
        "half of the batches took no longer, from hand-over to result",
    ),
    _known("latency_ms.p90", "latency p90", "ms", "lower", "nine of ten batches took no longer"),
    _known("latency_ms.p99", "latency p99", "ms", "lower", "99 of 100 batches took no longer"),
    _known("compile_s", "compile", "s", "lower", "building and compiling the program, before its first step"),
    _known("memory.peak_rss_bytes", "peak memory", "bytes", "lower", "largest resident memory of the worker", "bytes"),
    _known(
        "efficiency",
        "share of the ceiling",
        "",
        "higher",
        "attained share of the ceiling measured in the same session, never clamped",
        "share",
    ),
    _known(
        "verified.max_error",
        "largest error",
        "",
        "lower",
        "largest error against the float64 reference, relative to the output",
        "error",
    ),
)


def metric(tag: str) -> Metric:
    """The known metric of this tag, without numbers."""
    return {each.tag: each for each in KNOWN}[tag]


def metrics(document: Mapping[str, Any]) -> list[Metric]:
    """Every known metric with the numbers of a result document; a missing number is None."""
    return [each.read(document) for each in KNOWN]
