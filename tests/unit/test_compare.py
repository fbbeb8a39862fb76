"""Comparisons: no difference below the noise, and none missed that lies well above it. All simulations are seeded."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermark import stats
from layermark.errors import UserError
from layermark.stats.compare import judge, student_quantile

from .samples import a_run, blocks_of

TRIALS = 2000


def noise(rng, shape, sigma, kind):
    if kind == "normal":
        return rng.normal(0, sigma, shape)
    if kind == "heavy":
        return rng.standard_t(3, shape) / math.sqrt(3) * sigma
    # One block in twenty is disturbed and up to several times as slow.
    return rng.normal(0, 0.7 * sigma, shape) - (rng.random(shape) < 0.05) * rng.exponential(0.2, shape)


def log_rates(*, change, starts=4, rounds=20, sigma=0.02, spread=0.003, kind="normal", seed=1):
    """(trials, starts of A then B, rounds): block noise, start-to-start spread, and drift that all have in common."""
    rng = np.random.default_rng(seed)
    shape = (TRIALS, 2 * starts, rounds)
    drift = np.cumsum(rng.normal(0, 0.03, (TRIALS, 1, rounds)), axis=2)
    logs = drift + rng.normal(0, spread, (*shape[:2], 1)) + noise(rng, shape, sigma, kind)
    logs[:, starts:] += math.log1p(change)
    return logs


def answers(logs, confidence=0.99):
    """Shares of trials that answer slower and faster."""
    shift, half, _ = judge(logs, logs.shape[1] // 2, confidence)
    return (shift < -half).mean(), (shift > half).mean()


# Two standard errors of a share of 1 % in so many trials.
SLACK = 2 * math.sqrt(0.01 * 0.99 / TRIALS)


@pytest.mark.parametrize("kind", ["normal", "heavy", "disturbed"])
@pytest.mark.parametrize("starts", [3, 4])
@pytest.mark.parametrize("sigma", [0.002, 0.02, 0.03])
@pytest.mark.parametrize("spread", [0.0, 0.003, 0.005])
def test_a_against_a_raises_no_more_than_one_false_alarm_in_100(kind, starts, sigma, spread):
    alarms = sum(answers(log_rates(change=0, starts=starts, rounds=16, sigma=sigma, spread=spread, kind=kind)))
    assert alarms <= 0.01 + SLACK


@pytest.mark.parametrize("kind", ["normal", "heavy", "disturbed"])
@pytest.mark.parametrize("change", [0.02, -0.02])
def test_two_percent_are_found_with_four_starts(kind, change):
    slower, faster = answers(log_rates(change=change, kind=kind))
    assert (faster if change > 0 else slower) >= 0.94
    assert (slower if change > 0 else faster) <= 0.001


def test_more_noise_needs_more_rounds():
    few, many = (answers(log_rates(change=0.02, rounds=rounds, sigma=0.03, spread=0.003))[1] for rounds in (12, 60))
    assert few < 0.7
    assert many >= 0.94


def stated(logs, starts):
    """What a comparison says that it could have found, as a share."""
    a, b = np.exp(logs[:starts]), np.exp(logs[starts:])
    return stats.compare_starts(a.tolist(), b.tolist()).detectable


@pytest.mark.parametrize(("starts", "rounds", "sigma"), [(3, 12, 0.02), (6, 6, 0.02), (6, 24, 0.02), (6, 6, 0.05)])
@pytest.mark.parametrize("kind", ["normal", "heavy", "disturbed"])
def test_the_difference_that_is_stated_is_found(starts, rounds, sigma, kind):
    facts = {"starts": starts, "rounds": rounds, "sigma": sigma, "spread": 0.004, "kind": kind}
    quiet = log_rates(change=0, **facts)
    change = float(np.median([stated(each, starts) for each in quiet[:100]]))
    slower, faster = answers(log_rates(change=change, seed=2, **facts))
    assert 0.92 <= faster <= 0.985
    assert slower <= 0.001


def grouped(*, starts=3, rounds=16, together=1, trials=600, spread=0.004, shared=0.03, sigma=0.01, seed=4):
    """Log rates and groups: what the blocks of a group have in common is three times what parts them."""
    rng = np.random.default_rng(seed)
    count = starts // together
    logs, groups = np.empty((trials, 2 * starts, rounds)), np.empty((trials, 2 * starts, rounds), dtype=int)
    for side in (slice(0, starts), slice(starts, None)):
        drawn = np.broadcast_to(np.repeat(np.arange(count), together)[:, None], (trials, starts, rounds))
        groups[:, side] = rng.permuted(drawn, axis=1)
    level = np.take_along_axis(rng.normal(0, shared, (trials, count, rounds)), groups, axis=1)
    logs = level + rng.normal(0, spread, (*groups.shape[:2], 1)) + noise(rng, groups.shape, sigma, "disturbed")
    return logs, groups


@pytest.mark.parametrize(("starts", "together"), [(3, 1), (6, 2), (6, 6)])
def test_equal_sides_in_groups_raise_no_more_than_one_false_alarm_in_100(starts, together):
    logs, groups = grouped(starts=starts, together=together)
    shift, half, _ = judge(logs, starts, 0.99, None, groups)
    assert (np.abs(shift) > half).mean() <= 0.01 + 2 * math.sqrt(0.01 * 0.99 / 600)


def test_what_neighbours_have_in_common_cancels():
    logs, groups = grouped(trials=200, spread=0.0)
    alone, near = judge(logs, 3, 0.99), judge(logs, 3, 0.99, None, groups)
    assert np.median(near[1]) < 0.7 * np.median(alone[1])
    assert near[0].std() < 0.7 * alone[0].std()


def test_all_starts_in_one_group_are_a_round():
    logs, groups = grouped(starts=4, together=4, trials=3)
    for with_groups, without in zip(judge(logs, 4, 0.99, None, groups), judge(logs, 4, 0.99), strict=True):
        np.testing.assert_allclose(with_groups, without)


@pytest.mark.parametrize(("sigma", "expected"), [(0.005, True), (0.08, False)])
def test_a_verdict_says_whether_two_percent_would_have_been_found(sigma, expected):
    verdict = stats.compare_starts(*sides(0.0, sigma=sigma))
    assert expected == verdict.keeps_the_promise == (verdict.detectable <= 0.02)
    assert verdict.detectable > verdict.noise_floor


def test_what_could_be_found_is_never_below_the_floor():
    assert stats.compare_starts(*sides(0.0), floor=0.3).detectable > 0.3


def test_three_starts_find_three_percent():
    assert answers(log_rates(change=0.03, starts=3, rounds=16))[1] >= 0.95


def test_the_interval_covers_the_true_change():
    logs = log_rates(change=0.02, spread=0.004)
    shift, half, _ = judge(logs, 4, 0.99)
    assert (np.abs(shift - math.log(1.02)) <= half).mean() >= 0.985


def test_looking_often_raises_no_false_alarms_at_a_high_confidence():
    logs = log_rates(change=0, spread=0.005, rounds=40)
    alarms = np.zeros(TRIALS, dtype=bool)
    for rounds in range(8, 41, 4):
        shift, half, _ = judge(logs[..., :rounds], 4, 0.9999)
        alarms |= np.abs(shift) > half
    assert alarms.mean() <= 0.003


def test_a_known_spread_widens_the_interval():
    logs = log_rates(change=0)[:1]
    assert judge(logs, 4, 0.99, 0.05)[1] > 2 * judge(logs, 4, 0.99, 0.01)[1]


@pytest.mark.parametrize(("spread", "expected"), [(0.0, 0.0091), (0.02, 0.0374)])
def test_the_spread_seen_corrects_the_one_assumed(spread, expected):
    *_, seen = judge(log_rates(change=0, sigma=0.001, spread=spread), 4, 0.99)
    # 8 degrees of freedom for the 0.012 assumed, 6 for the starts.
    assert expected == pytest.approx(math.sqrt(np.mean(seen**2)), rel=0.05)


def sides(change=0.0, **more):
    logs = log_rates(change=change, **more)[0]
    return np.exp(logs[:4]).tolist(), np.exp(logs[4:]).tolist()


def test_a_verdict_says_everything():
    verdict = stats.compare_starts(*sides(0.2))
    assert ("faster", (4, 4), 20, 0.99) == (verdict.answer, verdict.starts, verdict.rounds, verdict.confidence)
    assert verdict.low < 1.2 < verdict.high


def test_b_is_judged_relative_to_a():
    a, b = sides(0.2)
    assert "slower" == stats.compare_starts(b, a).answer
    assert 1 / stats.compare_starts(a, b).ratio == pytest.approx(stats.compare_starts(b, a).ratio)


def test_a_against_a_cannot_be_told():
    verdict = stats.compare_starts(*sides(0.0))
    assert "cannot tell" == verdict.answer
    assert verdict.low <= 1 <= verdict.high
    assert abs(verdict.ratio - 1) <= verdict.noise_floor


def test_nothing_below_the_floor_is_reported():
    assert "cannot tell" == stats.compare_starts(*sides(0.2), floor=0.3).answer
    assert 0.3 == pytest.approx(stats.compare_starts(*sides(0.2), floor=0.3).noise_floor)


def test_rounds_that_not_all_have_reached_are_left_out():
    a, b = sides(0.2)
    b[0] = b[0][:12]
    assert 12 == stats.compare_starts(a, b).rounds


@pytest.mark.parametrize(("starts", "rounds"), [(2, 10), (3, 2), (0, 0)])
def test_too_little_is_refused(starts, rounds):
    with pytest.raises(UserError, match="3 starts a side and 3 rounds"):
        stats.compare_starts([[1.0] * rounds] * starts, [[1.0] * rounds] * 3)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(UserError, match="rates above zero"):
        stats.compare_starts([[rate, 1, 1]] * 3, [[1, 1, 1]] * 3)


@given(st.floats(1e-3, 1e6), st.floats(0.5, 2))
@settings(max_examples=25, deadline=None)
def test_the_unit_of_the_rates_does_not_matter(unit, ratio):
    a, b = ([[factor * unit * r for r in (1, 1.01, 0.99, 1.0)] for _ in range(3)] for factor in (1, ratio))
    assert ratio == pytest.approx(stats.compare_starts(a, b).ratio)


@pytest.mark.parametrize(
    ("probability", "df", "expected"), [(0.995, 4, 4.604), (0.995, 12, 3.055), (0.975, 30, 2.042), (0.5, 9, 0.0)]
)
def test_student_quantiles(probability, df, expected):
    assert expected == pytest.approx(student_quantile(probability, df), abs=0.02)


def noisy_run(scale, noise, *, seed, drift=0.0, blocks=16, **changes):
    rng = np.random.default_rng(seed)
    trend = np.linspace(0, drift, blocks)
    return a_run(blocks=blocks_of(*(10 / scale * np.exp(trend + rng.normal(0, noise, blocks)))), **changes)


def test_the_noise_floor_grows_with_the_noise():
    calm, wild = noisy_run(1, 0.002, seed=1), noisy_run(1, 0.05, seed=2)
    assert stats.noise_floor(calm) < 0.01 < stats.noise_floor(wild)


def test_drift_that_all_share_is_not_noise():
    assert stats.noise_floor(noisy_run(1, 0.002, seed=1, drift=0.3)) < 0.03


def test_too_few_blocks_have_no_floor():
    assert stats.noise_floor(a_run(10, 10, 10)) is None
    assert stats.noise_floor(a_run(blocks=())) is None


def test_the_floor_bounds_most_differences_of_equal_runs():
    beyond = 0
    for seed in range(0, 200, 2):
        pair = [noisy_run(1, 0.02, seed=seed), noisy_run(1, 0.02, seed=seed + 1)]
        one, other = (stats.throughput(run.blocks, 4).value for run in pair)
        beyond += abs(one / other - 1) > max(map(stats.noise_floor, pair))
    assert beyond <= 5


def results(*facts):
    """Documents of runs that take so many milliseconds and have this noise floor."""
    return [{**stats.document(a_run(*[ms] * 6), session="s"), "noise_floor": floor} for ms, floor in facts]


@pytest.mark.parametrize(("scale", "expected"), [(1.0, [0, 1]), (1.02, [0, 1]), (1.04, [1])])
def test_a_winner_is_beyond_floor_plus_spread(scale, expected):
    assert expected == stats.leaders(results((10, 0.02), (10 / scale, 0.02), (20, 0.02)), 0.01)


def test_a_restless_runtime_hides_only_what_lies_within_its_own_noise():
    assert [1] == stats.leaders(results((10, 0.01), (9, 0.01), (20, 0.6)), 0.01)
    assert [1, 2] == stats.leaders(results((10, 0.01), (9, 0.01), (13, 0.6)), 0.01)
    assert [0, 1, 2] == stats.leaders(results((10, 0.01), (9, 0.6), (13, 0.01)), 0.01)


def test_without_a_floor_all_may_be_the_fastest():
    assert [0, 1] == stats.leaders(results((10, None), (5, 0.01)), 0.01)


def test_a_simulated_clock_never_meets_a_measured_one():
    runs = [a_run(*[10.0] * 6), a_run(*[5.0] * 6, clock="null")]
    documents = [stats.document(run, session="s") for run in runs]
    assert [0, 1] == stats.leaders(documents)
    with pytest.raises(UserError, match="clock"):
        stats.compare_documents(*documents)


@pytest.mark.parametrize(("scale", "expected"), [(1.01, "cannot tell"), (1.2, "faster"), (0.8, "slower")])
def test_stored_results_are_compared_with_all_doubts(scale, expected):
    verdict = stats.compare_documents(*results((10, 0.02), (10 / scale, 0.02)), 0.01)
    assert (expected, (1, 1), 6) == (verdict.answer, verdict.starts, verdict.rounds)
    assert 0.03 == pytest.approx(verdict.noise_floor)


def test_stored_results_of_one_block_are_refused():
    document = stats.document(a_run(10), session="s")
    with pytest.raises(UserError, match="one block"):
        stats.compare_documents(document, document)
