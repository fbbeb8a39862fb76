"""Averages of checkpoints."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermark.errors import UserError
from layermark.training import averaging
from layermark.training.averaging import Point

EPOCHS = [Point(update=100 * n, epoch=float(n)) for n in range(7)]


def weights(*values):
    return [{"w": np.array([value], "float32")} for value in values]


def test_which_take_part_in_a_mean():
    # Neither number 0 nor the last (6); the newest kept one is at epoch 5.
    assert [3, 4, 5] == [point.epoch for point in averaging.mean_points(EPOCHS, 2)]
    assert [1, 2, 3, 4, 5] == [point.epoch for point in averaging.mean_points(EPOCHS, 50)]
    assert [5] == [point.epoch for point in averaging.mean_points(EPOCHS, 0)]
    assert [4, 5, 6] == [point.epoch for point in averaging.mean_points(EPOCHS, 2, discard_last=0)]


def test_epochs_count_to_one_decimal():
    points = [Point(1, 1.04), Point(2, 1.96), Point(3, 3.04), Point(4, 4.0)]
    # 3.0 - 2 = 1.0, and 1.04 is 1.0 to one decimal.
    assert [1, 2, 3] == [point.update for point in averaging.mean_points(points, 2)]
    assert [2, 3] == [point.update for point in averaging.mean_points([Point(1, 0.94), *points[1:]], 2)]


def test_which_take_part_in_an_exponential_average():
    assert [1, 2, 3, 4, 5, 6] == [point.epoch for point in averaging.exponential_points(reversed(EPOCHS))]
    assert [1, 2, 3, 4] == [point.epoch for point in averaging.exponential_points(EPOCHS, discard_last=2)]


@pytest.mark.parametrize("points", [[], EPOCHS[:1], EPOCHS[:2]])
def test_nothing_to_average(points):
    with pytest.raises(UserError, match="no checkpoints to average"):
        averaging.mean_points(points, 5)


def test_the_mean():
    assert 3.0 == averaging.mean(weights(1, 2, 6))["w"][0] and "float32" == averaging.mean(weights(1))["w"].dtype


def test_the_exponential_average_starts_from_the_first():
    found = averaging.exponential(weights(1.0, 2.0, 4.0), 0.75)["w"][0]
    # 0.75 x 1 + 0.25 x 2 = 1.25; 0.75 x 1.25 + 0.25 x 4 = 1.9375.
    assert 1.9375 == found and 7.0 == averaging.exponential(weights(7.0), 0.97)["w"][0]


@given(values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), decay=st.floats(0, 0.99))
def test_averages_lie_between_the_checkpoints(values, decay):
    for found in (averaging.mean(weights(*values)), averaging.exponential(weights(*values), decay)):
        assert min(values) - 1e-4 <= found["w"][0] <= max(values) + 1e-4


@given(value=st.floats(-100, 100, width=32), count=st.integers(1, 10), decay=st.floats(0, 0.99))
def test_equal_checkpoints_are_their_own_average(value, count, decay):
    same = weights(*[value] * count)
    assert pytest.approx(value, abs=1e-5) == averaging.mean(same)["w"][0]
    assert pytest.approx(value, abs=1e-5) == averaging.exponential(same, decay)["w"][0]


def test_different_models_cannot_be_averaged():
    odd = [{"w": np.zeros(1)}, {"v": np.zeros(1)}]
    for average in (averaging.mean, lambda each: averaging.exponential(each, 0.9)):
        with pytest.raises(UserError, match="checkpoints of different models"):
            average(odd)


def test_a_decay_of_one_is_refused():
    with pytest.raises(UserError, match="average decay 1: expected"):
        averaging.exponential(weights(1), 1.0)
