"""Is B faster than A? Two settings measured against each other, or two stored sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layermark import environment, stats
from layermark.errors import Unsupported, UserError
from layermark.launch.process import Crew
from layermark.outcome import Run, Skipped
from layermark.session.deadline import Deadline
from layermark.session.head_to_head import (
    COMPARED,
    CONFIDENCE,
    Start,
    alternate,
    finish_starts,
    proofs_s,
    prove_again,
    start_all,
    starts_per_group,
    take_turns,
    turns,
    verdict,
)
from layermark.session.listener import Listener
from layermark.session.memory import admit, no_memory_for_proof
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

    Starts that do not fit into memory together are measured in parts, one after the other. Raises `Unsupported` for
    ranks that work together and for what does not fit alone, and `WorkerFailed` where a start cannot be measured, or is
    not proven after the timing.
    """
    for spec in (spec_a, spec_b):
        check_alternation(spec)
    listener, deadline = listener or Listener(), Deadline(budget_s)
    mark = environment.fingerprint(environment.record())
    known = store.spread(mark) if store else None
    with Crew() as crew:
        # The answer needs some rounds, whatever the budget: only the rounds beyond them respect it.
        resources = Resources.of(crew, Deadline(None), protocol.timeout, protocol.memory_limit)
        parts = _admitted([Team(spec, resources) for spec in [spec_a, spec_b] * starts])
        together = len(parts) == 1
        compared = _together if together else _in_parts
        found, runs = compared(parts, known, deadline, listener)
    # What a machine does in the time between two parts looks like a spread between starts.
    if store is not None and together:
        store.record_spread(mark, found.spread)
    first, second = (stats.document(each, session="") for each in runs[:2])
    return Compared(spec=spec_b, verdict=found, differences=tuple(result_differences(first, second)))


def _admitted(teams: Sequence[Team]) -> list[Sequence[Team]]:
    """Return the teams, which take turns A, B, in parts that fit into memory: as many of A as of B, else one alone."""
    fitting = admit(teams)
    for team in teams[: len(SIDES)]:
        if isinstance(team.outcome, Skipped):
            raise Unsupported(team.outcome.reason, code=team.outcome.code)
        if lacking := no_memory_for_proof(team):
            raise Unsupported(f"not compared: {lacking}", code="memory")
    starts = len(teams) // len(SIDES)
    pairs = min(sum(team in fitting for team in teams[side :: len(SIDES)]) for side in range(len(SIDES)))
    size = len(SIDES) * max((each for each in range(1, pairs + 1) if starts % each == 0), default=0) or 1
    return [teams[first : first + size] for first in range(0, len(teams), size)]


def _together(
    parts: Sequence[Sequence[Team]], known: float | None, deadline: Deadline, listener: Listener
) -> tuple[stats.Verdict, list[Run]]:
    """Alternate all starts until the answer is clear; return it, and their outcomes."""
    (teams,) = parts
    listener.phase(teams[0].spec, f"starting {len(teams)} processes")
    entrants = start_all(teams)
    plan = dataclasses.replace(COMPARED, together=starts_per_group(len(teams) // len(SIDES)))
    found = alternate(
        turns(entrants, plan, listener),
        lambda confidence: verdict(entrants, known, confidence),
        plan,
        deadline,
        after_s=proofs_s(entrants),
    )
    prove_again(entrants)
    return found, finish_starts(entrants, SIDES)


def _in_parts(
    parts: Sequence[Sequence[Team]], known: float | None, deadline: Deadline, listener: Listener
) -> tuple[stats.Verdict, list[Run]]:
    """Measure one part after the other, each as many rounds as the first had in its share; return the same."""
    size, count = len(parts[0]), sum(map(len, parts))
    listener.note(f"memory is too small for {count} processes at once: {size} at a time")
    entrants, runs, sides = list[Start](), list[Run](), min(size, len(SIDES))
    plan = dataclasses.replace(COMPARED, sides=sides, together=size // sides)
    for index, teams in enumerate(parts):
        listener.phase(teams[0].spec, f"starting part {index + 1} of {len(parts)}")
        with deadline.within(deadline.left() / (len(parts) - index)):
            # One program each: there is no memory for more, and all starts must hold as many.
            started = start_all(teams, sides, copies=1)
            done = max(take_turns(turns(started, plan, listener), plan, deadline, after_s=proofs_s(started)))
        plan = dataclasses.replace(plan, least=done, most=done)
        prove_again(started)
        runs += finish_starts(started, SIDES if sides > 1 else SIDES[index % len(SIDES) :][:1])
        for start in started if sides > 1 else ():
            start.groups = [index] * len(start.groups)
        entrants += started
    return verdict(entrants, known, CONFIDENCE), runs


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
