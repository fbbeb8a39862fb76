"""The parts of a step, with a crew that only plays its part."""

import dataclasses

import pytest

from layermark.outcome import Block, Failed
from layermark.session.anatomy import DISAGREE, PARTS, Anatomy, forward_only, mostly_update
from layermark.session.team import Team
from layermark.spec import Loading, Spec
from layermark.training.update import Update
from layermark.workloads.base import task

from .crew import DEAD, FakeWorker, a_block, resources

SPEC = Spec(
    workload="resnet8-cifar",
    backend="null",
    mode="train",
    batch_size=4,
    threads=1,
    params={"image_size": (0, 0)},
    update=Update(accumulation=2),
)


def taken(*differences, left=1e9, micro_batches=2, own=None, **changes):
    """The anatomy of a step whose two batches took eight seconds, two of them waiting for pictures."""
    team = Team(SPEC.replace(**changes), resources(own or {}, *differences))
    assert team.prepare()
    block = Block.from_json(a_block((8_000,), 2))
    team.blocks = [dataclasses.replace(block, context={**block.context, "loader_wait_s": 2.0})]
    return Anatomy(team, micro_batches, lambda: left).take(), team


def readings(*seconds):
    """A worker that answers so; every time of a batch is read three times."""
    return {"seconds_per_batch": [{"seconds": each} for each in seconds for _ in range(3)]}


def test_a_step_is_divided_by_programs_that_do_less():
    found, team = taken(readings(1.0), readings(0.5, 0.15))
    assert PARTS == tuple(found["parts_s"])
    # An update takes (0.5 - 0.15) x 8 / 7 s, and two batches share it; waiting is no part of computing.
    parts = {"forward": 1.0, "backward": 2.8, "update": 0.2, "waiting": 1.0, "copying": 0.0, "rest": -1.0}
    assert found["parts_s"] == pytest.approx(parts)
    assert found["end_to_end_per_s"] == pytest.approx(1.0) and found["waiting_for_data"] == pytest.approx(0.25)
    assert not team.warnings


def test_what_has_to_be_copied_is_timed_by_itself():
    found, _ = taken(readings(2.5), readings(1.0), readings(0.5, 0.15), data="generated")
    parts = {"forward": 1.0, "backward": 1.3, "update": 0.2, "waiting": 1.0, "copying": 0.05, "rest": 0.45}
    assert found["parts_s"] == pytest.approx(parts)
    assert found["compute_only_per_s"] == pytest.approx(4 / 2.5)


def test_without_time_there_are_no_parts():
    found, _ = taken(readings(1.0), readings(0.5, 0.15), left=0.5)
    assert "parts_s" not in found and found["end_to_end_per_s"] == pytest.approx(1.0)


def asked(team):
    """How many micro-batches an update had in every program that was timed."""
    workers = team._resources.crew.workers
    return [
        [given["micro_batches"] for do, given in each.asked if do == "seconds_per_batch"][::3] for each in workers[1:]
    ]


@pytest.mark.parametrize(("run", "timed", "computed"), [(4, 4, 2.5), (1024, 8, 2.45)])
def test_no_more_micro_batches_are_timed_than_an_update_of_the_run_has_and_eight_at_most(run, timed, computed):
    """An update of 0.4 s is shared by eight batches where it was timed, and by nearly endlessly many in the run."""
    spec = {"data": "generated", "update": Update(accumulation=1024)}
    found, team = taken(readings(2.5), readings(1.0), readings(0.5, 0.15), micro_batches=run, **spec)
    assert [[timed], [1], [1, 8]] == asked(team)
    assert found["compute_only_per_s"] == pytest.approx(4 / computed, rel=1e-3)
    assert found["parts_s"]["update"] == pytest.approx(0.4 / run)
    assert found["parts_s"]["backward"] == pytest.approx(computed - 1.0 - 0.4 / run, rel=1e-3)


def test_what_a_program_would_take_to_time_must_be_left():
    """Building takes half a second, eight batches in each of two updates four seconds each, and that three times."""
    left = 2 * 0.5 + 3 * 2 * 8 * 4.0
    spec = {"data": "generated", "update": Update(accumulation=8), "micro_batches": 8}
    found, _ = taken(readings(2.5), readings(1.0), readings(0.5, 0.15), left=left + 0.1, **spec)
    assert "compute_only_per_s" in found
    found, team = taken(readings(2.5), readings(1.0), readings(0.5, 0.15), left=left - 0.1, **spec)
    assert "compute_only_per_s" not in found and [] == asked(team)


def test_a_program_beside_that_hangs_is_waited_for_no_longer_than_the_budget_lasts(monkeypatch):
    waits = []

    def finish(worker, timeout, finish=FakeWorker.finish):
        waits.append(timeout)
        return finish(worker, timeout)

    monkeypatch.setattr(FakeWorker, "finish", finish)
    taken(readings(2.5), readings(1.0), readings(0.5, 0.15), left=100.0, data="generated")
    assert 600.0 == pytest.approx(waits.pop(0), rel=1e-3)  # the run's own program
    assert waits and max(waits) <= 100.0


@pytest.mark.parametrize("phase", ["prepare", "seconds_per_batch"])
def test_a_program_beside_that_dies_costs_the_parts_and_not_the_run(phase):
    found, team = taken(readings(2.5), {phase: DEAD}, readings(0.5, 0.15), data="generated")
    assert team.running and "parts_s" not in found and 4 / 2.5 == found["compute_only_per_s"]


def test_a_run_that_dies_while_it_loads_is_an_outcome():
    _, team = taken(own={"loader_rate": DEAD}, data="real", loading=Loading(data_dir="nowhere"))
    assert isinstance(team.finish(), Failed) and 1 == len(team._resources.crew.workers)
    assert team.tell("copy_seconds") is None


def test_a_rate_above_that_of_computing_alone_is_named():
    _, team = taken(readings(8.0), readings(1.0), readings(0.5, 0.15), data="generated")
    assert [DISAGREE] == [each.code for each in team.warnings]
    assert "more than computing alone reached (0.5/s)" in team.warnings[0].text


def test_the_last_weight_alone_needs_no_backward_pass():
    spec = forward_only(SPEC)
    assert ["fc/bias"] == spec.update.trained(task(spec).graph.parameters)


def test_small_pictures_leave_the_weights_as_they_are():
    small = mostly_update(SPEC.replace(workload="resnet50"))
    assert (64, 64) == small.params["image_size"] and 2 == small.batch_size
    assert task(small).weight_bytes == task(SPEC.replace(workload="resnet50")).weight_bytes
    assert mostly_update(SPEC.replace(workload="dense", params={"size": 8})) is None
