"""The schedules over teams, with a crew that only plays its part: when they stop, and what survives what goes wrong."""

import random

import pytest

from layermark.errors import Unsupported, WorkerFailed
from layermark.outcome import Failed, Run, Skipped
from layermark.session import compare, gate, head_to_head
from layermark.session.budget import READINGS, ProfileRequest, StepPlan
from layermark.session.deadline import Deadline
from layermark.session.fixed_steps import StepListener, measure_fixed_steps
from layermark.session.listener import Listener
from layermark.session.phases import Phases
from layermark.session.readings import read_ceilings
from layermark.session.shares import LEAST_BLOCKS
from layermark.session.team import Team
from layermark.session.until_settled import measure_until_settled
from layermark.spec import Plan, Protocol, Spec
from layermark.stats.gate import Finding
from layermark.training.update import Update

from .crew import CONTEXT, DEAD, HONEST, VERIFIED, WRONG, Clock, FakeCeilings, a_block, resources

SPEC = Spec(workload="dense", backend="null", batch_size=4, threads=1, params={"size": 8})
TWO = SPEC.replace(threads=2, plan=Plan(replicas=2))
TOGETHER = SPEC.replace(mode="train", plan=Plan(replicas=2), update=Update(replicas=2))
"""Replicas that share their updates."""


class Told(StepListener):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def __getattribute__(self, name):
        if name in ("expected", "shortened", "compiled", "scored", "step", "stopped", "profiled", "note"):
            return lambda *given: self.heard.append(name)
        return super().__getattribute__(name)


def noisy_blocks():
    return [{**HONEST["measure"], **a_block((each,) * 5)} for each in (10, 20) * 15] + [HONEST["measure"]]


def settled(shared, count=1, box_s=60.0, **protocol):
    teams = [Team(SPEC.replace(seed=number), shared) for number in range(count)]
    return measure_until_settled(teams, Protocol(**protocol), shared.deadline, box_s=box_s)


def test_equal_blocks_settle_at_the_fewest():
    (found,) = settled(resources(), min_blocks=6)
    assert isinstance(found, Run) and 6 == len(found.blocks) == len(found.ceiling.flops_per_s)
    assert 0.01 == found.precision_goal


def test_a_time_box_ends_what_does_not_settle():
    noisy = [{**HONEST["measure"], **a_block((each,) * 5)} for each in (10, 90) * 50]
    (found,) = settled(resources({"measure": noisy}), box_s=0.0)
    assert LEAST_BLOCKS == len(found.blocks)


def test_the_order_turns_round_every_time():
    order = []
    answers = [{"measure": lambda each=each: order.append(each) or HONEST["measure"]} for each in "ab"]
    settled(resources(*answers), count=2, min_blocks=3)
    assert ["a", "b", "b", "a", "a", "b"] == order


def test_under_a_budget_who_has_settled_leaves_the_rounds_to_the_others():
    differences = {}, {"measure": noisy_blocks()}
    quiet, restless = settled(resources(*differences, budget_s=60), count=2, box_s=1.0, min_blocks=3)
    assert 3 == len(quiet.blocks) and 12 < len(restless.blocks)


def test_without_a_budget_all_take_turns_until_the_last_has_settled():
    quiet, restless = settled(resources({}, {"measure": noisy_blocks()}), count=2, box_s=1.0, min_blocks=3)
    assert 3 < len(quiet.blocks) == len(restless.blocks)


@pytest.mark.parametrize("phase", ["prepare", "verify", "warm_up", "measure"])
def test_who_dies_does_not_take_the_others_along(phase):
    first, second = settled(resources({phase: DEAD}), count=2)
    assert isinstance(first, Failed) and isinstance(second, Run) and second.blocks


def test_a_second_proof_that_fails_is_an_outcome():
    (found,) = settled(resources({"verify": [HONEST["verify"], WRONG]}))
    assert ["wrong_result"] == [each.code for each in found.faults]


def test_the_budget_ends_the_alternation():
    clock = Clock()
    shared = resources({"measure": clock.wait(3, HONEST["measure"])}, clock=clock, budget_s=10)
    (found,) = settled(shared, min_blocks=100)
    assert isinstance(found, Run) and 3 == len(found.blocks)  # a fourth would not end in time
    assert not found.warnings and 2 == shared.crew.workers[0].said().count("verify")


def test_a_budget_too_short_for_a_step_makes_it_shorter_and_the_result_says_so():
    clock, long = Clock(), SPEC.replace(batches_per_step=1000)
    shared = resources({"batch_seconds": {"seconds": 0.05}}, clock=clock, budget_s=10)
    (found,) = measure_until_settled([Team(long, shared)], Protocol(), shared.deadline, box_s=1, least_blocks=1)
    assert isinstance(found, Run) and found.blocks and ["shortened_step"] == [each.code for each in found.warnings]
    (given,) = [given for do, given in shared.crew.workers[0].asked if do == "warm_up"]
    assert 14 == given["batches"] == found.settings["batches_per_step"] and long == found.spec


