"""When a history changed: planted steps are found, noise and outliers are not."""

import numpy as np
import pytest

from layermark.stats.changes import MIN_POINTS, MIN_SEGMENT, changes, pelt


def distances(values):
    return np.abs(values - np.median(values)).sum()


def cheapest(values, penalty, end=None):
    """Every split there is, for few values."""
    end = len(values) if end is None else end
    options = [(distances(values[:end]), [])]
    for start in range(MIN_SEGMENT, end - MIN_SEGMENT + 1):
        cost, starts = cheapest(values, penalty, start)
        options.append((cost + penalty + distances(values[start:end]), [*starts, start]))
    return min(options, key=lambda option: option[0])


@pytest.mark.parametrize("seed", range(30))
def test_the_split_is_the_cheapest_there_is(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=14) + rng.choice([0, 3], 14).cumsum() * (seed % 3)
    assert cheapest(values, 2.0)[1] == pelt(values, 2.0)


def history(rng, levels, noise=0.01):
    return list(np.exp(np.log(levels) + noise * rng.normal(size=len(levels))))


def test_planted_steps_are_found_where_they_are():
    rng = np.random.default_rng(1)
    for _ in range(20):
        found = changes(history(rng, [100.0] * 12 + [90.0] * 12 + [110.0] * 12))
        assert 2 == len(found)
        assert all(abs(change.index - place) <= 1 for change, place in zip(found, (12, 24), strict=True))
        assert pytest.approx(0.9, abs=0.015) == found[0].ratio


@pytest.mark.parametrize("draw", ["normal", "heavy-tailed"])
def test_noise_is_no_change(draw):
    rng = np.random.default_rng(2)
    alarms = 0
    for length in [8, 12, 20, 50] * 50:
        noise = rng.normal(size=length) if draw == "normal" else rng.standard_t(3, size=length)
        alarms += bool(changes(list(np.exp(0.02 * noise))))
    assert alarms <= 200 * 0.04


def test_single_outliers_are_no_change():
    levels = [100.0] * 24
    for place in (3, 9, 14, 20):
        levels[place] = 50.0
    assert [] == changes(history(np.random.default_rng(3), levels))


def test_what_starts_alone_explain_is_no_change():
    assert [] == changes([100.0, 100.01, 99.99] * 4 + [100.9, 100.91, 100.89] * 4)


def test_too_short_a_history_tells_nothing():
    assert [] == changes([100.0] * (MIN_POINTS // 2) + [10.0] * (MIN_POINTS // 2 - 1))
