"""A team: its phases, what goes wrong in each of them, and what it concludes; with a crew that only plays its part."""

import math

import pytest

from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ceilings import Ceilings
from layermark.launch.oracle import Oracle
from layermark.outcome import Diagnostic, Failed, Run, Skipped
from layermark.session import memory
from layermark.session.head_to_head import prepare_all
from layermark.session.memory import (
    admit,
    needed_bytes,
    no_memory_for_proof,
    probe_bytes,
    reference_bytes,
    second_bytes,
    together_bytes,
)
from layermark.session.partials import partials_warnings
from layermark.session.phases import Phases, build_stages
from layermark.session.ranks import check_plan, own_cpus, rank_specs
from layermark.session.readings import needs_more_readings
from layermark.session.team import Team
from layermark.session.threads import over_budget, thread_faults
from layermark.spec import Plan, Spec
from layermark.training.update import Update

from .crew import (
    CONTEXT,
    DEAD,
    HONEST,
    MS,
    VERIFIED,
    WRONG,
    Clock,
    FakeCeilings,
    FakeCrew,
    FakeWorker,
    a_block,
    resources,
)
from .samples import a_block as sampled

SPEC = Spec(workload="dense", backend="null", batch_size=4, threads=2, params={"size": 8})
TWO = SPEC.replace(plan=Plan(replicas=2))


def ready(spec=SPEC, *differences, **more):
    team = Team(spec, resources(*differences, **more))
    assert team.prepare() and team.prove() and team.warm_up()
    return team


def workers(team):
    return team._resources.crew.workers


def test_an_honest_measurement_becomes_a_run():
    team = ready()
    team.block(0.1, 5)
    team.ceiling.read()
    team.prove_again()
    found = team.finish()
    assert isinstance(found, Run) and not found.faults and not found.warnings
    assert (SPEC, 4, 1, 5) == (found.spec, found.items_per_batch, len(found.blocks), len(found.blocks[0].samples_ns))
    assert {"import": 1.0, "data": 0.0, "compile": 0.5, "first_step": 0.2, "warm_up": 0.3} == found.timings_s
    assert ({"peak_rss_bytes": 100}, {"cpu": "fake", "runtime": {"fake": "1"}}) == (found.memory, found.environment)
    assert ["prepare", "verify", "warm_up", "measure", "verify", "facts"] == workers(team)[0].said()
    assert workers(team)[0].ended


def test_the_time_that_was_waited_is_told_by_phase():
    team = ready()
    clock = Clock()
    team.phases = Phases(clock)
    shared = {"measure": clock.wait(2, HONEST["measure"]), "verify": clock.wait(1, VERIFIED)}
    workers(team)[0].answers |= shared
    team.block(0.1, 5)
    team.prove_again()
    assert {"timed": 2.0, "proof": 1.0} == {name: each for name, each in team.finish().wall_s.items() if each}


def test_building_is_told_apart_from_what_came_before_it():
    timings = {"import": 3.0, "data": 1.0, "compile": 4.0}
    for waited, expected in (
        (10.0, {"start": 2.0, "import": 3.0, "build": 4.0, "trial": 1.0}),
        (6.0, {"import": 1.0, "build": 4.0, "trial": 1.0}),  # it had begun before anybody waited for it
    ):
        phases = Phases()
        phases.seconds["build"] = waited
        phases.divide("build", build_stages(timings, trial_s=1.0))
        assert expected == {name: each for name, each in phases.seconds.items() if each}


PHASES = ["prepare", "verify", "warm_up", "measure", "facts"]


def through(team):
    """All phases in their order, as schedules go through them."""
    _ = team.prepare() and team.prove() and team.warm_up() and team.block(0.1, 5) and team.prove_again()
    return team.finish()


@pytest.mark.parametrize("phase", PHASES[:-1])
@pytest.mark.parametrize("spec", [SPEC, TWO], ids=["one rank", "two ranks"])
def test_a_worker_that_dies_in_any_phase_fails_the_team_at_once(phase, spec):
    phase = "step" if spec is TWO and phase == "measure" else phase
    team = Team(spec, resources({phase: DEAD}))
    found = through(team)
    assert (Failed, "killed by signal SIGKILL", "died", "last line") == (
        type(found),
        found.reason,
        found.code,
        found.log,
    )
    assert all(worker.ended for worker in workers(team))
    assert phase == workers(team)[0].said()[-1]