@pytest.mark.parametrize(("batches", "budget_s"), [(1, 10), (50, 10), (1000, None)])
def test_a_step_that_fits_stays_as_it_is(batches, budget_s):
    shared = resources(clock=Clock(), budget_s=budget_s)
    team = Team(SPEC.replace(batches_per_step=batches), shared)
    (found,) = measure_until_settled([team], Protocol(), shared.deadline, box_s=1)
    assert found.blocks and not found.warnings and "batches_per_step" not in found.settings


def test_a_short_share_has_one_block():
    shared = resources()
    (found,) = measure_until_settled([Team(SPEC, shared)], Protocol(), shared.deadline, box_s=0, least_blocks=1)
    assert 1 == len(found.blocks)


def test_what_does_not_fit_together_is_measured_one_after_the_other(monkeypatch):
    from layermark.devices import cpu
    from layermark.session.memory import needed_bytes, together_bytes

    shared = resources()

    def alive():
        return sum(not worker.ended for worker in shared.crew.workers)

    room = together_bytes(SPEC, 2 * needed_bytes(SPEC), 2)
    most = []
    for message in ("prepare", "measure"):
        monkeypatch.setitem(HONEST, message, lambda answer=HONEST[message]: most.append(alive()) or answer)
    monkeypatch.setattr(cpu, "free_memory", lambda: room - alive() * needed_bytes(SPEC))
    found = settled(shared, count=3, min_blocks=3)
    assert 2 == max(most) and [3, 3, 3] == [len(each.blocks) for each in found]
    assert [["not_alternated"]] * 3 == [[each.code for each in run.warnings] for run in found]


def test_where_only_the_reference_does_not_fit_the_figure_is_not_proven(monkeypatch):
    """The second part, too: what the first has left running is not counted again."""
    from layermark.devices import cpu
    from layermark.session import memory

    shared = resources()
    need, probes = memory.needed_bytes(SPEC), memory.probe_bytes(SPEC)

    def free():
        shared.ceilings.held = probes if shared.crew.workers else 0
        return need + probes - shared.ceilings.held - sum(not each.ended for each in shared.crew.workers) * need

    monkeypatch.setattr(cpu, "free_memory", free)
    monkeypatch.setattr(memory, "reference_bytes", lambda spec: 1 << 40)
    found = settled(shared, count=2, min_blocks=3)
    assert [3, 3] == [len(each.blocks) for each in found]
    codes = [{warning.code for warning in each.warnings} for each in found]
    assert [{"not_proven", "not_alternated"}] * 2 == codes
    assert not shared.oracle.begun and "verify" not in shared.crew.workers[0].said()


def test_ctrl_c_is_nobodys_outcome():
    with pytest.raises(KeyboardInterrupt):
        settled(resources({"measure": KeyboardInterrupt()}))


def test_without_ceilings_none_are_read():
    shared = resources()
    measure_until_settled([Team(SPEC, shared)], Protocol(), shared.deadline, box_s=9, ceilings=False)
    assert [] == shared.ceilings.copies


def stepped(shared, plan, told=None):
    return measure_fixed_steps(Team(SPEC, shared), plan, shared.deadline, told or Told())


def test_steps_are_told_in_their_order(tmp_path):
    told, profile = Told(), ProfileRequest(folder=tmp_path, name="x")
    plan = StepPlan(steps=3, batches=5, warm_up=True, dropped=1, scored=2, latencies=True, profile=profile)
    found = stepped(resources(), plan, told)
    assert ["expected", "compiled", "scored", "step", "step", "step", "profiled"] == told.heard
    assert isinstance(found, Run) and 2 == len(found.blocks) and found.precision_goal is None
    assert found.ceiling


def test_unjudged_steps_read_no_ceiling():
    shared = resources()
    assert stepped(shared, StepPlan(steps=1, batches=1, reads_ceilings=False)).ceiling is None


def test_a_profile_that_cannot_be_had_is_a_note(tmp_path):
    told, profile = Told(), ProfileRequest(folder=tmp_path, name="x")
    found = stepped(
        resources({"profile": Unsupported("no profiler")}), StepPlan(steps=1, batches=1, profile=profile), told
    )
    assert isinstance(found, Run) and "note" == told.heard[-1]


