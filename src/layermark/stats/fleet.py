"""Which machine of a fleet is sick: slower than the others of its kind, over all that they have measured alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from layermark.spec import Spec
from layermark.stats.compare import Verdict
from layermark.stats.differences import differences
from layermark.stats.paired import paired

TOLERATED = 0.05
"""Healthy machines of one kind differ by a few per cent: chips are not all alike, nor are the places they stand in."""
FALSE_ALARMS = 0.01
"""In how many even fleets somebody may be accused."""
LEAST_COMMON = 5
"""Measurements that a machine must have in common with others before anything is said of it."""
SLOWEST_SHOWN = 3

Document = Mapping[str, Any]
Rates = dict[str, dict[str, float]]
"""Of every machine the logarithm of its rate, by the key of the measurement."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What is said of one machine; `verdict` is its rate relative to the others'."""

    machine: str
    kind: str
    answer: Literal["fine", "sick", "cannot tell"]
    reason: str
    measurements: int
    """How many it has in common with others of its kind."""
    verdict: Verdict | None = None
    slowest: tuple[tuple[Spec, float], ...] = ()
    """Of a sick machine, the measurements that suffer most, with their ratio to the others."""
    differences: tuple[str, ...] = ()
    """Of a sick machine, what else is not as it is on the others."""


def machine_name(environment: Mapping[str, Any] | None) -> str:
    """Return the name of the machine that a record is of; empty where the record does not tell."""
    known = environment or {}
    return str(known.get("node") or known.get("host") or "")


def fleet_health(documents: Iterable[Document], tolerated: float = TOLERATED) -> list[Health]:
    """Judge every machine by the stored results, oldest first; results that do not name their machine are left out."""
    told = [(each, Spec.from_json(each["spec"])) for each in documents if _counts(each)]
    specs = {spec.key: spec for _, spec in told}
    environments = {machine_name(each["environment"]): each["environment"] for each, _ in told}
    rates = _rates(told)
    found = judge_rates(rates, {name: _kind(each) for name, each in environments.items()}, tolerated)
    return [_explained(each, rates, environments, specs) for each in found]


def judge_rates(rates: Rates, kinds: Mapping[str, str], tolerated: float = TOLERATED) -> list[Health]:
    """Judge every machine by the rates of all; `kinds` says of what kind each is, and only those of one are compared.

    Another kind is slower without being sick.
    """
    confidence = 1 - FALSE_ALARMS / max(1, len(rates))
    found = []
    for name in sorted(rates):
        others = _others(name, kinds)
        shifts = _shifts(rates, name, others)
        found.append(_judged(name, kinds[name], shifts, len(others), tolerated, confidence))
    return found


def status(found: Iterable[Health]) -> int:
    """Return an exit status: 0 all are fine, 1 one is sick, 3 something cannot be told."""
    answers = {each.answer for each in found}
    return 1 if "sick" in answers else 3 if "cannot tell" in answers or not answers else 0


def _counts(document: Document) -> bool:
    named = document["environment"] and machine_name(document["environment"])
    return bool(named and document["status"] == "ok" and document["rank"] == 0 and document["throughput"]["value"])


def _kind(environment: Mapping[str, Any]) -> str:
    return f"{environment.get('cpu', 'unknown CPU')}, {environment.get('cores', 'unknown')} CPUs"


def _rates(told: Iterable[tuple[Document, Spec]]) -> Rates:
    """The median of all results that a machine has of a measurement."""
    listed: dict[str, dict[str, list[float]]] = {}
    for each, spec in told:
        own = listed.setdefault(machine_name(each["environment"]), {})
        own.setdefault(spec.key, []).append(math.log(each["throughput"]["value"]))
    return {name: {key: float(np.median(logs)) for key, logs in own.items()} for name, own in listed.items()}


def _others(name: str, kinds: Mapping[str, str]) -> list[str]:
    return [other for other, kind in kinds.items() if other != name and kind == kinds[name]]


def _shifts(rates: Rates, name: str, others: Sequence[str]) -> dict[str, float]:
    """Of every measurement in common, how far a machine lies from the median of the others, on a log scale.

    The machine itself is no part of that median: of two, the sick one would hide half of its loss in it.
    """
    found = {}
    for key, own in rates[name].items():
        beside = [rates[other][key] for other in others if key in rates[other]]
        if beside:
            found[key] = own - float(np.median(beside))
    return found


def _judged(
    name: str, kind: str, shifts: Mapping[str, float], others: int, tolerated: float, confidence: float
) -> Health:
    if len(shifts) < LEAST_COMMON:
        reason = f"{len(shifts)} measurements in common with others, {LEAST_COMMON} are needed" if others else _ALONE
        return Health(machine=name, kind=kind, answer="cannot tell", reason=reason, measurements=len(shifts))
    # Each side's starts vary; the median of several others does so less.
    weight = 2.0 if others == 1 else 1.5
    verdict = paired(np.array(list(shifts.values())), weight, (others, 1), confidence)
    answer, reason = _meaning(verdict, tolerated)
    return Health(machine=name, kind=kind, answer=answer, reason=reason, measurements=len(shifts), verdict=verdict)


_ALONE = "no other machine of its kind has a result"


def _meaning(verdict: Verdict, tolerated: float) -> tuple[Literal["fine", "sick", "cannot tell"], str]:
    if verdict.answer == "slower" and verdict.ratio < 1 - tolerated:
        return "sick", f"a loss of {1 - verdict.ratio:.1%} against the others, tolerated are {tolerated:.1%}"
    if verdict.low >= 1 - tolerated:
        return "fine", ""
    return "cannot tell", f"a loss of {1 - verdict.low:.1%} is possible, tolerated are {tolerated:.1%}; measure again"


def _explained(
    health: Health, rates: Rates, environments: Mapping[str, Mapping[str, Any]], specs: Mapping[str, Spec]
) -> Health:
    """Add to a sick machine where it suffers, and in what it differs from all others alike."""
    if health.answer != "sick":
        return health
    others = _others(health.machine, {name: _kind(each) for name, each in environments.items()})
    shifts = _shifts(rates, health.machine, others)
    own = _comparable(environments[health.machine])
    unlike = [set(differences(_comparable(environments[other]), own)) for other in others]
    worst = sorted(shifts, key=lambda key: shifts[key])[:SLOWEST_SHOWN]
    return replace(
        health,
        slowest=tuple((specs[key], math.exp(shifts[key])) for key in worst),
        differences=tuple(sorted(set.intersection(*unlike))),
    )


def _comparable(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in ("host", "node")}
