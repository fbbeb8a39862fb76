"""How a budget is shared among measurements, with a clock that only moves when told."""

import pytest

from layermark.outcome import Failed
from layermark.session.deadline import Deadline
from layermark.session.shares import LEAST_BLOCKS, SHORTEST_BLOCK_S, Shares, as_asked, without_trial
from layermark.spec import Protocol, Spec

from .crew import Clock
from .samples import a_block, a_run

SPEC = Spec(workload="dense", backend="torch", batch_size=4, threads=1, params={"size": 8})
NOTHING = [Failed(spec=SPEC, reason="")]


def test_without_a_budget_everybody_has_the_whole_time_box():
    share = Shares(Deadline(None), Protocol(time_box=2.0), 5).next(3)
    assert (6.0, LEAST_BLOCKS, True, Protocol(time_box=2.0)) == (
        share.box_s,
        share.least_blocks,
        share.trials,
        share.protocol,
    )


@pytest.mark.parametrize("overhead_s", [1.0, 4.0, 5.0])
def test_seventy_measurements_in_six_minutes_all_have_their_turn(overhead_s):
    clock = Clock()
    deadline = Deadline(360.0, clock=clock)
    shares = Shares(deadline, Protocol(), 70)
    for number in range(70):
        share = shares.next(1)
        assert deadline.left() > 0, number
        assert share.limit_s <= deadline.left()
        timed_s = max(share.box_s, share.least_blocks * share.protocol.block)
        clock.now += overhead_s + timed_s
        shares.used([a_run(blocks=(a_block(1e3 * timed_s),))], overhead_s + timed_s)
    assert 0 <= deadline.left() < 20  # and hardly anything is wasted


def test_what_is_left_over_goes_to_later_groups():
    clock = Clock()
    shares = Shares(Deadline(100.0, clock=clock), Protocol(time_box=60.0), 4)
    first = shares.next(2)
    clock.now = 10.0  # it needed far less
    second = shares.next(2)
    assert first.box_s < 50 < second.box_s < 90


def test_time_boxes_shrink_down_to_one_short_block():
    shares = Shares(Deadline(4.0, clock=Clock()), Protocol(), 10)
    share = shares.next(5)
    assert (0.0, 1, SHORTEST_BLOCK_S, 1) == (
        share.box_s,
        share.least_blocks,
        share.protocol.block,
        share.protocol.min_steps,
    )
    assert 2.0 == share.limit_s


def test_one_that_takes_long_may_use_what_the_others_do_not_need():
    clock = Clock()
    shares = Shares(Deadline(100.0, clock=clock), Protocol(), 10)
    shares.next(1)
    shares.used(NOTHING, 1.0)
    assert 92.0 == shares.next(1).limit_s


def test_the_timed_work_is_no_extra():
    run = a_run()
    timed_s = sum(sum(block.samples_ns) for block in run.blocks) / 1e9
    shares = Shares(Deadline(100.0, clock=Clock()), Protocol(), 10)
    shares.used([run], 5.0 + timed_s)
    assert 5.0 == pytest.approx(shares.overhead_s)


def test_a_limit_is_the_groups_own():
    clock = Clock()
    deadline = Deadline(10.0, clock=clock)
    with deadline.within(4.0):
        clock.now = 5.0
        assert 0.0 == deadline.left()
    assert 5.0 == deadline.left()
    with Deadline(None, clock=clock).within(3.0):
        pass
    unlimited = Deadline(None)
    with unlimited.within(float("inf")):
        assert float("inf") == unlimited.left()


def test_a_plain_execution_takes_the_place_of_a_trial_and_the_result_says_so():
    plain = without_trial(SPEC)
    assert "eager" == plain.execution
    assert "compile" == without_trial(SPEC.replace(execution="compile")).execution
    assert "auto" == without_trial(SPEC.replace(backend="null")).execution
    run = a_run(spec=plain)
    told = as_asked(run, SPEC)
    assert SPEC == told.spec and "no_trial" == told.warnings[-1].code and "eager" in told.warnings[-1].text
    assert run is as_asked(run, plain)
    assert SPEC == as_asked(Failed(spec=plain, reason="x"), SPEC).spec


def test_what_a_settled_group_left_of_its_time_box_makes_later_ones_longer():
    shares = Shares(Deadline(1000.0, clock=Clock()), Protocol(time_box=2.0), 4)
    quick, slow = a_run(blocks=(a_block(500.0),)), a_run(blocks=(a_block(3500.0),))
    assert 2.0 == shares.next(1).box_s
    shares.used([quick], 1.0)
    assert 3.5 == shares.next(1).box_s
    shares.used([slow], 4.0)
    assert 2.0 == shares.next(1).box_s  # all of it was used
    shares.used([quick, quick, quick], 2.0)
    assert shares.next(1).box_s <= 4.0
    unlimited = Shares(Deadline(None), Protocol(time_box=2.0), 2)
    unlimited.next(1)
    unlimited.used([quick], 1.0)
    assert 2.0 == unlimited.next(1).box_s