def test_one_that_dies_at_the_very_end_leaves_what_was_measured():
    found = through(Team(SPEC, resources({"facts": DEAD})))
    assert isinstance(found, Run) and 1 == len(found.blocks) and not found.memory
    assert ["no_facts"] == [each.code for each in found.warnings]


TOGETHER = SPEC.replace(backend="torch", mode="train", plan=Plan(replicas=2), update=Update(replicas=2))
SUM = {"bytes": 4096, "seconds": 1e-3, "right": True}


def told(communication):
    """What comes of two connected replicas that tell this of each other."""
    # Who follows says nothing as long as the first rank speaks.
    team = Team(TOGETHER, resources({"rank_stats": {"pipeline": None, "communication": communication}, "follow": {}}))
    team._ranks.lead = lambda do, timeout, **given: team._ranks.workers[0].call(do, timeout, **given)
    return through(team)


def test_replicas_that_have_come_to_different_weights_are_a_fault():
    good = {"identical": True, "all_reduce": [SUM]}
    assert () == told(good).faults and good == told(good).communication
    for wrong, words in (
        ({**good, "identical": False}, "the replicas have come to different weights or statistics"),
        ({**good, "all_reduce": [SUM, {**SUM, "bytes": 8192, "right": False}]}, "all-reduce of 8192 bytes"),
    ):
        (fault,) = told(wrong).faults
        assert "wrong_result" == fault.code and fault.text.startswith(words)


def test_a_rank_that_dies_while_it_tells_of_the_others_fails_the_team():
    team = Team(TOGETHER, resources({"rank_stats": DEAD}))
    team._ranks.lead = lambda do, timeout, **given: team._ranks.workers[0].call(do, timeout, **given)
    assert "died" == through(team).code
    lone = Team(TOGETHER, resources({"rank_stats": Unsupported("nothing to tell")}))
    lone._ranks.lead = lambda do, timeout, **given: lone._ranks.workers[0].call(do, timeout, **given)
    assert isinstance(through(lone), Run)


def test_the_second_proof_may_fail_in_two_ways():
    dead = Team(SPEC, resources({"verify": [VERIFIED, DEAD]}))
    assert "died" == through(dead).code
    wrong = through(Team(SPEC, resources({"verify": [VERIFIED, WRONG]})))
    assert (Diagnostic("wrong_result", "after the timed runs: wrong result"),) == wrong.faults


def test_a_wrong_result_is_found_before_anything_is_timed():
    team = Team(SPEC, resources({"verify": WRONG}))
    found = through(team)
    assert isinstance(found, Run) and not found.verified.ok and not found.blocks
    assert ["prepare", "verify", "facts"] == workers(team)[0].said()


def test_where_the_reference_is_no_number_the_result_is_wrong_and_not_a_crash():
    nothing = {**WRONG, "max_error": 1e308, "tolerance": 0.0}
    found = through(Team(TWO, resources({}, {"verify": nothing})))
    assert isinstance(found, Run) and found.verified is not None
    assert (False, math.inf) == (found.verified.ok, found.verified.excess)


def test_an_early_return_is_a_fault():
    for phase, go in (("warm_up", Team.warm_up), ("batch_seconds", Team.batch_seconds)):
        team = Team(SPEC, resources({phase: {"fault": "returns early"}}))
        assert team.prepare() and team.prove()
        go(team)
        assert not team.running and ("returns_early",) == tuple(each.code for each in team.finish().faults)


def test_what_a_runtime_cannot_do_is_skipped_with_what_it_can():
    refusal = Unsupported("no fused cell", code="cell", instead={"cell": "loop"})
    found = through(Team(SPEC, resources({"prepare": refusal})))
    assert Skipped(spec=SPEC, reason="no fused cell", code="cell", instead={"cell": "loop"}) == found
    assert "wrong_request" == through(Team(SPEC, resources({"prepare": UserError("no")}))).code


