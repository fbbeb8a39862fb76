"""The schedule of `layermark compare` and of a gate: several starts of every side, all alive, in alternation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from layermark import stats
from layermark.devices import cpu
from layermark.errors import WorkerFailed
from layermark.outcome import Block, Run
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.session.team import Team
from layermark.stats.gate import NOT_PROVEN, Finding
from layermark.workloads.base import task

BLOCK_S = 0.12
SAMPLE_NS = 2_000_000
MIN_SAMPLES = 10
COPIES = 3
"""Places in memory that every start measures its program at: where it lies is worth a per cent, for its whole life."""
# Looking again and again would find a difference sooner or later: an early stop must be far clearer.
EARLY_CONFIDENCE = 0.9999
CONFIDENCE = 0.99

Answer = TypeVar("Answer", stats.Verdict, Finding)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How many rounds an alternation has, and how its blocks follow each other."""

    blocks: int
    """Of every start in a round."""
    least: int
    """Rounds before anything is judged."""
    most: int | None = None
    """None where the budget alone ends them."""
    sides: int = 2
    together: int = 1
    """Starts of each side in a group, whose blocks follow each other."""


COMPARED = Rounds(blocks=2, least=6)
"""The rounds of `layermark compare`."""


class Start:
    """One start of one side, the rates of its blocks in turn, and with which group of blocks each was timed."""

    def __init__(self, team: Team, copies: int = 1) -> None:
        self.team = team
        self.copies = copies
        self.rates: list[float] = []
        self.groups: list[int] = []

    def block(self, group: int = 0) -> None:
        """Time one block, as one of this group, and keep its undisturbed rate; the copies take turns."""
        block = self.team.block(BLOCK_S, MIN_SAMPLES, len(self.rates) % self.copies)
        if block is None:
            raise _failure(self.team)
        self.rates.append(undisturbed_rate(block, self.team.items_per_batch))
        self.groups.append(group)


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


def start_all(teams: Sequence[Team], sides: int = 2, copies: int = 0) -> list[Start]:
    """Prepare all teams at the same time, then prove and warm up one after the other.

    The teams of the sides take turns (A, B, A, B). That calls return when the work is done is checked once a side.
    Each holds so many copies of its program, or with 0 as many as there is memory for.
    """
    prepare_all(teams)
    copies = copies or _copies(teams)
    for index, team in enumerate(teams):
        _ = team.running and _proven(team, copies) and team.warm_up(sample_ns=SAMPLE_NS, check=index < sides)
        if not team.running:
            raise _failure(team)
    return [Start(team, copies) for team in teams]


def _proven(team: Team, copies: int) -> bool:
    return all((not copy or team.build_copy()) and team.prove(copy) for copy in range(copies))


def _copies(teams: Sequence[Team]) -> int:
    """Return how many copies of its program every start holds: as many as fit well into free memory.

    Of several ranks each holds one, and so does everybody who is compared with them: their steps time the first only.
    """
    if any(team.size > 1 for team in teams):
        return 1
    needed = sum(task(team.spec).memory_bytes(team.spec.mode, team.spec.ring) for team in teams)
    return max(1, min(COPIES, cpu.free_memory() // 2 // max(1, needed)))


def _failure(team: Team) -> WorkerFailed:
    outcome = team.finish()
    reason = "; ".join(map(str, outcome.faults)) if isinstance(outcome, Run) else outcome.reason
    if isinstance(outcome, Run) and outcome.verified and not outcome.verified.ok:
        reason = reason or outcome.verified.reason
    return WorkerFailed(f"{team.spec.workload} on {team.spec.backend}: {reason or 'the budget was used up'}")


def one_round(starts: Sequence[Start], order: random.Random, sides: int = 2, together: int = 1) -> None:
    """Time one block of every start, in groups of so many of every side, drawn anew.

    `starts` are those of the sides in turn. The blocks of a group follow each other within a second or two: whatever
    disturbs a machine for longer meets them alike.
    """
    for group, members in enumerate(groups_of(range(len(starts)), order, sides, together)):
        for index in members:
            starts[index].block(group)


def groups_of(starts: Sequence[int], order: random.Random, sides: int, together: int) -> list[list[int]]:
    """Return the starts of the sides in groups, each with so many of every side in an order of its own.

    >>> [sorted(each) for each in groups_of(range(4), random.Random(0), 2, 2)]
    [[0, 1, 2, 3]]
    """
    drawn = [order.sample(starts[side::sides], len(starts[side::sides])) for side in range(sides)]
    groups = [
        [start for side in drawn for start in side[first : first + together]]
        for first in range(0, len(drawn[0]), together)
    ]
    return [order.sample(group, len(group)) for group in groups]


def starts_per_group(starts: int) -> int:
    """Return how many starts of either side a group of a comparison holds: two, or as few more as divide them.

    With one of each, the starts of a side are never in one group, and little is known of what lies between them.

    >>> [starts_per_group(starts) for starts in (3, 4, 6, 7, 9)]
    [3, 2, 2, 7, 3]
    """
    return next(each for each in range(2, starts + 1) if starts % each == 0)


def turns(starts: Sequence[Start], rounds: Rounds, listener: Listener) -> Callable[[int], None]:
    """Return what times round number so many of these starts."""
    order, of_all = random.Random(0), f" of {rounds.most}" if rounds.most else ""

    def turn(number: int) -> None:
        listener.phase(starts[0].team.spec, f"round {number + 1}{of_all}")
        for _ in range(rounds.blocks):
            one_round(starts, order, rounds.sides, rounds.together)

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
    for done in take_turns(turn, rounds, deadline, after_s=after_s):
        if done >= rounds.least and done != rounds.most:
            early = judge(EARLY_CONFIDENCE)
            if early.answer != "cannot tell":
                return early
    return judge(CONFIDENCE)


def take_turns(
    turn: Callable[[int], object], rounds: Rounds, deadline: Deadline, *, after_s: float = 0.0
) -> Iterator[int]:
    """Run rounds until all are done or the budget ends; yields after each how many there were."""
    done, longest = 0, 0.0
    while done < rounds.least or (done != rounds.most and deadline.left() > longest + after_s):
        began = deadline.now()
        turn(done)
        done, longest = done + 1, max(longest, deadline.now() - began)
        yield done


def proofs_s(starts: Sequence[Start]) -> float:
    """Return about how long it takes to prove every start once more."""
    return sum(start.team.phases.seconds["proof"] for start in starts)


def prove_again(starts: Sequence[Start]) -> None:
    """Compare every copy of every start with the reference once more: each of them was timed."""
    for start in starts:
        _ = start.team.running and start.team.prove_again(start.copies)


def finish_starts(starts: Sequence[Start], sides: Sequence[str]) -> list[Run]:
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
    a, b = starts[0::2], starts[1::2]
    rates, groups = [each.rates for each in (*a, *b)], [each.groups for each in (*a, *b)]
    return stats.compare_starts(rates[: len(a)], rates[len(a) :], confidence, spread=spread, groups=groups)
