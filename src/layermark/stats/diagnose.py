"""What the samples of a run warn of: outliers with their causes, short samples, wide intervals, stolen time."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from layermark.outcome import Block, Diagnostic, Run
from layermark.stats.rates import SAMPLES_NEEDED, latencies_ns, throughput, timed_blocks

SHORT_SAMPLE_S = 1e-3
STEAL_SHARE = 0.01
MILD_SHARE = 0.02
"""Normal noise alone puts 0.7 % of the samples beyond the inner fences."""

# Below this share of the median, a spread is the clock's and not the program's.
_SMALLEST_IQR = 0.001
_BLOCKS_NAMED = 2


class Cause(NamedTuple):
    """A count in a block's context that can explain a slow sample once it stands out by `at_least`."""

    key: str
    words: str
    at_least: float


CAUSES = (
    Cause("involuntary_switches", "involuntary context switches", 5),
    Cause("voluntary_switches", "voluntary context switches", 20),
    Cause("major_faults", "major page faults", 1),
    Cause("minor_faults", "minor page faults", 200),
    Cause("steal_s", "s stolen by the hypervisor", 0.01),
)


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Samples beyond Tukey's fences: 1.5 (mild) and 3 (severe) interquartile ranges from the quartiles."""

    samples: int
    mild: int
    severe: int
    slowest: float
    """The slowest sample in medians."""
    blocks: tuple[int, ...]
    """Indices of the blocks that hold them, the most affected first."""


def outliers(blocks: Sequence[Block]) -> Outliers | None:
    """Classify every sample by its time per batch; None without samples."""
    times = np.array([each / block.batches for block in blocks for each in block.samples_ns])
    owner = np.array([index for index, block in enumerate(blocks) for _ in block.samples_ns])
    if not times.size:
        return None
    first, median, third = np.percentile(times, [25, 50, 75])
    iqr = max(third - first, _SMALLEST_IQR * median)
    distance = np.maximum(first - times, times - third) / iqr
    held = np.bincount(owner[distance > 1.5], minlength=len(blocks))
    return Outliers(
        samples=times.size,
        mild=int(((distance > 1.5) & (distance <= 3)).sum()),
        severe=int((distance > 3).sum()),
        slowest=float(times.max() / median) if median else 1.0,
        blocks=tuple(int(index) for index in np.argsort(-held, kind="stable") if held[index]),
    )


def causes(blocks: Sequence[Block], affected: Sequence[int]) -> list[str]:
    """What stands out in the context of the affected blocks, against the blocks without outliers."""
    quiet = [block.context for index, block in enumerate(blocks) if index not in affected]
    usual = quiet or [block.context for block in blocks]
    found = []
    for index in affected[:_BLOCKS_NAMED]:
        reasons = _block_causes(blocks[index].context, usual)
        found += [f"block {index + 1} had {', '.join(reasons)}"] if reasons else []
    return found


def _block_causes(context: Mapping[str, float], usual: Sequence[Mapping[str, float]]) -> list[str]:
    wall_s = context.get("wall_s") or 1.0
    reasons = []
    for cause in CAUSES:
        expected = wall_s * statistics.median(_per_second(each, cause.key) for each in usual)
        seen = context.get(cause.key, 0.0)
        if seen > 2 * expected and seen - expected >= cause.at_least:
            reasons.append(f"{seen:.3g} {cause.words} (usual {expected:.2g})")
    return reasons + _thread_causes(context, usual)


def _thread_causes(context: Mapping[str, float], usual: Sequence[Mapping[str, float]]) -> list[str]:
    expected = statistics.median(each.get("busy_threads", 0.0) for each in usual)
    seen = context.get("busy_threads", expected)
    return [f"{seen:.1f} busy threads (usual {expected:.1f})"] if abs(seen - expected) > 0.5 else []


def _per_second(context: Mapping[str, float], key: str) -> float:
    return context.get(key, 0.0) / (context.get("wall_s") or 1.0)


def diagnose(run: Run) -> list[Diagnostic]:
    """Return every warning that the samples of a run give rise to."""
    blocks = timed_blocks(run.blocks)
    if not blocks:
        return []
    found = {
        "wide_interval": _wide(run),
        "short_samples": _short(blocks),
        "outliers": _unusual(blocks),
        "steal": _stolen(blocks),
        "few_latencies": _no_p99(blocks),
        "unverified": "" if run.verified else "the results were not verified",
    }
    return [Diagnostic(code, text) for code, text in found.items() if text]


def _wide(run: Run) -> str:
    rate = throughput(run.blocks, run.items_per_batch)
    reached, goal = rate.half_width if rate else None, run.precision_goal
    if reached is None:
        return "one block only: no interval can be given"
    if goal is None or reached <= goal:
        return ""
    return f"the time box ended with the interval at +-{reached:.1%}, wider than the goal of +-{goal:.1%}"


def _short(blocks: Sequence[Block]) -> str:
    typical = statistics.median(each for block in blocks for each in block.samples_ns) / 1e9
    if typical >= SHORT_SAMPLE_S:
        return ""
    return f"a sample lasts {typical * 1e3:.2g} ms, shorter than 1 ms: the clock's own cost may show"


def _unusual(blocks: Sequence[Block]) -> str:
    found = outliers(blocks)
    if found is None or not (found.severe or found.mild > MILD_SHARE * found.samples):
        return ""
    reasons = causes(blocks, found.blocks)
    return (
        f"{found.mild + found.severe} of {found.samples} samples are outliers, kept ({found.mild} mild, "
        f"{found.severe} severe, slowest {found.slowest:.3g} x the median): {'; '.join(reasons) or 'no reason seen'}"
    )


def _stolen(blocks: Sequence[Block]) -> str:
    stolen = sum(block.context.get("steal_s", 0.0) for block in blocks)
    wall = sum(block.context.get("wall_s", 0.0) for block in blocks)
    if not wall or stolen <= STEAL_SHARE * wall:
        return ""
    return f"the hypervisor stole {stolen:.2g} s of CPU time during {wall:.3g} s of measuring"


def _no_p99(blocks: Sequence[Block]) -> str:
    count, needed = len(latencies_ns(blocks)), SAMPLES_NEEDED["p99"]
    return "" if count >= needed else f"p99 is not given: {count} latencies, {needed} needed"
