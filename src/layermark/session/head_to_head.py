"""The schedule of `layermark compare` and of a gate: several starts of every side, all alive, in alternation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from layermark import stats
from layermark.devices import cpu
from layermark.errors import WorkerFailed
from layermark.outcome import Block, Run
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.session.team import Team
from layermark.spec import Spec
from layermark.stats.gate import NOT_PROVEN, Finding
from layermark.workloads.base import task

BLOCK_S = 0.12
SAMPLE_NS = 2_000_000
MIN_SAMPLES = 10
VISITS = 2
"""Blocks of which the better counts as one: a disturbance that lasts a second seldom meets both.

In simulations of quiet and of disturbed machines the best of four never found more than the better of two, and a tenth
less where blocks are noisy and few: four blocks become one number, and their agreement is lost.
"""
COPIES = 3
"""Places in memory that every start measures its program at: where it lies is worth a per cent, for its whole life."""
# Looking again and again would find a difference sooner or later: an early stop must be far clearer.
EARLY_CONFIDENCE = 0.9999
CONFIDENCE = 0.99

Answer = TypeVar("Answer", stats.Verdict, Finding)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How many rounds an alternation has, and of how many blocks of every start."""

    blocks: int
    least: int
    """Rounds before anything is judged."""
    most: int | None = None
    """None where the budget alone ends them."""


COMPARED = Rounds(blocks=VISITS, least=6)
"""The rounds of `layermark compare`."""


class Start:
    """One start of one side, and the rates of its blocks, a block a round."""

    def __init__(self, team: Team, copies: int = 1) -> None:
        self.team = team
        self.copies = copies
        self.rates: list[float] = []

    def block(self) -> None:
        """Time one block and keep its undisturbed rate; the blocks of which the best counts share a copy."""
        copy = len(self.rates) // VISITS % self.copies
        block = self.team.block(BLOCK_S, MIN_SAMPLES, copy)
        if block is None:
            raise _failure(self.team)
        self.rates.append(undisturbed_rate(block, self.team.items_per_batch))


def undisturbed_rate(block: Block, items: int) -> float:
    """Return the rate that belongs to the time that a tenth of the samples stay below.

    Whatever else a machine does only ever adds to a sample, so the low end tells one program from
    another several times sooner than the mean: in trials a block's mean varied by 5 %, this by 1 %.
    """
    ordered = sorted(block.samples_ns)
    return block.batches * items * 1e9 / ordered[len(ordered) // 10]


def prepare_all(teams: Sequence[Team]) -> None:
    """Start the ranks of every team before waiting for any of them."""
    for each in teams:
        each.start()
    for each in teams:
        if each.running:
            each.prepare()


def start_all(teams: Sequence[Team], sides: int = 2) -> list[Start]:
    """Prepare all teams at the same time, then prove and warm up one after the other.

    The teams of the sides take turns (A, B, A, B). That calls return when the work is done is checked once a side.
    """
    prepare_all(teams)
    copies = _copies([team.spec for team in teams])
    for index, team in enumerate(teams):
        _ = team.running and _proven(team, copies) and team.warm_up(sample_ns=SAMPLE_NS, check=index < sides)
        if not team.running:
            raise _failure(team)
    return [Start(team, copies) for team in teams]


def _proven(team: Team, copies: int) -> bool:
    return all((not copy or team.copy()) and team.prove(copy) for copy in range(copies))


def _copies(specs: Sequence[Spec]) -> int:
    """Return how many copies of its program every start holds: as many as fit well into free memory."""
    needed = sum(task(spec).memory_bytes(spec.mode, spec.ring) for spec in specs)
    return max(1, min(COPIES, cpu.free_memory() // 2 // max(1, needed)))


def _failure(team: Team) -> WorkerFailed:
    outcome = team.finish()
    reason = "; ".join(map(str, outcome.faults)) if isinstance(outcome, Run) else outcome.reason
    if isinstance(outcome, Run) and outcome.verified and not outcome.verified.ok:
        reason = reason or outcome.verified.reason
    return WorkerFailed(f"{team.spec.workload} on {team.spec.backend}: {reason or 'the budget was used up'}")


def one_round(starts: Sequence[Start], order: random.Random) -> None:
    """Time one block of every start, in an order drawn anew."""
    for start in order.sample(list(starts), len(starts)):
        start.block()


def turns(starts: Sequence[Start], rounds: Rounds, listener: Listener) -> Callable[[int], None]:
    """Return what times round number so many of these starts."""
    order, of_all = random.Random(0), f" of {rounds.most}" if rounds.most else ""

    def turn(number: int) -> None:
        listener.phase(starts[0].team.spec, f"round {number + 1}{of_all}")
        for _ in range(rounds.blocks):
            one_round(starts, order)

    return turn


def alternate(
    turn: Callable[[int], object],
    judge: Callable[[float], Answer],
    rounds: Rounds,
    deadline: Deadline,
    *,
    after_s: float = 0.0,
) -> Answer:
    """Run rounds until the answer is clear, all of them are done, or the budget ends; return the last answer.

    `judge` gives the answer that the blocks so far have at a confidence. `after_s` is kept of the budget for what
    comes after the last round.
    """
    done, longest = 0, 0.0
    while done < rounds.least or (done != rounds.most and deadline.left() > longest + after_s):
        began = deadline.now()
        turn(done)
        done, longest = done + 1, max(longest, deadline.now() - began)
        if done >= rounds.least and done != rounds.most:
            early = judge(EARLY_CONFIDENCE)
            if early.answer != "cannot tell":
                return early
    return judge(CONFIDENCE)


def proofs_s(starts: Sequence[Start]) -> float:
    """Return about how long it takes to prove every start once more."""
    return sum(start.team.phases.seconds["proof"] / start.copies for start in starts)


def prove_again(starts: Sequence[Start]) -> None:
    """Compare every start with the reference once more: what was timed last is what counts."""
    for start in starts:
        _ = start.team.running and start.team.prove_again()


def finish_all(starts: Sequence[Start], sides: Sequence[str]) -> list[Run]:
    """End every start and return the outcomes; raise `WorkerFailed` where one is not to be believed.

    The starts of the sides take turns. That a program kept to its threads is known only now.
    """
    outcomes = [start.team.finish() for start in starts]
    for index, outcome in enumerate(outcomes):
        if not isinstance(outcome, Run) or outcome.faults or (outcome.verified and not outcome.verified.ok):
            side = sides[index % len(sides)]
            raise WorkerFailed(f"{side}, after the timing: {_failure(starts[index].team)}", code=NOT_PROVEN)
    return [outcome for outcome in outcomes if isinstance(outcome, Run)]


def verdict(starts: Sequence[Start], spread: float | None, confidence: float) -> stats.Verdict:
    """Return the verdict on starts that alternate A, B, A, B."""
    a, b = ([best_of(start.rates) for start in starts[first::2]] for first in (0, 1))
    return stats.compare_starts(a, b, confidence, spread=spread)


def best_of(rates: Sequence[float], visits: int = VISITS) -> list[float]:
    """Return the best of every few blocks in turn.

    >>> best_of([1, 5, 2, 3, 4, 4, 4, 1, 9])
    [5, 3, 4, 4]
    """
    return [max(rates[first : first + visits]) for first in range(0, len(rates) - visits + 1, visits)]