def test_a_second_proof_of_steps_that_fails_is_an_outcome():
    found = stepped(resources({"verify": [VERIFIED, WRONG]}), StepPlan(steps=2, batches=1))
    assert isinstance(found, Run) and 2 == len(found.blocks)
    assert ["wrong_result"] == [each.code for each in found.faults]
    found = stepped(resources({"verify": [VERIFIED, DEAD]}), StepPlan(steps=2, batches=1))
    assert isinstance(found, Failed) and "died" == found.code


@pytest.mark.parametrize("phase", ["prepare", "verify", "step", "facts"])
def test_ctrl_c_in_a_step_is_nobodys_outcome(phase):
    with pytest.raises(KeyboardInterrupt):
        stepped(resources({phase: KeyboardInterrupt()}), StepPlan(steps=2, batches=1))


def test_a_short_budget_shortens_the_steps():
    told = Told()
    stepped(resources(budget_s=10.0), StepPlan(steps=5, batches=100_000), told)
    assert "shortened" in told.heard


def test_the_budget_stops_steps_between_and_within_them():
    for answers in ([HONEST["step"], HONEST["step"]], [HONEST["step"], DEAD]):
        clock, told = Clock(), Told()
        slow = [clock.wait(8, answer) for answer in answers]
        found = stepped(resources({"step": slow}, clock=clock, budget_s=9.5), StepPlan(steps=3, batches=1), told)
        assert isinstance(found, Run) and ["step", "stopped"] == told.heard[-2:]


def test_a_reference_that_takes_too_long_leaves_the_figures_unproven_and_says_so():
    clock = Clock()
    shared = resources(clock=clock, budget_s=20)
    shared.oracle.answer = lambda spec: raised(clock.wait(9, DEAD)())
    found = stepped(shared, StepPlan(steps=3, batches=1))
    assert isinstance(found, Run) and found.verified is None and 3 == len(found.blocks)
    assert ["not_proven"] == [each.code for each in found.warnings]
    assert "verify" not in shared.crew.workers[0].said()


def test_a_reference_that_fails_is_no_matter_of_time():
    shared = resources(budget_s=20)
    shared.oracle.answer = lambda spec: raised(DEAD)
    assert isinstance(stepped(shared, StepPlan(steps=3, batches=1)), Failed)


def test_a_budget_that_building_has_used_up_still_leaves_one_step():
    clock = Clock()
    shared = resources({"prepare": clock.wait(30, HONEST["prepare"])}, clock=clock, budget_s=30)
    found = stepped(shared, StepPlan(steps=3, batches=1))
    assert isinstance(found, Run) and found.blocks and found.verified.ok


def test_a_program_that_is_built_once_more_for_its_proof_has_the_time_for_it():
    """Values that prove little: a second program is proven on random ones. No second proof builds it again."""
    clock = Clock()
    again = lambda: clock.wait(23, HONEST["prepare"])() if shared.deadline.left() > 23 else DEAD  # noqa: E731
    first = {"prepare": clock.wait(18, HONEST["prepare"]), "step": clock.wait(3, HONEST["step"])}
    shared = resources(first, {"prepare": again}, clock=clock, budget_s=40)
    team = Team(SPEC.replace(values="zeros"), shared)
    team.phases = Phases(clock)
    found = measure_fixed_steps(team, StepPlan(steps=5, batches=1), shared.deadline, Told())
    assert isinstance(found, Run) and found.verified.ok and 3 == len(found.blocks)  # what ten seconds leave
    assert 0.0 == found.wall_s["proof"] and 18 + 23 == sum(found.wall_s[each] for each in ("start", "import", "build"))


def test_a_program_that_takes_long_to_build_is_not_built_again_for_a_proof_within_a_short_budget():
    clock = Clock()
    shared = resources({"prepare": clock.wait(25, HONEST["prepare"])}, clock=clock, budget_s=40)
    team = Team(SPEC.replace(values="zeros"), shared)
    team.phases = Phases(clock)
    found = measure_fixed_steps(team, StepPlan(steps=1, batches=1), shared.deadline, Told())
    assert isinstance(found, Run) and found.blocks and found.verified is None
    assert "not_proven" in [each.code for each in found.warnings] and 1 == len(shared.crew.workers)


def slow_probes(clock, budget_s):
    """Resources whose probes take as long to start as they are given."""
    shared = resources({}, {}, clock=clock, budget_s=budget_s)
    shared.ceilings.settle = lambda: clock.wait(shared.deadline.left())()
    shared.ceilings.reading = lambda *given: [shared.ceilings.settle(), raised(DEAD)]
    return shared


def test_probes_that_start_slowly_leave_time_for_figures():
    found = settled(slow_probes(Clock(), budget_s=12), count=2)
    assert all(isinstance(each, Run) and each.blocks and each.ceiling is None for each in found)
    assert {("no_ceiling",)} == {tuple(each.code for each in run.warnings) for run in found}
    stepwise = stepped(slow_probes(Clock(), budget_s=40), StepPlan(steps=3, batches=1))
    assert isinstance(stepwise, Run) and 3 == len(stepwise.blocks)
    assert ["no_ceiling"] == [each.code for each in stepwise.warnings]


