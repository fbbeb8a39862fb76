"""Where the time of real data goes: three rungs that differ only in what feeds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from layermark.outcome import Run
from layermark.stats.rates import latency_ms, throughput

RUNGS = ("synthetic", "generated", "real")
STAGES = ("read", "decode", "preprocess")


@dataclass(frozen=True)
class Ladder:
    """Seconds per item and latency of a batch on every rung, and which share of the time each step costs."""

    seconds: Mapping[str, float]
    latency_ms: Mapping[str, Mapping[str, float | None]]
    lost: Mapping[str, float]
    """Shares of `read`, `decode`, `preprocess` and `copy`; the rest is the network's own."""

    @property
    def network(self) -> float:
        """The share that is the network's own."""
        return 1 - self.total

    @property
    def total(self) -> float:
        """The share that real data cost in all."""
        return sum(self.lost.values())


def ladder(runs: Mapping[str, Run]) -> Ladder:
    """What each step up costs. What the loader adds is split as its processes spent their time.

    Copying is what generated data cost over synthetic ones; loading is what real data cost over generated ones, so
    only time that is not hidden behind the network's counts. A step that costs nothing measurable counts as zero.
    """
    seconds = {}
    for name in RUNGS:
        rate = throughput(runs[name].blocks, runs[name].items_per_batch)
        assert rate is not None, "a run without blocks"
        seconds[name] = 1 / rate.value
    spent = {stage: sum(block.context[f"{stage}_s"] for block in runs["real"].blocks) for stage in STAGES}
    whole = sum(spent.values()) or 1.0
    loading = max(0.0, seconds["real"] - seconds["generated"]) / seconds["real"]
    copying = max(0.0, seconds["generated"] - seconds["synthetic"]) / seconds["real"]
    latency = {name: latency_ms(runs[name].blocks) for name in RUNGS}
    return Ladder(seconds, latency, {**{stage: loading * spent[stage] / whole for stage in STAGES}, "copy": copying})