def test_a_rank_that_fails_ends_the_others():
    team = Team(TWO, resources({}, {"prepare": WorkerFailed("out of memory", code="out_of_memory")}))
    assert "out_of_memory" == through(team).code
    assert all(worker.ended for worker in workers(team))


def test_what_does_not_become_steady_is_told():
    team = ready(SPEC, {"warm_up": {**HONEST["warm_up"], "steady": False}})
    assert ["not_steady"] == [each.code for each in team.finish().warnings]


def test_when_the_budget_ends_in_a_block_those_before_it_stand():
    clock = Clock()
    block = [HONEST["measure"], clock.wait(10, DEAD)]
    team = ready(SPEC, {"measure": block, "verify": [VERIFIED, DEAD]}, clock=clock, budget_s=5)
    assert team.block(0.1, 5) and not team.block(0.1, 5)
    assert team.running and team.prove_again()
    found = team.finish()
    assert 1 == len(found.blocks) and ["not_proven_again"] == [each.code for each in found.warnings]


def test_without_a_block_before_the_budget_ends_nothing_was_measured():
    clock = Clock()
    for message, go in (("measure", lambda team: team.block(0.1, 5)), ("step", lambda team: team.step(1))):
        team = ready(SPEC, {message: clock.wait(10, DEAD)}, clock=clock, budget_s=5)
        assert go(team) is None
        assert "budget" == team.finish().code


def test_a_budget_that_ends_between_warm_up_and_the_first_block_skips_and_does_not_fail():
    clock = Clock()
    team = ready(SPEC, clock=clock, budget_s=5)
    clock.now += 10
    found = team.finish()
    assert isinstance(found, Skipped) and "budget" == found.code


def test_ranks_that_work_together_have_no_profile(tmp_path):
    with pytest.raises(Unsupported, match="the result has the time of each stage"):
        Team(TOGETHER, resources()).profile(tmp_path, "any", 1)


def test_zeros_are_proven_on_random_values_too():
    zeros = SPEC.replace(values="zeros")
    team = ready(zeros)
    assert ["zeros", "random"] == [worker.asked[0][1]["spec"].get("values", "random") for worker in workers(team)]
    wrong = Team(zeros, resources({}, {"verify": WRONG}))
    assert wrong.prepare() and not wrong.prove()
    assert "on random values: wrong result" == wrong.finish().faults[0].text
    broken = Team(zeros, resources({}, {"prepare": DEAD}))
    assert broken.prepare() and not broken.prove()
    assert "on random values: killed by signal SIGKILL" == broken.finish().reason


def test_replicas_share_the_threads_and_are_measured_from_first_start_to_last_end():
    late = {"step": {"block": a_block((12,)), "began_ns": 5 * MS}}
    team = ready(TWO, {}, late)
    block = team.block(0.03, 5)
    assert [1, 1] == [worker.asked[0][1]["spec"]["threads"] for worker in workers(team)]
    assert {17 * MS} == set(block.samples_ns) and {(10 * MS, 12 * MS)} == set(block.ranks_ns)
    starts = {worker.asked[-1][1]["start_ns"] for worker in workers(team)}
    assert 1 == len(starts)  # all of them begin at the same time
    assert (8, 200) == (team.items_per_batch, team.finish().memory["peak_rss_bytes"])


def test_samples_of_a_team_are_long():
    team = ready(TWO)
    team.block(0.01, 1)
    assert 10 == workers(team)[0].asked[-1][1]["batches"]  # of 10 ms each


def test_the_ceiling_is_that_of_all_ranks_together():
    ceilings = FakeCeilings(flops_per_s=4e9, bytes_per_s=1e15)
    one, two = ready(SPEC, ceilings=ceilings), ready(TWO, ceilings=ceilings)
    for team in (one, two):
        team.ceiling.read()
    assert [1, 2] == ceilings.copies
    assert 2 * one.ceiling.record().flops == two.ceiling.record().flops
    many = Team(SPEC.replace(plan=Plan(replicas=8)), resources(ceilings=ceilings))
    many.ceiling.read()
    assert 2 == ceilings.copies[-1]  # threads for two at a time
    assert ["shared_threads"] == [each.code for each in many.warnings]


