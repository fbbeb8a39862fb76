"""From what a profiler told to what a document says: times of a batch, shares, rates, and what to make of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from layermark.outcome import Ceiling, Run
from layermark.stats.insights import Insight, insights

Row = Mapping[str, Any]


def profile_facts(run: Run, step_s: float | None) -> dict[str, Any] | None:
    """Return the profile of a run beside its timed step (seconds of a batch); None where there is none.

    All times are those of one batch. `gap` is what the operators' sum lies above the timed step (negative: below),
    `overhead` what the profiled pass does.
    """
    told = run.profile
    if told is None:
        return None
    batches = max(1, int(told["batches"]))
    sum_s = sum(float(row["seconds"]) for row in told["operators"]) / batches
    pass_s = float(told["pass_s"]) / batches if told.get("pass_s") else None
    rows = [_operator(row, batches, sum_s, run.ceiling) for row in told["operators"]]
    tied_s = sum(row["time_s"] for row in rows if row["node"])
    facts = {
        "batches": batches,
        "step_s": step_s,
        "sum_s": sum_s,
        "gap": _above(sum_s, step_s),
        "pass_s": pass_s,
        "overhead": _above(pass_s, step_s),
        "tied": tied_s / sum_s if sum_s else None,
        "memory": {"peak_bytes": None, "alive": [], **told.get("memory", {})},
        "files": list(told.get("files", ())),
        # Profiles of earlier versions have none of these.
        **{name: told[name] for name in ("liveness", "timeline", "nodes") if name in told},
    }
    found = insights(rows, facts, run.spec, str(run.settings.get("execution", "")))
    return {"operators": rows, **facts, "insights": [_plain(each) for each in found]}


def _operator(row: Row, batches: int, sum_s: float, ceiling: Ceiling | None) -> dict[str, Any]:
    time_s, flops, moved = float(row["seconds"]) / batches, row.get("flops"), row.get("bytes")
    calls = int(row["calls"]) / batches
    return {
        "node": [str(name) for name in row.get("node", ())],
        "operator": str(row["operator"]),
        "kind": str(row.get("kind", "")),
        "calls": int(calls) if calls.is_integer() else calls,
        "time_s": time_s,
        "share": time_s / sum_s if sum_s else None,
        "flops": flops,
        "bytes": moved,
        "flops_per_s": flops / time_s if flops and time_s else None,
        "of_ceiling": _of_ceiling(flops, moved, time_s, ceiling),
    }


def _of_ceiling(flops: int | None, moved: int | None, time_s: float, ceiling: Ceiling | None) -> float | None:
    """The shortest time that arithmetic and bytes allow, as a share of the real one."""
    if flops is None or not time_s or ceiling is None or not (ceiling.flops_per_s and ceiling.bytes_per_s):
        return None
    peak, bandwidth = statistics.median(ceiling.flops_per_s), statistics.median(ceiling.bytes_per_s)
    if min(peak, bandwidth) <= 0:
        return None
    return max(flops / peak, (moved or 0) / bandwidth) / time_s


def _above(value: float | None, step_s: float | None) -> float | None:
    return value / step_s - 1 if value is not None and step_s else None


def _plain(found: Insight) -> dict[str, str]:
    return {"code": found.code, "text": found.text}


def top(rows: Sequence[Row], count: int) -> list[Row]:
    """Return the rows that take the most time."""
    return sorted(rows, key=lambda row: -float(row["time_s"]))[:count]
