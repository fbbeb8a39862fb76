"""The schedule of `layermark run`: teams take turns until every interval is narrow enough or time is up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layermark import stats
from layermark.devices import cpu
from layermark.outcome import Outcome, Skipped
from layermark.session.budget import fitting_step
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.session.memory import admit, no_memory_for_proof
from layermark.session.readings import read_ceilings
from layermark.session.shares import LEAST_BLOCKS
from layermark.session.team import Team
from layermark.spec import Protocol
from layermark.worker.loop import WARM_UP_LIMIT_S

_PROOF_S = 0.3
"""What the second proof of a team takes at least, besides what the first took."""
_WARM_UP_SHARE = 0.3
"""Of a team's part of a budget, as long as a program is not steady."""


def measure_until_settled(
    teams: Sequence[Team],
    protocol: Protocol,
    deadline: Deadline,
    *,
    box_s: float,
    least_blocks: int = LEAST_BLOCKS,
    ceilings: bool = True,
    listener: Listener | None = None,
) -> list[Outcome]:
    """Prepare, prove, alternate, prove again; `box_s` is the timed work that all teams together may use.

    Teams that do not fit into memory together are measured one after the other.
    """
    waiting = list(teams)
    while part := admit(waiting):
        if len(part) < len(teams):
            _warn_not_alternated(part, teams)
        share_s = box_s * len(part) / len(teams)
        stop = _Stop(protocol, deadline, box_s=share_s, least_blocks=least_blocks)
        _measure_together(part, stop, ceilings, listener or Listener())
        waiting = [team for team in waiting if team.running]
    return [team.finish() for team in teams]


def _measure_together(teams: Sequence[Team], stop: _Stop, ceilings: bool, listener: Listener) -> None:
    """Measure teams in alternation and end their ranks."""
    provable = _provable(teams)
    start_ahead(teams, ceilings=ceilings, referred=provable)
    for team in teams:
        team.precision_goal = stop.protocol.precision_goal
        _ = team.running and team.prepare() and (team not in provable or team.prove()) and _warm_up(team, teams, stop)
    _alternate([team for team in teams if team.running], stop, ceilings, listener)
    for team in teams:
        if team.running:
            team.time_alone()
            team.ceiling.confirm(team.blocks)
            _ = team in provable and team.prove_again()
        team.finish()


def _warm_up(team: Team, teams: Sequence[Team], stop: _Stop) -> bool:
    """Warm up; where the budget is too short for a step of so many batches, with shorter ones."""
    left_s, batches = stop.left_s(teams), team.spec.batches_per_step
    limit_s = min(WARM_UP_LIMIT_S, _WARM_UP_SHARE * left_s)
    if batches == 1 or math.isinf(left_s):
        return team.warm_up(limit_s=limit_s)
    fitting = fitting_step(batches, team.batch_seconds(), left_s, team.spec.update.micro_batches)
    if team.running and fitting < batches:
        team.shorten_step(fitting)
    return team.running and team.warm_up(check=False, limit_s=limit_s)


def _provable(teams: Sequence[Team]) -> list[Team]:
    """Return those for whose reference there is memory; the others say in their results that nothing proves them."""
    provable = []
    for team in teams:
        if lacking := no_memory_for_proof(team):
            team.warn("not_proven", f"not proven: {lacking}")
        else:
            provable.append(team)
    return provable


def _warn_not_alternated(part: Sequence[Team], teams: Sequence[Team]) -> None:
    """Say in the results which others of their group did not take turns with them."""
    others = [team for team in teams if team not in part and not _left_out(team)]
    for team in part if others else ():
        names = ", ".join(dict.fromkeys(each.spec.backend for each in others))
        team.warn("not_alternated", f"not in alternation with {names}: memory is too small for all of them together")


def _left_out(team: Team) -> bool:
    return isinstance(team.outcome, Skipped) and team.outcome.code == "memory"


