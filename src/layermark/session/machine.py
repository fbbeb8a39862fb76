"""What `layermark doctor` measures: the ceilings of this machine and how noisy it is."""

from __future__ import annotations

import statistics
from typing import Any

from layermark.launch.ceilings import Ceilings
from layermark.launch.process import Crew
from layermark.spec import Spec

WORKING_SETS = (256 << 10, 1536 << 10, 6 << 20, 64 << 20, 256 << 20)
_TIMEOUT_S = 120.0


def _asking(threads: int) -> Spec:
    return Spec(workload="dense", backend="torch", threads=threads)


def measure_ceilings(threads: int) -> dict[str, Any]:
    """Peak arithmetic, and bandwidth by working-set size, with this many threads."""
    with Crew() as crew:
        ceilings = Ceilings(crew, lambda: _TIMEOUT_S)
        readings = {size: ceilings.reading(_asking(threads), size, 0.3) for size in WORKING_SETS}
    return {
        "threads": threads,
        "flops_per_s": max(each["flops_per_s"] for each in readings.values()),
        "bytes_per_s": {str(size): each["bytes_per_s"] for size, each in readings.items()},
    }


def measure_noise(threads: int, readings: int = 30) -> dict[str, Any]:
    """How much the same matrix product varies on this machine, from reading to reading."""
    with Crew() as crew:
        ceilings = Ceilings(crew, lambda: _TIMEOUT_S)
        peaks = [ceilings.reading(_asking(threads), WORKING_SETS[0], 0.1)["flops_per_s"] for _ in range(readings)]
    middle = statistics.median(peaks)
    return {
        "readings": readings,
        "spread": statistics.stdev(peaks) / middle,
        "lowest": min(peaks) / middle,
        "highest": max(peaks) / middle,
    }