def test_a_ceiling_that_cannot_be_read_is_a_warning():
    ceilings = FakeCeilings()
    ceilings.failure = WorkerFailed("no probe")
    team = ready(SPEC, ceilings=ceilings)
    assert not team.ceiling.read() and not team.ceiling.read()
    assert ["no_ceiling"] == [each.code for each in team.finish().warnings]


def test_a_rate_above_the_ceiling_is_read_again_until_it_is_sure_or_given_up():
    ceilings = FakeCeilings(flops_per_s=1.0)
    team = ready(SPEC, ceilings=ceilings)
    team.block(0.1, 5)
    team.ceiling.read()
    team.ceiling.confirm(team.blocks)
    assert 8 == len(team.ceiling.record().flops_per_s)
    clock = Clock()
    hurried = ready(SPEC, clock=clock, budget_s=10, ceilings=ceilings)
    hurried.block(0.1, 5)
    hurried.ceiling.read()
    clock.now = 8.0
    hurried.ceiling.confirm(hurried.blocks)
    assert hurried.ceiling.record() is None and "no_ceiling" == hurried.ceiling.warnings[0].code


def test_host_calls_are_scored_profiled_and_timed_singly(tmp_path):
    team = ready()
    block = team.step(5, 2, (0.1, 100))
    assert (MS,) == block.latencies_ns
    assert 3 == team.score(2)
    assert ["profile.json"] == team.profile(tmp_path, "dense", 1)
    dead = ready(SPEC, {"score": DEAD})
    assert 0 == dead.score(2) and not dead.running


def test_the_first_steps_are_dropped_as_far_as_others_are_left():
    team = Team(SPEC, resources())
    team.blocks = [sampled(30), sampled(20), sampled(10)]
    team.drop(2)
    assert [sampled(10)] == team.blocks
    assert {"first_step_s": 0.03, "warm_up_s": 0.02} == team.warm_up_s
    team.drop(2)
    assert [sampled(10)] == team.blocks


def test_copies_are_proven_one_by_one():
    team = ready()
    assert team.build_copy() and team.prove(1)
    assert {"oracle": "answer.npz", "copy": 1} == workers(team)[0].asked[-1][1]
    assert not ready(SPEC, {"copy": DEAD}).build_copy()


def test_all_teams_start_before_anybody_is_waited_for():
    shared = resources({}, {"prepare": DEAD})
    teams = [Team(SPEC, shared), Team(SPEC, shared)]
    prepare_all(teams)
    assert [True, False] == [team.running for team in teams]


@pytest.mark.parametrize("field", ["instances", "stages", "micro_batches"])
def test_a_plan_is_carried_out_or_refused(field):
    plan = Plan(**{field: 2, "replicas": 2})
    reason = "0 splits make 1" if field == "stages" else "not carried out"
    with pytest.raises(UserError, match=f"plan {field}=2: {reason}"):
        check_plan(SPEC.replace(plan=plan))
    with pytest.raises(UserError, match=f"plan {field}=2: {reason}"):
        Team(SPEC.replace(plan=plan), resources())
    check_plan(TWO)
    assert [SPEC.replace(threads=1)] * 2 == rank_specs(TWO)


def test_what_does_not_fit_together_has_to_wait(monkeypatch):
    from layermark.devices import cpu

    others = SPEC.replace(seed=1), SPEC.replace(seed=2)
    teams = [Team(spec, resources()) for spec in (SPEC, *others)]
    monkeypatch.setattr(cpu, "free_memory", lambda: together_bytes(SPEC, 2 * needed_bytes(SPEC), 2))
    assert teams[:2] == admit(teams)
    assert all(team.running for team in teams)
    monkeypatch.setattr(cpu, "free_memory", lambda: needed_bytes(SPEC))
    assert [] == admit(teams)
    assert {"memory"} == {team.outcome.code for team in teams} and "MiB are free" in teams[0].outcome.reason
    assert 2 * needed_bytes(SPEC) == needed_bytes(TWO)


ZEROS = SPEC.replace(values="zeros", plan=Plan(replicas=2))