def test_a_budget_that_is_used_up_still_leaves_time_for_memory_and_environment():
    clock = Clock()
    facts = lambda: HONEST["facts"] if shared.deadline.left() > 1 else DEAD  # noqa: E731
    shared = resources({"measure": clock.wait(20, HONEST["measure"]), "facts": facts}, clock=clock, budget_s=9)
    (found,) = settled(shared)
    assert isinstance(found, Run) and found.memory == {"peak_rss_bytes": 100}


def test_both_references_of_zeros_have_one_share_of_the_budget():
    clock = Clock()
    shared = resources(clock=clock, budget_s=40)
    late = lambda: raised(DEAD) if shared.deadline.left() == 0 else "answer.npz"  # noqa: E731
    shared.oracle.answer = lambda spec: [clock.wait(10)(), late()][-1]
    team = Team(SPEC.replace(values="zeros"), shared)
    found = measure_fixed_steps(team, StepPlan(steps=1, batches=1), shared.deadline, Told())
    assert isinstance(found, Run) and found.blocks and found.verified is None
    assert "not proven: the budget leaves no time for the reference" in [each.text for each in found.warnings]


@pytest.mark.parametrize(("taken_s", "codes"), [(19.5, ["no_scaling"]), (5, [])])
def test_a_budget_that_leaves_no_time_for_one_replica_alone_says_so(taken_s, codes):
    clock = Clock()
    shared = resources({"step": [clock.wait(taken_s, HONEST["step"]), HONEST["step"]]}, clock=clock, budget_s=20)
    two = Team(SPEC.replace(threads=2, plan=Plan(replicas=2)), shared)
    found = measure_fixed_steps(two, StepPlan(steps=1, batches=1), shared.deadline, Told())
    assert isinstance(found, Run) and 1 == len(found.blocks)
    assert codes == [each.code for each in found.warnings if each.code == "no_scaling"]
    assert bool(codes) != bool(found.alone)


def test_time_for_one_replica_alone_is_kept_back():
    clock = Clock()
    slow = {"batch_seconds": {"seconds": 1.0}, "step": clock.wait(1.0, HONEST["step"])}
    shared = resources(slow, clock=clock, budget_s=12)
    two = Team(SPEC.replace(threads=2, plan=Plan(replicas=2)), shared)
    found = measure_fixed_steps(two, StepPlan(steps=20, batches=1), shared.deadline, Told())
    assert found.alone and 1 < len(found.blocks) < 8


def raised(error):
    raise error


def test_a_budget_that_was_overrun_says_so_in_the_result():
    clock = Clock()
    shared = resources({"prepare": clock.wait(60, HONEST["prepare"])}, clock=clock, budget_s=40)
    found = measure_fixed_steps(Team(SPEC, shared), StepPlan(steps=1, batches=1), shared.deadline, Told())
    assert ["over_budget"] == [each.code for each in found.warnings] and "by 20.0 s" in found.warnings[0].text


def test_a_budget_that_the_proof_has_used_up_still_leaves_steps_of_slow_batches():
    clock, batch_s = Clock(), 5.0
    slow = {"verify": clock.wait(40, HONEST["verify"]), "batch_seconds": {"seconds": batch_s}}
    in_time = lambda: HONEST["step"] if shared.deadline.left() > batch_s else DEAD  # noqa: E731
    shared = resources({**slow, "step": in_time}, clock=clock, budget_s=30)
    found = stepped(shared, StepPlan(steps=3, batches=1))
    assert isinstance(found, Run) and found.blocks


def test_batches_that_take_longer_than_the_budget_still_have_a_figure_which_nothing_proves():
    clock, batch_s = Clock(), 30.0
    begun = clock.wait(3 * batch_s, {"seconds": batch_s})
    in_time = lambda: clock.wait(batch_s, HONEST["step"])() if shared.deadline.left() > batch_s else DEAD  # noqa: E731
    shared = resources({"batch_seconds": begun, "step": in_time}, clock=clock, budget_s=60)
    found = stepped(shared, StepPlan(steps=3, batches=128, warm_up=True))
    assert isinstance(found, Run) and found.blocks and found.verified is None
    codes = [each.code for each in found.warnings]
    assert "not_proven" in codes and "over_budget" in codes
    assert "verify" not in shared.crew.workers[0].said()


def test_a_proof_that_is_short_beside_the_budget_may_be_late():
    clock = Clock()
    slow = {"batch_seconds": clock.wait(58, {"seconds": 2.0})}
    found = stepped(resources(slow, clock=clock, budget_s=60), StepPlan(steps=1, batches=1))
    assert isinstance(found, Run) and found.verified and found.verified.ok


