"""The trials of the backends, on steps that sleep."""

import time

from layermark.backends._timing import calls_within, seconds_of, trial


def test_the_quicker_step_wins_the_trial():
    slow, quick = trial([lambda: time.sleep(4e-3), lambda: time.sleep(1e-3)], seconds=5e-3, rounds=2)
    assert quick > slow > 0


def test_a_step_longer_than_the_time_is_called_once():
    assert 1 == calls_within(lambda: time.sleep(2e-3), 1e-4)


def test_all_the_calls_are_made():
    made = []
    assert seconds_of(lambda: made.append(1), 7) > 0
    assert 7 == len(made)