def test_a_second_program_on_random_values_is_counted_once(monkeypatch):
    from layermark.devices import cpu

    one = needed_bytes(rank_specs(ZEROS)[0])
    assert (one, 0) == (second_bytes(ZEROS), second_bytes(TWO))
    room = together_bytes(TWO, 2 * needed_bytes(TWO), 2) + one
    monkeypatch.setattr(memory, "reference_bytes", lambda spec: 0)
    for free, fitting in ((room, 2), (room - 1, 1)):
        teams = [Team(ZEROS.replace(seed=seed), resources()) for seed in (1, 2)]
        monkeypatch.setattr(cpu, "free_memory", lambda free=free: free)
        assert fitting == len(admit(teams))


def test_where_the_second_program_does_not_fit_the_first_is_not_proven(monkeypatch):
    from layermark.devices import cpu

    shared = resources()
    monkeypatch.setattr(memory, "reference_bytes", lambda spec: 0)
    monkeypatch.setattr(cpu, "free_memory", lambda: needed_bytes(ZEROS) + probe_bytes(ZEROS))
    team = Team(ZEROS, shared)
    assert [team] == admit([team])
    assert no_memory_for_proof(team).startswith("the program and a second one on random values need about ")
    shared.oracle.knows = True
    assert no_memory_for_proof(team)
    assert not no_memory_for_proof(Team(TWO, shared))


def test_probes_that_run_are_not_counted_again(monkeypatch):
    from layermark.devices import cpu

    shared = resources()
    shared.ceilings.held = probe_bytes(SPEC)
    monkeypatch.setattr(cpu, "free_memory", lambda: needed_bytes(SPEC))
    team = Team(SPEC, shared)
    assert [team] == admit([team]) and team.running


def test_the_probes_of_a_session_tell_what_they_hold():
    import os

    ceilings = Ceilings(FakeCrew(), lambda: 1.0)
    assert 0 == ceilings.held_bytes()
    ceilings._workers["some"] = [FakeWorker(os.getpid(), {})] * 2
    assert 10 << 20 < ceilings.held_bytes()


def test_a_reference_that_is_known_or_does_not_fit_needs_no_room(monkeypatch):
    from layermark.devices import cpu

    shared, spec = resources(), Spec(workload="dense", backend="null", threads=1, params={"size": 4096})
    monkeypatch.setattr(cpu, "free_memory", lambda: needed_bytes(spec) + probe_bytes(spec))
    monkeypatch.setattr(memory, "reference_bytes", lambda spec: 1 << 40)
    team = Team(spec, shared)
    assert [team] == admit([team]) and "the reference needs" in no_memory_for_proof(team)
    shared.oracle.knows = True
    assert not no_memory_for_proof(team)


@pytest.mark.parametrize(("held", "ends"), [(2 << 30, True), (1 << 20, False)])
def test_a_large_answer_ends_the_worker_that_computed_it(monkeypatch, tmp_path, held, ends):
    from layermark.devices import cpu

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu, "resident_bytes", lambda pid: held)
    crew = FakeCrew({"oracle": {}})
    oracle = Oracle(crew, lambda: 1.0)
    oracle.begin(SPEC.replace(seed=77))
    oracle.settle()
    assert ends == crew.workers[0].ended


def test_memory_counts_every_form_of_the_weights_and_the_reference():
    from layermark.axes import complete

    large = {"size": 1024, "input_size": 500_000}
    specs = [
        complete(Spec(workload="dense", backend=name, batch_size=16, params=large))
        for name in ("torch", "onnxruntime", "openvino")
    ]
    weights = 4 * 1024 * 500_000
    forms = [needed_bytes(spec) / weights for spec in specs]
    # What was seen at a tenth of the size, besides the runtime itself, and not much more.
    for found, seen in zip(forms, (4.0, 7.2, 9.1), strict=True):
        assert seen < found < seen + 1.5
    assert 3 * weights < reference_bytes(specs[0]) < 4 * weights
    assert 20 * weights < reference_bytes(specs[0].replace(mode="train"))
    assert 0 == reference_bytes(Spec(workload="hmc", backend="jax", batch_size=1))
    assert sum(needed_bytes(spec) for spec in specs) > 24e9 > max(map(needed_bytes, specs))