@pytest.mark.parametrize(("batch_s", "most"), [(0.01, None), (0.5, 8), (2.0, 2)])
def test_where_time_is_short_calls_of_the_proof_have_fewer_batches(batch_s, most):
    shared = resources({"batch_seconds": {"seconds": batch_s}}, clock=Clock(), budget_s=60)
    team = Team(SPEC.replace(batches_per_step=100), shared)
    assert measure_fixed_steps(team, StepPlan(steps=1, batches=100), shared.deadline, Told()).verified.ok
    proofs = [given for do, given in shared.crew.workers[0].asked if do == "verify"]
    assert {most} == {given.get("most") for given in proofs}


def test_a_budget_that_ends_within_the_first_step_leaves_nothing():
    clock = Clock()
    found = stepped(resources({"step": clock.wait(20, DEAD)}, clock=clock, budget_s=9), StepPlan(steps=3, batches=1))
    assert isinstance(found, Skipped) and "budget" == found.code


@pytest.mark.parametrize("phase", ["prepare", "verify", "batch_seconds", "step", "score"])
@pytest.mark.parametrize("warm_up", [False, True])
def test_who_dies_in_a_phase_has_failed(phase, warm_up):
    found = stepped(resources({phase: DEAD}), StepPlan(steps=2, batches=1, warm_up=warm_up, scored=1))
    assert isinstance(found, Failed) and "died" == found.code


def test_wrong_results_are_never_timed():
    shared = resources({"verify": WRONG})
    found = stepped(shared, StepPlan(steps=2, batches=1))
    assert isinstance(found, Run) and not found.blocks and "step" not in shared.crew.workers[0].said()


def against(*differences, budget_s=None):
    shared = resources(*differences, budget_s=budget_s)
    return shared, [Team(SPEC, shared) for _ in range(6)]


@pytest.fixture(autouse=True)
def _plenty_of_memory(monkeypatch):
    from layermark.devices import cpu

    monkeypatch.setattr(cpu, "free_memory", lambda: 1 << 40)


def test_starts_hold_copies_and_are_checked_once_a_side():
    shared, teams = against()
    head_to_head.start_all(teams)
    assert ["prepare", "verify", "copy", "verify", "copy", "verify", "warm_up"] == shared.crew.workers[0].said()
    checks = [dict(worker.asked)["warm_up"]["check"] for worker in shared.crew.workers]
    assert [True, True, *[False] * 4] == checks


@pytest.mark.parametrize("specs", [[TWO, TWO], [SPEC, TWO]], ids=["two ranks a side", "one against two"])
def test_where_a_start_has_several_ranks_every_start_holds_one_program(specs):
    """A step of several ranks times the first copy of each: what else they held would be proven and never timed."""
    shared = resources()
    starts = head_to_head.start_all([Team(spec, shared) for spec in specs * 3])
    head_to_head.one_round(starts, random.Random(0))
    head_to_head.prove_again(starts)
    assert {1} == {start.copies for start in starts}
    assert ["copy"] not in [[do for do in worker.said() if do == "copy"] for worker in shared.crew.workers]
    assert {2} == {worker.said().count("verify") for worker in shared.crew.workers}


def test_every_copy_that_was_timed_is_proven_again():
    shared, teams = against()
    starts = head_to_head.start_all(teams)
    for _ in range(head_to_head.COPIES):
        head_to_head.one_round(starts, random.Random(0))
    head_to_head.prove_again(starts)
    for worker in shared.crew.workers:
        timed = [given["copy"] for do, given in worker.asked if do == "measure"]
        proven = [given["copy"] for do, given in worker.asked if do == "verify"]
        assert timed == [0, 1, 2] and proven == [0, 1, 2] * 2


def test_a_second_proof_takes_about_as_long_as_the_first():
    shared, teams = against()
    for team in teams:
        team.phases = Phases(clock := Clock())
        shared.crew._differences.append({"verify": clock.wait(2, VERIFIED)})
    starts = head_to_head.start_all(teams)
    assert 6 * 3 * 2.0 == head_to_head.proofs_s(starts)


@pytest.mark.parametrize("phase", ["prepare", "verify", "copy", "warm_up"])
def test_a_start_that_fails_ends_the_comparison(phase):
    _, teams = against({}, {phase: DEAD})
    with pytest.raises(WorkerFailed, match="dense on null: killed by signal"):
        head_to_head.start_all(teams)


def test_a_wrong_start_ends_the_comparison():
    _, teams = against({}, {"verify": WRONG})
    with pytest.raises(WorkerFailed, match="wrong result"):
        head_to_head.start_all(teams)


