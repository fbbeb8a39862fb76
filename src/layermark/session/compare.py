"""Is B faster than A? Two settings measured against each other, or two stored sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layermark import environment, stats
from layermark.errors import UserError
from layermark.launch.process import Crew
from layermark.session.deadline import Deadline
from layermark.session.head_to_head import (
    COMPARED,
    alternate,
    finish_starts,
    pairs_together,
    proofs_s,
    prove_again,
    start_all,
    turns,
    verdict,
)
from layermark.session.listener import Listener
from layermark.session.ranks import check_alternation
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.spec import Protocol, Spec
from layermark.stats.accounts import OperatorChange, accountable
from layermark.stats.differences import result_differences
from layermark.stats.gate import NOT_MEASURED
from layermark.stats.pairing import Alone, match
from layermark.store import Store

STARTS = 6
SIDES = ("A", "B")

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Two results: the verdict, the operators behind a difference where both have a profile, and what else differs."""

    spec: Spec
    """That of B."""
    verdict: stats.Verdict
    operators: tuple[OperatorChange, ...] = ()
    differences: tuple[str, ...] = ()
    """What is not the same about both, and could explain the verdict."""


@dataclass(frozen=True, kw_only=True)
class ComparedSides:
    """All results of two sides."""

    compared: tuple[Compared, ...]
    alone: tuple[Alone, ...]
    """Results of A that nothing can be said of, and why."""
    new: tuple[Spec, ...]
    """What B alone has."""


def compare_settings(
    spec_a: Spec,
    spec_b: Spec,
    protocol: Protocol,
    *,
    starts: int = STARTS,
    budget_s: float = 60.0,
    store: Store | None = None,
    listener: Listener | None = None,
) -> Compared:
    """Measure two settings alternately until the answer is clear or the budget is used up.

    Raises `Unsupported` for ranks that work together, and `WorkerFailed` where a start cannot be measured, or is not
    proven after the timing.
    """
    for spec in (spec_a, spec_b):
        check_alternation(spec)
    listener, deadline = listener or Listener(), Deadline(budget_s)
    mark = environment.fingerprint(environment.record())
    known = store.spread(mark) if store else None
    with Crew() as crew:
        # The answer needs some rounds, whatever the budget: only the rounds beyond them respect it.
        resources = Resources.of(crew, Deadline(None), protocol.timeout, protocol.memory_limit)
        listener.phase(spec_a, f"starting {2 * starts} processes")
        entrants = start_all([Team(spec, resources) for spec in [spec_a, spec_b] * starts])
        plan = dataclasses.replace(COMPARED, together=pairs_together(starts))
        found = alternate(
            turns(entrants, plan, listener),
            lambda confidence: verdict(entrants, known, confidence),
            plan,
            deadline,
            after_s=proofs_s(entrants),
        )
        prove_again(entrants)
        runs = finish_starts(entrants, SIDES)
    if store is not None:
        store.record_spread(mark, found.spread)
    first, second = (stats.document(each, session="") for each in runs[:2])
    return Compared(spec=spec_b, verdict=found, differences=tuple(result_differences(first, second)))


def compare_stored(a: Sequence[Document], b: Sequence[Document], spread: float | None = None) -> ComparedSides:
    """Compare the results of two sessions or files, spec by spec; what has no partner is told.

    They were not measured in alternation, one start each: only a difference beyond both noise floors
    and the start-to-start spread is told.
    """
    matching = match(a, b, SIDES)
    if not matching.pairs:
        raise UserError("A and B have no measurement in common; measure the same workloads with the same options")
    told = [(*pair, _not_measured(*pair)) for pair in matching.pairs]
    alone = [Alone(spec=Spec.from_json(a["spec"]), code=NOT_MEASURED, reason=why) for a, _, why in told if why]
    compared = [_compared(a, b, spread) for a, b, why in told if not why]
    return ComparedSides(compared=tuple(compared), alone=(*alone, *matching.alone), new=tuple(matching.new))


def _not_measured(*pair: Document) -> str:
    """Why a pair cannot be compared; nothing where it can."""
    reasons = [f"{name}: {each['reason']}" for name, each in zip(SIDES, pair, strict=True) if each["status"] != "ok"]
    return f"not measured in {'; '.join(reasons)}" if reasons else ""


def _compared(a: Document, b: Document, spread: float | None) -> Compared:
    found = stats.compare_documents(a, b, spread)
    operators = accountable(a["profile"], b["profile"]) if found.answer != "cannot tell" else []
    return Compared(
        spec=Spec.from_json(b["spec"]),
        verdict=found,
        operators=tuple(operators),
        differences=tuple(result_differences(a, b)),
    )
