"""How near to the machine's best: the roofline of the same session."""

from __future__ import annotations

import statistics
from typing import Any

from layermark.outcome import Ceiling
from layermark.stats.rates import Interval


def efficiency(batches_per_s: float, ceiling: Ceiling) -> float | None:
    """Attained / min(peak, intensity x bandwidth) from the median readings: raw, never clamped.

    Written as the shortest possible time of a batch over its real time, which is the same number
    and also holds for a graph without arithmetic.
    """
    if not _usable(ceiling):
        return None
    peak, bandwidth = statistics.median(ceiling.flops_per_s), statistics.median(ceiling.bytes_per_s)
    return _shortest_s(ceiling, peak, bandwidth) * batches_per_s


def impossible(batches_per_s: Interval, ceiling: Ceiling) -> bool:
    """Whether even the low end of what was attained lies above the best reading of the ceiling."""
    return least_share(batches_per_s, ceiling) > 1


def least_share(batches_per_s: Interval, ceiling: Ceiling) -> float:
    """The low end of what was attained as a share of the best reading; 0 where there is none."""
    if not _usable(ceiling):
        return 0.0
    attained = batches_per_s.value if batches_per_s.low is None else batches_per_s.low
    return _shortest_s(ceiling, max(ceiling.flops_per_s), max(ceiling.bytes_per_s)) * attained


def ceiling_facts(ceiling: Ceiling | None) -> dict[str, Any]:
    """What the result document says about the ceiling; every value is None where there is none."""
    names = ("flops_per_s", "bytes_per_s", "flops", "bytes", "intensity", "bound", "probe")
    if ceiling is None or not _usable(ceiling):
        return dict.fromkeys(names)
    peak, bandwidth = statistics.median(ceiling.flops_per_s), statistics.median(ceiling.bytes_per_s)
    arithmetic = ceiling.flops / peak >= ceiling.bytes / bandwidth
    return {
        "flops_per_s": peak,
        "bytes_per_s": bandwidth,
        "flops": ceiling.flops,
        "bytes": ceiling.bytes,
        "intensity": ceiling.flops / ceiling.bytes if ceiling.bytes else None,
        "bound": "arithmetic" if arithmetic else "memory",
        "probe": ceiling.probe,
    }


def _usable(ceiling: Ceiling) -> bool:
    readings = (*ceiling.flops_per_s, *ceiling.bytes_per_s)
    return bool(ceiling.flops_per_s and ceiling.bytes_per_s) and min(readings) > 0


def _shortest_s(ceiling: Ceiling, flops_per_s: float, bytes_per_s: float) -> float:
    return max(ceiling.flops / flops_per_s, ceiling.bytes / bytes_per_s)
