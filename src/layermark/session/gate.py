"""The schedule of `layermark gate`: two checkouts of a project, or two settings, in one alternation, the base twice."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layermark import stats
from layermark.devices import cpu
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.checkout import import_path
from layermark.launch.process import Crew
from layermark.session.deadline import Deadline
from layermark.session.head_to_head import (
    Rounds,
    Start,
    alternate,
    finish_starts,
    proofs_s,
    prove_again,
    start_all,
    turns,
)
from layermark.session.listener import Listener
from layermark.session.memory import needed_bytes, together_bytes
from layermark.session.profile import profile_after_timing
from layermark.session.ranks import check_alternation
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.spec import Protocol, Spec
from layermark.stats.gate import NOISE, NOT_PROVEN, Finding, explained, gate_starts, rounds_needed

STARTS = 3
"""Processes of each side."""
SIDES = ("the base", "the base again", "the change")
ROUND_BLOCKS = 4
"""Blocks of a start in one round."""
LEAST_ROUNDS = 3
"""Rounds before anything is judged."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one side of a gate is: what is measured, and with which code."""

    spec: Spec
    root: Path | None = None
    """A checkout of the project; None for the code that runs this."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that make a worker import that code."""
        return import_path(self.root) if self.root else {}


def gate_sides(
    base: Side,
    change: Side,
    protocol: Protocol,
    tolerated: float,
    *,
    rounds: int,
    budget_s: float | None = None,
    listener: Listener | None = None,
    measurements: int = 1,
) -> Finding:
    """Judge a change by starts of both sides that take turns block by block, all alive at once.

    `measurements` is how many the whole gate has. What was timed and turns out not to be right afterwards cannot be
    told. Raises `Unsupported` where ranks work together or the processes do not fit into memory together, and
    `WorkerFailed` where one of them cannot be measured, such as a base that is too old to understand what it is told.
    """
    for side in (base, change):
        check_alternation(side.spec)
    alive = [side for _ in range(STARTS) for side in (base, base, change)]
    _check_memory([side.spec for side in alive])
    listener = listener or Listener()
    plan = Rounds(blocks=ROUND_BLOCKS, least=LEAST_ROUNDS, most=rounds, sides=len(SIDES))
    deadline = Deadline(budget_s)
    began = deadline.now()
    with Crew() as crew:
        # Starting is never cut short: what was not started tells nothing.
        shared = Resources.of(crew, Deadline(None), protocol.timeout, protocol.memory_limit)
        listener.phase(change.spec, f"starting {len(alive)} processes")
        teams = [Team(side.spec, dataclasses.replace(shared, variables=side.variables)) for side in alive]
        starts = start_all(teams, sides=len(SIDES))
        ready = deadline.now()
        found = alternate(
            turns(starts, plan, listener),
            lambda confidence: judged(
                change.spec,
                [each.rates for each in starts],
                [each.groups for each in starts],
                tolerated,
                confidence,
                measurements,
            ),
            plan,
            deadline,
            after_s=proofs_s(starts),
        )
        round_s = (deadline.now() - ready) * ROUND_BLOCKS / len(starts[0].rates)
        return _proven(with_needs(found, tolerated, round_s, ready - began + proofs_s(starts)), starts)


def _check_memory(alive: Sequence[Spec]) -> None:
    held = sum(map(needed_bytes, alive))
    needed = max(together_bytes(spec, held, len(alive)) for spec in set(alive))
    free = cpu.free_memory()
    if needed > free:
        text = f"{len(alive)} processes need about {needed >> 20} MiB of memory, {free >> 20} MiB are free"
        raise Unsupported(text, code="memory")


def judged(
    spec: Spec,
    rates: Sequence[Sequence[float]],
    groups: Sequence[Sequence[int]],
    tolerated: float,
    confidence: float,
    measurements: int = 1,
) -> Finding:
    """Return what the blocks so far mean: their rates and groups by start, the starts of the sides in turn."""
    order = sorted(range(len(rates)), key=lambda start: start % len(SIDES))
    base, again, change = (rates[side :: len(SIDES)] for side in range(len(SIDES)))
    return gate_starts(
        spec,
        base,
        again,
        change,
        tolerated,
        confidence=confidence,
        measurements=measurements,
        groups=[groups[start] for start in order],
    )


def with_needs(found: Finding, tolerated: float, round_s: float, others_s: float) -> Finding:
    """Return a finding that noise left open with the rounds and the time after which noise like this would not.

    `round_s` is how long a round took, `others_s` what comes before and after all of them.
    """
    if found.code != NOISE or found.verdict is None:
        return found
    blocks = rounds_needed(found.verdict, tolerated)
    if blocks is None:
        text = f"{STARTS} processes a side differ by too much for that, however long they are measured"
        return dataclasses.replace(found, reason=f"{found.reason}: {text}")
    rounds = math.ceil(blocks / ROUND_BLOCKS)
    seconds = others_s + rounds * round_s
    text = f"at this noise --rounds {rounds} would show it, about {seconds / 60:.1f} min"
    return dataclasses.replace(
        found, reason=f"{found.reason}: {text}", rounds_needed=rounds, seconds_needed=round(seconds, 1)
    )


def _proven(found: Finding, starts: Sequence[Start]) -> Finding:
    """Prove every start again and end it, and add what differs between the sides.

    Where the rates do, both are profiled to say which operators do.
    """
    sides = [starts[0].team, starts[SIDES.index("the change")].team]
    prove_again(starts)
    with tempfile.TemporaryDirectory(prefix="layermark-gate-") as folder:
        if found.answer in ("slower", "faster"):
            for team in sides:
                if team.running:
                    profile_after_timing(team, Path(folder))
        try:
            finish_starts(starts, SIDES)
        except WorkerFailed as failure:
            return Finding(spec=found.spec, answer="cannot tell", code=NOT_PROVEN, reason=failure.reason)
        documents = [stats.document(team.finish(), session="") for team in sides]
    return explained(found, *documents)
