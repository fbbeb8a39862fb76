"""Several ranks at once: the rate of each, and how far the slowest lags behind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from layermark.outcome import Block, Run


def scaling(run: Run, rate: float | None) -> dict[str, float | None]:
    """Return the rate of one rank alone, and what all ranks reach of so many times that."""
    timed = [each for each in run.alone if sum(each.samples_ns) > 0]
    if not timed or rate is None:
        return {"alone": None, "efficiency": None}
    ranks = run.spec.plan.replicas
    alone = statistics.median(each.batches * run.items_per_batch / ranks * 1e9 / each.samples_ns[0] for each in timed)
    return {"alone": alone, "efficiency": rate / (ranks * alone)}


def rank_facts(blocks: Sequence[Block], items_per_rank: float) -> list[dict[str, Any]]:
    """Return rate and lag of every rank; nothing where one rank did everything.

    The lag is what a rank takes longer than the fastest of the same sample, as a share, in the median.
    """
    timed = [(block.batches, sample) for block in blocks for sample in block.ranks_ns if min(sample, default=0) > 0]
    if not timed:
        return []
    return [
        {
            "rank": rank,
            "rate": statistics.median(batches * items_per_rank * 1e9 / sample[rank] for batches, sample in timed),
            "lag": statistics.median(sample[rank] / min(sample) - 1 for _, sample in timed),
        }
        for rank in range(len(timed[0][1]))
    ]