def test_one_that_dies_in_a_round_ends_the_comparison():
    _, teams = against({"measure": DEAD})
    starts = head_to_head.start_all(teams)
    with pytest.raises(WorkerFailed, match="killed by signal"):
        head_to_head.one_round(starts, random.Random(0))


@pytest.mark.parametrize(("sides", "together"), [(2, 1), (3, 1), (2, 3)])
def test_a_round_is_in_groups_with_as_many_of_every_side(sides, together):
    _, teams = against()
    starts = head_to_head.start_all(teams, sides)
    for _ in range(4):
        head_to_head.one_round(starts, random.Random(0), sides, together)
    for block in range(4):
        members = {group: [] for group in range(6 // (sides * together))}
        for index, start in enumerate(starts):
            members[start.groups[block]].append(index % sides)
        expected = sorted([*range(sides)] * together)
        assert all(expected == sorted(each) for each in members.values())


def test_the_groups_of_a_round_are_timed_one_after_the_other():
    order, seen = random.Random(3), set()
    for _ in range(20):
        groups = head_to_head.groups_of(range(9), order, 3, 1)
        assert list(range(9)) == sorted(start for group in groups for start in group)
        seen |= {tuple(start % 3 for start in group) for group in groups}
    assert 6 == len(seen), "every order of base, base again and change comes up"


def test_a_clear_difference_stops_early_and_none_at_the_budget():
    slower = {"measure": a_block((20,) * 10)}
    shared, teams = against({}, slower, {}, slower, {}, slower)
    verdict = alternated(head_to_head.start_all(teams), shared.deadline)
    assert "slower" == verdict.answer and 0.5 == pytest.approx(verdict.ratio)
    clock = Clock()
    same = resources(clock=clock, budget_s=1.0)
    starts = head_to_head.start_all([Team(SPEC, same) for _ in range(6)])
    clock.now = 2.0
    assert "cannot tell" == alternated(starts, same.deadline).answer
    assert {head_to_head.COMPARED.least * head_to_head.COMPARED.blocks} == {len(start.rates) for start in starts}


def alternated(starts, deadline, after_s=0.0):
    return head_to_head.alternate(
        head_to_head.turns(starts, head_to_head.COMPARED, Listener()),
        lambda confidence: head_to_head.verdict(starts, None, confidence),
        head_to_head.COMPARED,
        deadline,
        after_s=after_s,
    )


@pytest.mark.parametrize(("after_s", "rounds"), [(0.0, 12), (30.0, 9)])
def test_rounds_leave_time_for_the_proof_by_the_deadlines_own_clock(after_s, rounds):
    clock = Clock()
    # A machine that is as restless as this never tells anything: a round of two blocks of six starts takes 12 s.
    blocks = [clock.wait(1.0, {**HONEST["measure"], **a_block((each,) * 5)}) for each in (10, 30, 15, 40, 20, 25) * 9]
    shared = resources(*[{"measure": blocks[n:] + blocks[:n]} for n in range(6)], clock=clock, budget_s=12 * 12.0 + 5)
    starts = head_to_head.start_all([Team(SPEC, shared) for _ in range(6)])
    clock.now = 0.0
    alternated(starts, shared.deadline, after_s)
    assert {rounds * head_to_head.COMPARED.blocks} == {len(start.rates) for start in starts}


class Crowd:
    """A crew of fakes for schedules that hire their own, with what they share."""

    def __init__(self, monkeypatch, *differences):
        self.shared = resources(*differences)
        for module in (compare, gate):
            monkeypatch.setattr(module, "Crew", lambda: self)
            monkeypatch.setattr(module.Resources, "of", lambda *_: self.shared)

    def __enter__(self):
        return self.shared.crew

    def __exit__(self, *_):
        for worker in self.shared.crew.workers:
            worker.kill()

    def said(self):
        return [worker.said() for worker in self.shared.crew.workers]


def compared(spec=SPEC):
    return compare.compare_settings(spec, SPEC.replace(execution="other"), Protocol(), starts=3, budget_s=0.1)


def gated(spec=SPEC):
    return gate.gate_sides(gate.Side(spec=SPEC), gate.Side(spec=spec), Protocol(), 0.03, rounds=5, budget_s=0.1)


def told(run):
    """The line that a comparison ends with where it cannot be made, or why a gate cannot tell."""
    try:
        return run().reason
    except WorkerFailed as failure:
        return str(failure)


BOTH = pytest.mark.parametrize("run", [compared, gated])
SLOW = {"measure": a_block((20,) * 10)}
GREEDY = {"measure": {**a_block((10,) * 10), "context": {**CONTEXT, "cpu_s": 0.3, "busy_threads": 3.0}}}


@BOTH
def test_every_start_is_proven_again_and_asked_what_it_needed(monkeypatch, run):
    crowd = Crowd(monkeypatch)
    assert isinstance(run(), compare.Compared | Finding)
    assert {("verify", "facts")} == {tuple(said[-2:]) for said in crowd.said()}
    assert all(worker.ended for worker in crowd.shared.crew.workers)


@BOTH
def test_ranks_that_work_together_are_refused_before_anything_starts(monkeypatch, run):
    crowd = Crowd(monkeypatch)
    with pytest.raises(Unsupported, match="measure them with layermark run, and compare the sessions") as refused:
        run(TOGETHER)
    assert "not_compared" == refused.value.code and not crowd.shared.crew.workers


@BOTH
@pytest.mark.parametrize("copy", range(head_to_head.COPIES))
def test_who_is_wrong_after_the_timing_does_not_win(monkeypatch, run, copy):
    Crowd(monkeypatch, {}, {"verify": [VERIFIED] * (3 + copy) + [WRONG, VERIFIED]})
    expected = {compared: "B", gated: "the base again"}[run]
    assert f"{expected}, after the timing: dense on null: after the timed runs: wrong result" == told(run)


@BOTH
def test_who_takes_more_threads_does_not_win(monkeypatch, run):
    Crowd(monkeypatch, SLOW, GREEDY, SLOW, GREEDY, SLOW, GREEDY)
    assert "after the timing: dense on null: keeps 3.0 threads busy on a budget of 1" in told(run)


def test_a_gate_whose_change_takes_more_threads_cannot_tell(monkeypatch):
    Crowd(monkeypatch, *[SLOW, SLOW, GREEDY] * 3)
    found = gated()
    assert ("cannot tell", "not_proven") == (found.answer, found.code)
    assert found.reason.startswith("the change, after the timing: ")


@BOTH
@pytest.mark.parametrize("phase", ["prepare", "verify", "copy", "warm_up", "measure"])
def test_who_dies_before_or_while_it_is_timed_ends_it_in_one_line(monkeypatch, run, phase):
    crowd = Crowd(monkeypatch, {}, {phase: DEAD})
    with pytest.raises(WorkerFailed, match=r"^dense on null: killed by signal SIGKILL$"):
        run()
    assert all(worker.ended for worker in crowd.shared.crew.workers)


@BOTH
def test_who_dies_in_the_second_proof_ends_it_in_one_line(monkeypatch, run):
    Crowd(monkeypatch, {"verify": [VERIFIED] * 3 + [DEAD]})
    side = {compared: "A", gated: "the base"}[run]
    assert f"{side}, after the timing: dense on null: killed by signal SIGKILL" == told(run)


@BOTH
@pytest.mark.parametrize("phase", ["prepare", "warm_up", "measure", "facts"])
def test_ctrl_c_ends_every_start(monkeypatch, run, phase):
    crowd = Crowd(monkeypatch, {}, {phase: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        run()
    assert all(worker.ended for worker in crowd.shared.crew.workers)


def room_for(monkeypatch, shared, count):
    """Memory for so many workers at once; returns how many lived whenever a block was timed."""
    from layermark.devices import cpu
    from layermark.session.memory import needed_bytes, together_bytes

    def alive():
        return sum(not worker.ended for worker in shared.crew.workers)

    living, answer, room = [], HONEST["measure"], together_bytes(SPEC, count * needed_bytes(SPEC), count)
    monkeypatch.setitem(HONEST, "measure", lambda: living.append(alive()) or answer)
    monkeypatch.setattr(cpu, "free_memory", lambda: room - alive() * needed_bytes(SPEC))
    return living


@pytest.mark.parametrize(("room", "together"), [(13, 12), (12, 12), (11, 6), (5, 4), (3, 2), (1, 1)])
def test_starts_that_do_not_fit_together_are_measured_in_parts(monkeypatch, room, together):
    crowd = Crowd(monkeypatch)
    living = room_for(monkeypatch, crowd.shared, room)
    found = compare.compare_settings(SPEC, SPEC.replace(execution="other"), Protocol(), budget_s=0.1)
    assert ("cannot tell", (6, 6), 12) == (found.verdict.answer, found.verdict.starts, found.verdict.rounds)
    assert {together} == set(living) and 12 == len(crowd.shared.crew.workers)
    assert {("verify", "facts")} == {tuple(said[-2:]) for said in crowd.said()}


@pytest.mark.parametrize("room", [2, 1])
def test_starts_in_parts_still_tell_who_is_slower(monkeypatch, room):
    """Also where everything is slower in one part than in another."""
    slow = [{"measure": a_block((factor * ms,) * 10)} for factor in (1, 2, 1) for ms in (20, 10)]
    crowd = Crowd(monkeypatch, *slow)
    room_for(monkeypatch, crowd.shared, room)
    assert 2.0 == pytest.approx(compared().verdict.ratio)


def test_parts_share_the_budget_and_have_equally_many_rounds(monkeypatch):
    clock = Clock()
    crowd = Crowd(monkeypatch, *[{"measure": clock.wait(1.0, HONEST["measure"])}] * 6)
    room_for(monkeypatch, crowd.shared, 2)
    monkeypatch.setattr(compare, "Deadline", lambda seconds: Deadline(seconds, clock=clock))
    found = compare.compare_settings(SPEC, SPEC.replace(execution="other"), Protocol(), starts=3, budget_s=3 * 40.5)
    assert 2 * 10 == found.verdict.rounds and 120 == clock.now


def test_what_does_not_fit_alone_or_cannot_be_proven_is_not_compared(monkeypatch):
    from layermark.session import memory

    crowd = Crowd(monkeypatch)
    room_for(monkeypatch, crowd.shared, 0)
    with pytest.raises(Unsupported, match="not measured: needs about") as refused:
        compared()
    assert "memory" == refused.value.code
    room_for(monkeypatch, crowd.shared, 6)
    monkeypatch.setattr(memory, "reference_bytes", lambda spec: 1 << 50)
    with pytest.raises(Unsupported, match="not compared: the reference needs about") as refused:
        compared()
    assert "memory" == refused.value.code and not crowd.shared.crew.workers


def test_who_fails_alone_is_named_by_its_side(monkeypatch):
    crowd = Crowd(monkeypatch, {}, {"verify": [VERIFIED, WRONG]})
    room_for(monkeypatch, crowd.shared, 1)
    assert told(compared).startswith("B, after the timing: ")


@pytest.mark.parametrize(("room", "recorded"), [(6, 1), (2, 0)])
def test_a_spread_between_parts_is_not_that_of_the_machine(monkeypatch, tmp_path, room, recorded):
    from layermark.store import open_store

    crowd, found = Crowd(monkeypatch), []
    room_for(monkeypatch, crowd.shared, room)
    with open_store(str(tmp_path / "store.db")) as store:
        monkeypatch.setattr(store, "record_spread", lambda *given: found.append(given))
        compare.compare_settings(SPEC, SPEC, Protocol(), starts=3, budget_s=0.1, store=store)
    assert recorded == len(found)


def test_a_comparison_names_what_else_differs(monkeypatch):
    Crowd(monkeypatch, *[{}, {"prepare": {**HONEST["prepare"], "settings": {"execution": "other"}}}] * 3)
    assert ("execution plain -> other",) == compared().differences


def test_everything_is_started_before_anybody_builds():
    order = []
    differences = [{"prepare": lambda each=each: order.append(f"build {each}") or HONEST["prepare"]} for each in "ab"]
    shared = resources(*differences)
    shared.oracle.begin = lambda spec: order.append("reference")
    shared.ceilings.begin = lambda spec, copies: order.append("probes")
    found = settled(shared, count=2)
    assert ["reference", "probes", "probes", "build a", "build b"] == order
    assert [1.5, 1.5] == [each.timings_s["import"] for each in found]


def test_teams_with_the_same_ceiling_share_a_few_readings():
    shared = resources(*[{"measure": noisy_blocks()} for _ in range(3)])
    teams = [Team(SPEC.replace(execution=word), shared) for word in ("auto", "reference")]
    teams.append(Team(SPEC.replace(batch_size=8), shared))
    found = measure_until_settled(teams, Protocol(min_blocks=30), shared.deadline, box_s=60)
    assert 2 * READINGS == len(shared.ceilings.copies)
    assert [READINGS] * 3 == [len(each.ceiling.flops_per_s) for each in found]
    assert 2 == len({each.ceiling.bytes for each in found})


def test_readings_take_no_more_than_a_share_of_the_timed_work():
    shared = resources()
    team = Team(SPEC, shared)
    team.prepare()
    team.ceiling.taken_s = 10.0
    for _ in range(3):
        read_ceilings([team])
    assert 1 == len(shared.ceilings.copies)


def test_readings_of_earlier_groups_count_until_they_are_old():
    shared = resources()
    counts = [len(settled(shared, min_blocks=3)[0].ceiling.flops_per_s) for _ in range(5)]
    assert [3, 6, READINGS, READINGS, READINGS] == counts
    (reached,) = shared.reached.values()
    reached.last_s -= 1e4
    assert READINGS + 1 == len(settled(shared, min_blocks=3)[0].ceiling.flops_per_s)


def test_the_share_of_the_ceiling_is_raw():
    shared = resources(ceilings=FakeCeilings(flops_per_s=1e15, bytes_per_s=1e15))
    (found,) = settled(shared)
    assert 1e15 == found.ceiling.flops_per_s[0]
