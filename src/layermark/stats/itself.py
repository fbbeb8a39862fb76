"""Does a result differ from itself? Where it does, nothing that it is compared with can be told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from layermark.stats.compare import Verdict
from layermark.stats.paired import CONFIDENCE, against_nothing
from layermark.stats.rates import Array

LEAST_BLOCKS = 4
_ENOUGH_BLOCKS = 6
_STRICTER = 8
"""Among fewer blocks a single disturbed one looks like a step: in simulations 3 of 100 quiet results did at 1 %."""
EVEN_AND_ODD = "its even blocks from its odd ones"
HALVES = "its second half from its first"


def against_itself(document: Mapping[str, Any], confidence: float = CONFIDENCE) -> tuple[Verdict, str] | None:
    """Return the verdict on a result's own blocks, and which of them were compared; None where they are too few.

    Neighbours are compared (every other block is slow), and the halves (it drifts, or became another in the middle).
    Both looks together raise a false alarm as seldom as `confidence` says; the one further beyond its floor is given.
    """
    logs = _log_rates(document)
    if len(logs) < LEAST_BLOCKS:
        return None
    each, half = 1 - (1 - confidence) / (2 if len(logs) >= _ENOUGH_BLOCKS else _STRICTER), len(logs) // 2
    neighbours, halves = logs[: 2 * half : 2] - logs[1 : 2 * half : 2], logs[-half:] - logs[:half]
    # The pair that lies across the middle would take a step there for noise.
    within = np.delete(neighbours, half // 2) if half % 2 else neighbours
    found = [
        (against_nothing(neighbours, halves, each), EVEN_AND_ODD),
        (against_nothing(halves, within, each), HALVES),
    ]
    return max(found, key=lambda look: abs(math.log(look[0].ratio)) / math.log1p(look[0].noise_floor))


def _log_rates(document: Mapping[str, Any]) -> Array:
    """The log rate of every block, in their order."""
    times: dict[int, list[float]] = {}
    for sample in document["samples"]:
        times.setdefault(sample["block"], []).append(sample["seconds"] / sample["items"])
    return np.asarray([-math.log(float(np.mean(times[index]))) for index in sorted(times)])
