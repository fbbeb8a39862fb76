"""From an outcome to the result document that `--json` prints and reports read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from layermark.outcome import SCHEMA_VERSION, Diagnostic, Failed, Outcome, Run, Skipped, Verification
from layermark.stats.ceiling import ceiling_facts, efficiency, impossible
from layermark.stats.compare import noise_floor
from layermark.stats.diagnose import diagnose
from layermark.stats.pipeline import lanes, pipeline_facts
from layermark.stats.profile import profile_facts
from layermark.stats.ranks import rank_facts, scaling
from layermark.stats.rates import SAMPLES_NEEDED, Interval, latency_ms, mean_rate, sustained, throughput

DERIVED_VERSION = 8
"""Raised whenever the same samples would give another document; the store then derives again."""

_INTERVAL = ("value", "low", "high")
_VERIFIED = ("ok", "max_error", "tolerance", "against", "worst", "reason")
_ACCURACY = ("against", "items", "relative_error", "top1_agreement")
_SPEC_SETTINGS = ("execution", "formulation", "loss", "subnormals", "allocator")
_TOLD_SETTINGS = ("layout", "compute_type", "output_type", "clock")


def document(outcome: Outcome, *, session: str, rank: int = 0, command: str = "") -> dict[str, Any]:
    """Return the result document. Every status has the same keys; what is missing is None."""
    head = {"schema": SCHEMA_VERSION, "session": session, "group": outcome.spec.group, "rank": rank}
    body = _run_body(outcome) if isinstance(outcome, Run) else _empty_body(outcome)
    floor = noise_floor(outcome) if isinstance(outcome, Run) else None
    found: dict[str, Any] = finite(head | body | {"noise_floor": floor, "command": command})
    return {name: found[name] for name in KEYS}


def samples(run: Run) -> list[dict[str, Any]]:
    """Every timed sample, with the block it belongs to."""
    return [
        {"block": index, "batches": block.batches, "items": block.batches * run.items_per_batch, "seconds": each / 1e9}
        for index, block in enumerate(run.blocks)
        for each in block.samples_ns
    ]


def finite(value: Any) -> Any:
    """The same plain value with None for what JSON cannot say (infinities and not-a-number)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


KEYS = (
    "schema",
    "session",
    "group",
    "rank",
    "status",
    "reason",
    "reason_code",
    "instead",
    "spec",
    "settings",
    "throughput",
    "sustained",
    "mean_rate",
    "ranks",
    "scaling",
    "pipeline",
    "communication",
    "lanes",
    "latency_ms",
    "compile_s",
    "timings_s",
    "wall_s",
    "memory",
    "efficiency",
    "impossible",
    "ceiling",
    "noise_floor",
    "verified",
    "accuracy",
    "profile",
    "samples",
    "environment",
    "command",
    "warnings",
    "warning_codes",
    "log",
)


def _run_body(run: Run) -> dict[str, Any]:
    rate = throughput(run.blocks, run.items_per_batch)
    above = _above_ceiling(run, rate)
    reasons = _reasons(run, rate, above)
    warnings = [*run.warnings, *diagnose(run)]
    unit = {"unit": _unit(run.item)}
    return {
        "status": "failed" if reasons else "ok",
        "reason": "; ".join(map(str, reasons)),
        "reason_code": reasons[0].code if reasons else None,
        "instead": {},
        "spec": run.spec.to_json(),
        "settings": _settings(run.spec.to_json(), {"clock": run.clock, **run.settings}),
        "throughput": _numbers(rate) | unit,
        "sustained": _numbers(sustained(run.blocks, run.items_per_batch)) | unit,
        "mean_rate": {"value": mean_rate(run.blocks, run.items_per_batch)} | unit,
        "ranks": rank_facts(run.blocks, run.items_per_batch / run.spec.plan.replicas),
        "scaling": scaling(run, rate.value if rate else None),
        "pipeline": pipeline_facts(run),
        "communication": dict(run.communication) if run.communication else None,
        "lanes": lanes(run),
        "latency_ms": latency_ms(run.blocks),
        "compile_s": run.timings_s.get("compile"),
        "timings_s": dict(run.timings_s),
        "wall_s": dict(run.wall_s) or None,
        "memory": {"peak_rss_bytes": None, **run.memory},
        "efficiency": efficiency(rate.value / run.items_per_batch, run.ceiling) if rate and run.ceiling else None,
        "impossible": above,
        "ceiling": ceiling_facts(run.ceiling),
        "verified": _verified(run.verified),
        "accuracy": dict.fromkeys(_ACCURACY) | dict(run.accuracy or {}),
        "profile": profile_facts(run, run.items_per_batch / rate.value if rate else None),
        "samples": samples(run),
        "environment": dict(run.environment),
        "warnings": [each.text for each in warnings],
        "warning_codes": [each.code for each in warnings],
        "log": None,
    }


