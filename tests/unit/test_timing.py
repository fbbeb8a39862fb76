"""The trials of the backends, on steps that sleep."""

import time
from functools import partial
from types import SimpleNamespace

from layermark import timing
from layermark.timing import batch_trial, calls_within, seconds_of, trial


def sleeping(seconds, made=None):
    """A timer of calls that sleep."""

    def step():
        time.sleep(seconds)
        if made is not None:
            made.append(seconds)

    return partial(seconds_of, step)


def test_the_quicker_step_wins_the_trial():
    slow, quick = trial([sleeping(4e-3), sleeping(1e-3)], seconds=5e-3, rounds=2)
    assert quick > slow > 0


def test_one_lucky_round_does_not_win_the_trial():
    lucky = iter([1.0] * 6 + [0.5] + [1.0] * 9)
    moody, steady = trial([lambda calls: calls * next(lucky), lambda calls: calls * 0.9], seconds=1e-3, rounds=9)
    assert steady > moody


def test_disturbed_rounds_do_not_lose_the_trial():
    disturbed = iter([0.9] * 2 + [2.0, 0.9, 2.0, 0.9, 2.0, 0.9, 2.0, 0.9, 2.0])
    quick, slow = trial([lambda calls: calls * next(disturbed), lambda calls: calls * 1.0], seconds=1e-3, rounds=9)
    assert quick > slow


def test_a_step_longer_than_the_time_is_called_once():
    assert 1 == calls_within(sleeping(2e-3), 1e-4)


def test_long_steps_have_fewer_rounds(monkeypatch):
    monkeypatch.setattr(timing, "_ENOUGH_S", 0.02)
    made = []
    trial([sleeping(0.01, made)], seconds=1e-3, rounds=8)
    assert 3 == len(made)


def test_all_the_calls_are_made():
    made = []
    assert seconds_of(lambda: made.append(1), 7) > 0
    assert 7 == len(made)


def test_ways_are_tried_in_as_many_batches_as_there_is_time_for(monkeypatch):
    slow, quick, now = [], [], [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def running(each, made):
        def run(batches):
            made.append(batches)
            now[0] += each * batches

        return run

    rates = batch_trial([running(5e-3, slow), running(1e-4, quick)], 1000, seconds=2e-3)
    assert rates[0] < 250 < rates[1]
    assert {2} == set(slow)
    assert 2 < max(quick) < 1000


def test_a_way_is_never_tried_in_more_batches_than_it_will_run():
    asked = []
    batch_trial([asked.append], 1)
    assert {1} == set(asked)
    batch_trial([asked.append], 3)
    assert {1, 2, 3} == set(asked)
