"""The schedule of the seed scripts: a fixed number of timed host calls, one after the other, on one team."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from layermark.errors import Unsupported, WorkerFailed
from layermark.outcome import Block, Outcome
from layermark.session.budget import READINGS, Cost, StepPlan, fit
from layermark.session.deadline import Deadline
from layermark.session.failure import ended_by_failure
from layermark.session.listener import Listener
from layermark.session.memory import admit, no_memory_for_proof
from layermark.session.resources import least_wait_s
from layermark.session.team import ALONE_SAMPLES, Team
from layermark.session.team_reference import RANDOM
from layermark.worker.verify import MANY, calls

_READING_SHARE = 0.5
"""Readings of the ceilings between the steps may take this share of the steps' own time; one is taken in any case."""
_REFERENCE_SHARE = 0.4
"""The reference may take this share of the time left; otherwise nothing is proven, and the result says so."""
_LEAST_SHARE, _LEAST_S, _LEAST_BATCHES = 0.2, 10.0, 8
"""Once the program is built, so much of the budget (or so many seconds, or batches) is left for its proof, and once
more for its steps: a late figure beats none."""
_LATE_PROOF_SHARE = 0.5
"""A proof that takes longer than this share of the budget is left out where it would not end in time."""
_STEP_MARGIN = 1.5
"""The first step is not cut off by a budget that has run out meanwhile: so much longer than expected it may take."""
_LEAST_UNPROVEN = 4
"""Batches that there is time for in any case where the proof is left out: ceilings, warm-up and a step."""
_PREPARING = ("start", "import", "build", "trial")
_PROOF_MARGIN = 2.0
"""A proof, for which a program may be built once more, has so much more time than is expected."""
_PROOF_SHARE, _AT_ONCE = 0.25, (MANY, 8, 4, 2)
"""Calls of a proof have as many batches as leave it within this share of the time left, or the fewest."""
_LATENCIES = (0.1, 100)
"""Single batches that are timed separately may take this share of a step, and be so many."""


class StepListener(Listener):
    """Told what happens, in this order. This one hears nothing; a seed script's prints."""

    def expected(self, seconds: float) -> None:
        """All steps together will take about this long."""

    def shortened(self, plan: StepPlan, requested: StepPlan) -> None:
        """The budget allows less than what was asked for."""

    def compiled(self, seconds: float) -> None:
        """The program is ready (and warmed up, where the plan asks for it)."""

    def scored(self, right: int, pictures: int) -> None:
        """So many of so many pictures were sorted into their class."""

    def step(self, block: Block, items: int) -> None:
        """One host call is over; it processed so many items."""

    def stopped(self, done: int) -> None:
        """The budget ended the steps after so many."""

    def profiled(self, files: Sequence[str]) -> None:
        """These files hold the profile."""


def measure_fixed_steps(team: Team, requested: StepPlan, deadline: Deadline, listener: StepListener) -> Outcome:
    """Prepare, prove, time every step, and prove again."""
    admit([team])
    with ended_by_failure(team):
        _measure_within(team, requested, deadline, listener)
    if late_s := deadline.overrun():
        text = (
            f"the budget was overrun by {late_s:.1f} s: building the program and proving it take longer than it allows"
        )
        team.warn("over_budget", text)
    return team.finish()


def _measure_within(team: Team, requested: StepPlan, deadline: Deadline, listener: StepListener) -> None:
    """Start, prove where there is time for it, and time what the deadline leaves."""
    referred = _start(team, deadline)
    if team.running and team.prepare():
        with deadline.at_least(max(least_wait_s(), deadline.share(1.0))):  # without it nobody knows what still fits
            batch_s = team.batch_seconds()
        proof_s = _proof_seconds(team, batch_s, deadline) + _rebuild_seconds(team)
        proven = referred and team.running and _has_time_for_proof(team, proof_s, deadline)
        least_batches = _LEAST_BATCHES if proven or not referred else _LEAST_UNPROVEN
        least_s = max(_LEAST_S, least_batches * batch_s)
        if proven:
            with deadline.at_least(max(least_s, deadline.share(_LEAST_SHARE), _PROOF_MARGIN * proof_s)):
                team.prove()
        if team.running:
            deadline.extend_to_leave(_LEAST_SHARE, least_s)
            cost = Cost(proof_s=team.phases.seconds["proof"], batch_s=batch_s)
            _measure(team, requested, cost, deadline, listener)


def _proof_seconds(team: Team, batch_s: float, deadline: Deadline) -> float:
    """Return about how long the batches of a proof take; where time is short, its calls get fewer of them."""
    spec = team.spec
    if spec.mode == "train":
        return _LEAST_BATCHES * batch_s
    programs = 1 if spec.values == RANDOM else 2
    room = _PROOF_SHARE * deadline.left()
    for most in _AT_ONCE:
        batches = sum(call.batches for call in calls(spec, 1, live=spec.data == "real", most=most))
        if programs * batches * batch_s <= room:
            break
    team.proven_at_once = most if most < MANY else 0
    return programs * batches * batch_s


