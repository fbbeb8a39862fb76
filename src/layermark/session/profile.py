"""The pass of a profile after the timing: how long it is, and what its files are called."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layermark.errors import Unsupported, WorkerFailed
from layermark.outcome import Block
from layermark.spec import Spec

if TYPE_CHECKING:
    from layermark.session.team import Team

PASS_S = 0.5
MOST_BATCHES = 20
"""A trace of more is slow to open and says nothing new."""


def profile_after_timing(team: Team, folder: Path | None) -> None:
    """Profile a team that was timed, where a folder is given; the result stands where that cannot be done."""
    if folder is None or team.profiled is not None or not team.blocks:
        return
    try:
        team.profile(folder, profile_name(team.spec), profile_batches(team.blocks))
    except (Unsupported, WorkerFailed) as failure:
        team.warn("no_profile", f"no profile: {failure}")


def profile_batches(blocks: Sequence[Block]) -> int:
    """Return how many batches fill about half a second, at least one and not too many for a trace."""
    batch_s = statistics.median(each / block.batches for block in blocks for each in block.samples_ns) / 1e9
    return max(1, min(MOST_BATCHES, round(PASS_S / batch_s))) if batch_s > 0 else MOST_BATCHES


def profile_name(spec: Spec) -> str:
    """Return the name of a profile's files: what a person looks for, and the key, which no other spec has.

    >>> profile_name(Spec(workload="my/../lstm", backend="torch"))[:25]
    'my_.._lstm-torch-infer-ba'
    """
    words = f"{spec.workload}-{spec.backend}-{spec.mode}-batch{spec.batch_size}-{spec.key}"
    return re.sub(r"[^\w.-]", "_", words)