def test_memory_is_estimated_by_what_a_runtime_makes_of_the_weights():
    from layermark.axes import complete

    spec = complete(Spec(workload="resnet50", backend="torch"))
    weights = 4 * 25_610_152
    assert needed_bytes(spec.replace(backend="tensorflow")) - needed_bytes(spec) == 32 * weights
    assert 4 * weights < needed_bytes(spec) < 1.5 * 2**30


def context(busy, cpu_s):
    """Of one second on a mask of two."""
    return {**CONTEXT, "busy_threads": busy, "cpu_s": cpu_s, "wall_s": 1.0, "cpus": 2}


@pytest.mark.parametrize(
    ("seen", "budget", "over"),
    [
        (context(1.0, 1.0), 1, False),
        (context(1.5, 1.4), 1, True),
        (context(1.5, 1.0), 1, False),
        (context(2.3, 1.9), 2, False),
        (context(2.9, 1.9), 2, True),
        (context(2.9, 1.2), 2, False),  # other programs had the rest
        ({}, 1, False),
    ],
)
def test_more_threads_than_the_budget_are_noticed(seen, budget, over):
    assert over == over_budget(seen, budget)


def test_one_odd_block_is_no_fault():
    good, odd = sampled(1, **context(1.0, 1.0)), sampled(1, **context(2.0, 2.0))
    assert [] == thread_faults(1, [good, good, odd])
    assert ["keeps 2.0 threads busy on a budget of 1"] == [each.text for each in thread_faults(1, [good, odd, odd])]


@pytest.mark.parametrize(
    ("readings", "share", "again"),
    [(1, 0.99, False), (39, 1.01, True), (40, 1.01, False), (7, 100.0, True), (8, 100.0, False)],
)
def test_the_ceiling_is_read_again_before_a_rate_is_called_impossible(readings, share, again):
    assert again == needs_more_readings(readings, share)


def test_ranks_have_cpus_of_their_own_where_there_are_enough(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {4, 5, 6, 7})
    assert [{"LAYERMARK_CPUS": "4,5"}, {"LAYERMARK_CPUS": "6,7"}] == [own_cpus(rank, 2, 2) for rank in (0, 1)]
    assert {} == own_cpus(0, 1, 2) == own_cpus(0, 8, 1)


@pytest.mark.parametrize(("model", "batch_size"), [("resnet50", 80), ("resnext101", 16), ("efficientnet-b0", 32)])
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_four_copies_of_the_largest_batches_of_the_seed_documents_fit_into_24_gib(
    model, batch_size, backend, monkeypatch
):
    """Of 24 GiB the system itself leaves 22 or 23."""
    from layermark.axes import expand
    from layermark.devices import cpu

    monkeypatch.setattr(cpu, "total_memory", lambda: 24 << 30)
    asked = {"backend": backend, "batch_size": str(batch_size), "replicas": "4"}
    (spec,) = expand([model], asked).specs
    assert together_bytes(spec, needed_bytes(spec), 1) < 22 << 30


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"precision": "16.16"}, ["no_half_partials"]),
        ({"precision": "32.32"}, ["no_half_partials"]),
        ({"precision": "16.16", "partials": "full"}, []),
        ({"precision": "16.16", "device": "cuda"}, []),
        ({"precision": "bf16.32", "device": "cuda"}, ["no_half_partials"]),
    ],
)
def test_sums_of_16_bits_that_nobody_switches_are_named(changes, codes):
    spec = Spec(**{"workload": "dense", "backend": "torch", "partials": "half", **changes})
    assert codes == [each.code for each in partials_warnings(spec)]


def test_cuda_gets_the_switch_for_sums_of_16_bits():
    torch = pytest.importorskip("torch")
    from layermark.backends.torch import process

    matmul = torch.backends.cuda.matmul
    process.set_partials(False)
    assert not matmul.allow_fp16_reduced_precision_reduction
    process.set_partials(True)
    assert matmul.allow_fp16_reduced_precision_reduction
    process.set_partials(False)