def _empty_body(outcome: Skipped | Failed) -> dict[str, Any]:
    nothing = _numbers(None) | {"unit": None}
    return {
        "status": "skipped" if isinstance(outcome, Skipped) else "failed",
        "reason": outcome.reason,
        "reason_code": outcome.code,
        "instead": dict(outcome.instead) if isinstance(outcome, Skipped) else {},
        "spec": outcome.spec.to_json(),
        "settings": _settings(outcome.spec.to_json(), {}),
        "throughput": nothing,
        "sustained": nothing,
        "mean_rate": {"value": None, "unit": None},
        "ranks": [],
        "scaling": dict.fromkeys(("alone", "efficiency")),
        "pipeline": None,
        "communication": None,
        "lanes": None,
        "latency_ms": dict.fromkeys(SAMPLES_NEEDED),
        "compile_s": None,
        "timings_s": None,
        "wall_s": None,
        "memory": {"peak_rss_bytes": None},
        "efficiency": None,
        "impossible": False,
        "ceiling": ceiling_facts(None),
        "verified": dict.fromkeys(_VERIFIED),
        "accuracy": dict.fromkeys(_ACCURACY),
        "profile": None,
        "samples": [],
        "environment": None,
        "warnings": [],
        "warning_codes": [],
        "log": outcome.log if isinstance(outcome, Failed) else None,
    }


def _above_ceiling(run: Run, rate: Interval | None) -> bool:
    if rate is None or run.ceiling is None:
        return False
    low = None if rate.low is None else rate.low / run.items_per_batch
    return impossible(Interval(rate.value / run.items_per_batch, low), run.ceiling)


def _reasons(run: Run, rate: Interval | None, above: bool) -> list[Diagnostic]:
    reasons = list(run.faults)
    if rate is None:
        reasons.append(Diagnostic("nothing_timed", "no block was timed"))
    if run.verified is not None and not run.verified.ok:
        reasons.append(Diagnostic("wrong_result", _wrong(run.verified)))
    if above:
        text = "impossible: faster than the ceiling that this machine reached in the same session"
        reasons.append(Diagnostic("impossible", text))
    return reasons


def _wrong(verified: Verification) -> str:
    where = f" at {verified.worst}" if verified.worst else ""
    why = f" ({verified.reason})" if verified.reason else ""
    return (
        f"the results are wrong{where}: error {verified.max_error:.3g}, "
        f"tolerance {verified.tolerance:.3g} against {verified.against}{why}"
    )


def _numbers(found: Interval | None) -> dict[str, float | None]:
    return dict(zip(_INTERVAL, found or (None, None, None), strict=True))


def _unit(item: str) -> str:
    noun, space, rest = item.partition(" ")
    return f"{noun if noun.endswith('s') else noun + 's'}{space}{rest}/s"


def _settings(spec: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What really ran where the program told it, else what the spec asked for."""
    asked = {name: spec[name] for name in _SPEC_SETTINGS} | {"cell": spec["params"].get("cell")}
    return {**dict.fromkeys(_TOLD_SETTINGS), **asked, **told}


def _verified(found: Verification | None) -> dict[str, Any]:
    return {name: getattr(found, name, None) for name in _VERIFIED}