def _rebuild_seconds(team: Team) -> float:
    """Return about how long it takes to build a program once more, where the proof has to."""
    return 0.0 if team.spec.values == RANDOM else sum(team.phases.seconds[name] for name in _PREPARING)


def _has_time_for_proof(team: Team, proof_s: float, deadline: Deadline) -> bool:
    """Whether a proof fits into what is left, or is short beside the budget and so may be late; else say why not."""
    if proof_s <= max(_LEAST_S, deadline.left(), deadline.share(_LATE_PROOF_SHARE)):
        return True
    team.warn("not_proven", f"not proven: the proof takes about {proof_s:.0f} s, which the budget does not leave")
    return False


def _start(team: Team, deadline: Deadline) -> bool:
    """Start the ranks and compute the reference meanwhile; returns whether it is there."""
    if not team.running:
        return False
    if lacking := no_memory_for_proof(team):
        team.warn("not_proven", f"not proven: {lacking}")
        _ = team.start_ahead() and team.await_start()
        return False
    team.reference.begin()
    _ = team.start_ahead() and team.await_start()
    if team.reference.within(_REFERENCE_SHARE * deadline.left()):
        return True
    team.warn("not_proven", "not proven: the budget leaves no time for the reference")
    return False


def _measure(team: Team, requested: StepPlan, cost: Cost, deadline: Deadline, listener: StepListener) -> None:
    if requested.reads_ceilings:
        team.ceiling.read()
    requested = dataclasses.replace(requested, alone=ALONE_SAMPLES if team.concurrent_batches > 1 else 0)
    listener.expected(cost.seconds(requested))
    plan = fit(requested, cost, deadline.left())
    if plan != requested:
        listener.shortened(plan, requested)
    warm_s = _warm_up(team, plan) if plan.warm_up else 0.0
    if not team.running:
        return
    listener.compiled(team.compile_s + warm_s)
    deadline.extend_to_leave(0.0, _STEP_MARGIN * cost.batch_s * plan.step_batches)
    if plan.scored:
        listener.scored(team.score(plan.scored), plan.scored * team.items_per_batch // team.size)
    if team.running and _timed(team, plan, cost, deadline, listener):
        team.drop(plan.dropped)
        _time_alone(team, plan, cost, deadline)
        team.ceiling.confirm(team.blocks)
        _profile(team, plan, listener)
        if team.verified:
            team.prove_again()


def _time_alone(team: Team, plan: StepPlan, cost: Cost, deadline: Deadline) -> None:
    """Time the first rank alone in what the plan has kept back for it; say so where other things have used that up."""
    if not plan.alone:
        return
    if deadline.left() > cost.reserve_s + plan.alone * cost.batch_s * plan.batches:
        team.time_alone(plan.batches)
    else:
        team.warn("no_scaling", "the budget left no time to measure one replica alone")


def _warm_up(team: Team, plan: StepPlan) -> float:
    """Run one step that does not count; returns how long it took."""
    block = team.step(plan.batches, plan.calls)
    seconds = block.samples_ns[0] / 1e9 if block else 0.0
    team.warm_up_s = {"first_step_s": seconds, "warm_up_s": seconds}
    return seconds


def _timed(team: Team, plan: StepPlan, cost: Cost, deadline: Deadline, listener: StepListener) -> bool:
    """Time the steps until all are done or the budget ends; returns whether the team goes on."""
    stride = max(1, math.ceil(plan.steps / READINGS))
    for index in range(plan.steps):
        if index and deadline.left() < cost.reserve_s + cost.batch_s * (plan.step_batches + plan.alone * plan.batches):
            listener.stopped(index)
            break
        block = team.step(plan.batches, plan.calls, _LATENCIES if plan.latencies else None)
        if block is None:
            if team.running:  # the budget ended within the step
                listener.stopped(index)
            break
        team.blocks.append(block)
        listener.step(block, team.items_per_batch * plan.step_batches)
        if plan.reads_ceilings and index % stride == 0 and team.ceiling.taken_s <= _READING_SHARE * team.timed_s:
            team.ceiling.read()
    return team.running


def _profile(team: Team, plan: StepPlan, listener: StepListener) -> None:
    wanted = plan.profile
    if wanted is None:
        return
    try:
        listener.profiled(team.profile(wanted.folder, wanted.name, min(plan.batches, wanted.batches)))
    except (Unsupported, WorkerFailed) as failure:
        listener.note(f"no profile: {failure}")
