"""How long the commands of the seed documents run, and what a budget leaves of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermark.errors import UserError
from layermark.training.lengths import CIFAR_PICTURES, Call, CallPlan, Lengths, UpdateTime, fit

S10 = Lengths(micro_batch=16, accumulation=1024, epochs=1)
COMMANDS = {
    # global batch, updates per epoch, target, updates per host call, log lines, run
    "S10": (S10, (16384, 78, 78, 4, 20, 80)),
    "S11": (Lengths(micro_batch=16, accumulation=256, replicas=4, epochs=1), (16384, 78, 78, 4, 20, 80)),
    "S12": (Lengths(micro_batch=6, accumulation=64, replicas=2, epochs=2), (768, 1668, 3336, 104, 33, 3432)),
    "S13": (Lengths(micro_batch=6, accumulation=16, replicas=8, epochs=2), (768, 1668, 3336, 104, 33, 3432)),
    "S14": (Lengths(micro_batch=5, accumulation=40, epochs=2), (200, 6405, 12811, 400, 33, 13200)),
    "S15": (Lengths(micro_batch=5, accumulation=40, replicas=4, epochs=1), (800, 1601, 1601, 100, 17, 1700)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_lengths_of_the_documents(name):
    lengths, expected = COMMANDS[name]
    call_plan = lengths.call_plan
    assert expected == (
        lengths.global_batch,
        lengths.updates_per_epoch,
        lengths.target,
        lengths.updates_per_call,
        call_plan.lines(lengths.log_interval),
        call_plan.updates,
    )


def test_a_long_log_interval_is_cut_into_equal_parts():
    def per_call(interval):
        return Lengths(micro_batch=1, iterations=10**6, log_freq=interval).updates_per_call

    # The same rule as that of the documents' validation: 50,000 pictures in batches of 1 to 64.
    assert [1000, 1000, 1041, 1041, 1041, 781, 781] == [
        per_call(each) for each in (50000, 25000, 12500, 6250, 3125, 1562, 781)
    ]


def test_a_length_in_updates():
    lengths = Lengths(micro_batch=2, accumulation=256, iterations=10)
    assert (512, 10, 500) == (lengths.global_batch, lengths.target, lengths.call_plan.updates)
    assert [Call(0, 0, 500)] == list(lengths.call_plan)
    assert pytest.approx(5120 / 1_281_167) == lengths.length_in_epochs
    short = Lengths(micro_batch=1, iterations=4, log_freq=2).call_plan
    assert [2, 4] == [call.last for call in short if short.marks(call, 1000)]


def test_everything_is_at_least_one():
    lengths = Lengths(micro_batch=64, pictures=10, epochs=0.5)
    assert (1, 1, 1, 1) == (lengths.updates_per_epoch, lengths.target, lengths.log_interval, lengths.updates_per_call)
    assert 1 == lengths.call_plan.calls


def test_epochs_are_decimal():
    # In binary 50,000 x 0.1 / 50 could come out as 99.999.
    assert 100 == Lengths(micro_batch=50, pictures=CIFAR_PICTURES, epochs=0.1).target
    assert 2.0 == Lengths(micro_batch=50, pictures=CIFAR_PICTURES, epochs=3).epoch(2000)


def test_marks_follow_crossings_and_both_ends():
    call_plan = CallPlan(calls=8, updates_per_call=3, micro_batches=1)
    # Updates 3 to 24 in steps of 3; multiples of 10 are crossed by the calls that end at 12 and 21.
    assert [3, 12, 21, 24] == [call.last for call in call_plan if call_plan.marks(call, 10)]
    assert [3, 21, 24] == [call.last for call in call_plan if call_plan.marks(call, 1000)]
    assert [] == [call.last for call in call_plan if call_plan.marks(call, 0)]
    assert 8 == call_plan.lines(3)


def test_checkpoints_have_an_interval_of_their_own():
    lengths = COMMANDS["S14"][0]
    call_plan = lengths.call_plan
    saved = [call.last for call in call_plan if call_plan.marks(call, lengths.updates_per_epoch)]
    assert [400, 6800, 12800, 13200] == saved


def test_a_restored_run_goes_on_after_its_checkpoint():
    call_plan = S10.call_plan
    assert list(call_plan)[5:] == list(call_plan.after(20)) and [] == list(call_plan.after(80))
    assert 60 == call_plan.after(20).updates and 0 == call_plan.after(80).updates == call_plan.after(99).updates
    inside = call_plan.after(22)
    assert [(22, 24), (24, 28)] == [(call.first, call.last) for call in inside][:2] and 58 == inside.updates
    # The first line is that of a run's first call, and the last two are its last two, restored or not.
    assert [76, 80] == [call.last for call in inside if inside.marks(call, 1000)]


def test_a_budget_is_for_what_a_checkpoint_leaves():
    left = S10.call_plan.after(72)
    assert (left, ()) == ((whole := fit(left, UPDATE_TIME, 8 * 1024)).call_plan, whole.shortened)
    few = fit(left, UPDATE_TIME, 3 * 1024)
    assert ("1 of 4 updates per host call",) == few.shortened and few.fits
    assert [(72, 73), (73, 74)] == [(call.first, call.last) for call in few.call_plan]
    assert fit(S10.call_plan.after(80), UPDATE_TIME, 0.0).call_plan.updates == 0


def test_no_logs_in_an_epoch_is_one_interval():
    assert 78 == Lengths(micro_batch=16, accumulation=1024, epochs=1, logs_per_epoch=0).log_interval


UPDATE_TIME = UpdateTime(micro_batch_s=1.0)


def test_a_budget_first_takes_lines_then_updates_then_micro_batches():
    call_plan = S10.call_plan
    whole = fit(call_plan, UPDATE_TIME, 80 * 1024, stages=4)
    assert (call_plan, (), True) == (whole.call_plan, whole.shortened, whole.fits)
    lines = fit(call_plan, UPDATE_TIME, 10 * 4 * 1024 + 5, stages=4)
    assert CallPlan(calls=10, updates_per_call=4, micro_batches=1024) == lines.call_plan
    assert ("10 of 20 lines",) == lines.shortened
    calls = fit(call_plan, UPDATE_TIME, 2 * 3 * 1024, stages=4)
    assert CallPlan(calls=2, updates_per_call=3, micro_batches=1024) == calls.call_plan
    few = fit(call_plan, UPDATE_TIME, 180, stages=4)
    assert CallPlan(calls=2, updates_per_call=1, micro_batches=90) == few.call_plan and few.fits
    assert ("2 of 20 lines", "1 of 4 updates per host call", "90 of 1024 micro-batches per update") == few.shortened


def test_fewer_micro_batches_are_whole_rounds():
    few = fit(S10.call_plan, UPDATE_TIME, 2 * 91, stages=4, rounded=lambda count: count - count % 2)
    assert 90 == few.call_plan.micro_batches and "90 of 1024 micro-batches per update" in few.shortened


def test_pictures_are_those_really_processed():
    assert 16384 == S10.pictures_per_update(S10.call_plan) and 19 == S10.calls_per_epoch
    replicated = COMMANDS["S12"][0]
    few = fit(replicated.call_plan, UPDATE_TIME, 0.001, stages=2).call_plan
    assert 6 * 2 * 2 == replicated.pictures_per_update(few)


def test_the_shortest_course_has_two_lines_and_a_micro_batch_per_stage():
    least = fit(S10.call_plan, UPDATE_TIME, 0.001, stages=4)
    assert CallPlan(calls=2, updates_per_call=1, micro_batches=4) == least.call_plan and not least.fits
    single = CallPlan(calls=1, updates_per_call=1, micro_batches=2)
    assert single == fit(single, UPDATE_TIME, 0.001, stages=4).call_plan


@given(
    calls=st.integers(1, 50),
    size=st.integers(1, 500),
    micro_batches=st.integers(1, 64),
    budget=st.floats(0.01, 1e5),
    stages=st.integers(1, 8),
    update_s=st.floats(0, 2),
)
def test_a_budget_only_shortens_and_is_kept_where_it_can_be(calls, size, micro_batches, budget, stages, update_s):
    call_plan = CallPlan(calls=calls, updates_per_call=size, micro_batches=micro_batches)
    update_time = UpdateTime(micro_batch_s=0.1, update_s=update_s)
    found = fit(call_plan, update_time, budget, stages=stages)
    now = found.call_plan
    assert min(2, calls) <= now.calls <= calls and 1 <= now.updates_per_call <= size
    assert min(stages, micro_batches) <= now.micro_batches <= micro_batches
    assert found.fits == (update_time.seconds(now) <= budget)
    assert found.fits or (now.calls, now.updates_per_call, now.micro_batches) == (
        min(2, calls), 1, min(stages, micro_batches)
    )  # fmt: skip
    # The later kinds are touched only when the earlier ones are at their least.
    assert now.updates_per_call == size or now.calls == min(2, calls)
    assert now.micro_batches == micro_batches or now.updates_per_call == 1
    assert bool(found.shortened) == (now != call_plan)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"epochs": 1, "iterations": 1},
        {"epochs": 0},
        {"iterations": 0},
        {"epochs": 1, "accumulation": 0},
        {"epochs": 1, "logs_per_epoch": -1},
    ],
)
def test_impossible_lengths_are_refused(wrong):
    with pytest.raises(UserError, match="expected"):
        Lengths(micro_batch=1, **wrong)