def start_ahead(teams: Sequence[Team], *, ceilings: bool, referred: Sequence[Team] | None = None) -> None:
    """Start the processes of all teams, the reference and the probes, a few at the same time, and wait for them.

    `referred` are those that are proven: all of them, unless memory is short.

    Programs are built afterwards, one by one and each alone on the machine: how long that takes is a result.
    """
    proven = teams if referred is None else referred
    if proven:
        proven[0].reference.begin()
    at_once = max(2, cpu.thread_budget())
    for index, team in enumerate(teams):
        if index >= at_once:
            teams[index - at_once].await_start()
        if team.running:
            team.start_ahead()
    for team in teams[-at_once:]:
        team.await_start()
    for team in teams if ceilings else ():
        team.ceiling.start_probes()
    for team in proven[:1]:
        team.reference.settle()
    if ceilings and not all(team.ceiling.await_probes() for team in teams[:1]):
        for team in teams:
            team.ceiling.give_up()


def _alternate(teams: Sequence[Team], stop: _Stop, ceilings: bool, listener: Listener) -> None:
    """Run rounds of one block each, in an order that turns round every time."""
    running = list(teams)
    while running and not stop.reached(teams, running):
        for team in running:
            listener.phase(team.spec, f"block {len(team.blocks) + 1}")
            team.block(stop.protocol.block, stop.protocol.min_steps)
        running = [team for team in running if team.running][::-1]
        if ceilings:
            read_ceilings(running)
        running = [team for team in running if not stop.rests(team)]


class _Stop:
    """The stop rule of an alternation."""

    def __init__(self, protocol: Protocol, deadline: Deadline, *, box_s: float, least_blocks: int) -> None:
        self.protocol = protocol
        self._deadline, self._box_s, self._least_blocks = deadline, box_s, least_blocks
        self._left_s, self._longest_s = deadline.left(), 0.0

    def left_s(self, teams: Sequence[Team]) -> float:
        """Return how much of the budget each of those that are running has, without the proofs after the timing."""
        running = [team for team in teams if team.running]
        return max(0.0, self._deadline.left() - _proofs_s(running)) / len(running)

    def reached(self, teams: Sequence[Team], running: Sequence[Team]) -> bool:
        """Whether those that are running have enough, or time is up; `teams` are all that have used some of it."""
        if self._out_of_budget(teams, running):
            return True
        if _timed_s(teams) >= self._box_s:
            return all(len(team.blocks) >= self._least_blocks for team in running)
        return all(map(self.settled, running))

    def rests(self, team: Team) -> bool:
        """Whether a team leaves the rounds to the others: where time is short, what has settled needs no more of it.

        Elsewhere all go on in alternation until the last has settled, so that whatever the machine does meets them all.
        """
        return math.isfinite(self._left_s) and self.settled(team)

    def settled(self, team: Team) -> bool:
        """Whether a team needs no more rounds: its interval is as narrow as was asked for."""
        return len(team.blocks) >= self.protocol.min_blocks and stats.settled(
            team.blocks, team.items_per_batch, self.protocol.precision_goal
        )

    def _out_of_budget(self, teams: Sequence[Team], running: Sequence[Team]) -> bool:
        """Whether another round, and all proofs after it, would not end in time; the first round is always begun."""
        left = self._deadline.left()
        if math.isinf(left):
            return False
        self._longest_s, self._left_s = max(self._longest_s, self._left_s - left), left
        return left == 0 or (all(team.blocks for team in running) and left < self._longest_s + _proofs_s(teams))


def _proofs_s(teams: Sequence[Team]) -> float:
    """Return how long the second proofs take, going by the first."""
    return sum(team.phases.seconds["proof"] + _PROOF_S for team in teams if team.running)


def _timed_s(teams: Sequence[Team]) -> float:
    """Return how long the blocks of all teams took, with what comes before each: readings of the ceilings are extra."""
    return sum(team.phases.seconds["timed"] + team.phases.seconds["quiet"] for team in teams)
