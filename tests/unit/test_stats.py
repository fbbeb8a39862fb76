"""Samples to metrics: rates, intervals, percentiles, ceilings, doubts."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermark import stats
from layermark.outcome import Block, Diagnostic, Failed, Skipped, Verification
from layermark.spec import Plan

from .samples import CEILING, a_block, a_run, a_spec, blocks_of

times_ms = st.lists(st.floats(1, 100), min_size=2, max_size=20)


def noisy_blocks(count, noise, seed=0, samples=10):
    rng = np.random.default_rng(seed)
    return tuple(a_block(*[10 * factor] * samples) for factor in np.exp(rng.normal(0, noise, count)))


def test_throughput_is_items_over_the_median_block_time():
    found = stats.throughput(blocks_of(10, 20, 40), items_per_batch=4)
    assert 4 / 0.020 == pytest.approx(found.value)


def test_throughput_weighs_a_block_by_its_time_not_its_samples():
    blocks = (a_block(10, 30, batches=2), a_block(20, 20, batches=2))
    assert 4 / 0.010 == pytest.approx(stats.throughput(blocks, 4).value)


def test_sustained_is_all_items_over_all_time():
    found = stats.sustained(blocks_of(10, 20, 60, samples=1), items_per_batch=4)
    assert 12 / 0.090 == pytest.approx(found.value)


def test_one_block_has_no_interval():
    assert (None, None) == stats.throughput(blocks_of(10), 4)[1:]
    assert (None, None) == stats.sustained(blocks_of(10), 4)[1:]


def test_no_blocks_have_no_rate():
    assert stats.throughput((), 4) is None
    assert stats.sustained((Block(calls=1, batches=1, samples_ns=()),), 4) is None


@given(times_ms)
@settings(max_examples=30, deadline=None)
def test_intervals_hold_their_value_and_stay_within_the_blocks(times):
    blocks = blocks_of(*times, samples=2)
    rates = stats.rates(blocks, 4)
    for found in (stats.throughput(blocks, 4), stats.sustained(blocks, 4)):
        assert found.low <= found.value <= found.high
        assert rates.min() <= found.low * (1 + 1e-9)
        assert found.high <= rates.max() * (1 + 1e-9)


@given(times_ms, st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_throughput_scales_with_the_items(times, factor):
    blocks = blocks_of(*times, samples=2)
    one, many = stats.throughput(blocks, 1), stats.throughput(blocks, factor)
    assert [factor * each for each in one] == pytest.approx(list(many))


def test_the_interval_is_the_same_every_time():
    assert stats.throughput(noisy_blocks(8, 0.05), 4) == stats.throughput(noisy_blocks(8, 0.05), 4)


def test_the_interval_covers_the_truth_about_95_times_in_100():
    hits = 0
    for seed in range(200):
        found = stats.throughput(noisy_blocks(10, 0.03, seed, samples=1), 1)
        hits += found.low <= 100 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_settled_when_the_interval_is_within_the_goal():
    calm, wild = noisy_blocks(20, 0.002), noisy_blocks(20, 0.2)
    assert stats.settled(calm, 4, 0.01)
    assert not stats.settled(wild, 4, 0.01)
    assert stats.settled(wild, 4, 0.5)


def test_two_equal_blocks_are_not_enough_to_settle():
    assert not stats.settled(blocks_of(10, 10), 4, 0.01)
    assert stats.settled(blocks_of(10, 10, 10), 4, 0.01)


@pytest.mark.parametrize(
    ("count", "given"), [(9, []), (10, ["p50"]), (49, ["p50"]), (50, ["p50", "p90"]), (300, ["p50", "p90", "p99"])]
)
def test_percentiles_need_samples(count, given):
    found = stats.latency_ms([a_block(1, batches=2, latencies_ms=[5.0] * count)])
    assert given == [name for name, value in found.items() if value is not None]


def test_percentiles_are_of_the_latencies():
    found = stats.latency_ms([a_block(1, batches=9, latencies_ms=range(1, 302))])
    assert {"p50": 151, "p90": 271, "p99": 298} == found


def test_a_sample_of_one_batch_is_a_latency():
    assert 7 == stats.latency_ms([a_block(*[7] * 10)])["p50"]
    assert stats.latency_ms([a_block(*[7] * 10, batches=2)])["p50"] is None


def test_efficiency_is_the_attained_share_of_the_roof():
    assert 0.1 == pytest.approx(stats.efficiency(100, CEILING))


def test_efficiency_at_low_intensity_is_of_the_bandwidth():
    assert 0.2 == pytest.approx(stats.efficiency(100, dataclasses.replace(CEILING, bytes=4 * 10**6)))


def test_efficiency_is_never_clamped():
    assert 3 == pytest.approx(stats.efficiency(3000, CEILING))


def test_efficiency_without_arithmetic_is_of_the_bandwidth():
    assert 0.05 == pytest.approx(stats.efficiency(100, dataclasses.replace(CEILING, flops=0)))


def test_no_readings_no_efficiency():
    empty = dataclasses.replace(CEILING, flops_per_s=())
    assert stats.efficiency(100, empty) is None
    assert not stats.impossible(stats.Interval(1e9), empty)


@pytest.mark.parametrize(("low", "expected"), [(1050, False), (1099, False), (1101, True)])
def test_impossible_only_above_the_best_reading(low, expected):
    assert expected == stats.impossible(stats.Interval(2000, low, 3000), CEILING)


def test_outliers_are_classified_by_tukey_fences():
    # Quartiles 10 and 11: inner fences at 8.5 and 12.5, outer at 7 and 14.
    blocks = (a_block(*[10, 11] * 10), a_block(13.0, 20.0, 10, 11))
    found = stats.outliers(blocks)
    assert (24, 1, 1, (1,)) == (found.samples, found.mild, found.severe, found.blocks)


def test_outliers_are_explained_by_what_their_block_saw():
    blocks = (*blocks_of(*[10] * 5), a_block(*[10] * 9, 50, involuntary_switches=120, steal_s=0.05))
    (reason,) = stats.causes(blocks, [5])
    assert "block 6 had 120 involuntary context switches (usual 1), 0.05 s stolen by the hypervisor (usual 0)" == reason


def test_a_block_like_all_others_explains_nothing():
    assert [] == stats.causes(blocks_of(*[10] * 5), [2])


def warnings_of(run, **more):
    return stats.document(run, session="s", **more)["warnings"]


def test_a_calm_long_run_has_no_warnings():
    blocks = tuple(a_block(*[10] * 10, latencies_ms=[10] * 50) for _ in range(8))
    assert [] == warnings_of(a_run(blocks=blocks))


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (noisy_blocks(6, 0.2), "the time box ended with the interval at"),
        (blocks_of(*[0.5] * 8), "a sample lasts 0.5 ms, shorter than 1 ms"),
        ((*blocks_of(*[10] * 5), a_block(*[10] * 9, 50)), "1 of 60 samples are outliers"),
        ((a_block(*[10] * 10, steal_s=0.1),) * 4, "the hypervisor stole 0.4 s"),
        (blocks_of(*[10] * 8), "p99 is not given: 80 latencies, 300 needed"),
        (blocks_of(10), "one block only"),
    ],
)
def test_doubts_become_warnings(blocks, expected):
    assert any(expected in warning for warning in warnings_of(a_run(blocks=blocks)))


def test_a_wider_goal_leaves_the_time_box_unmentioned():
    assert not any("time box" in each for each in warnings_of(a_run(blocks=noisy_blocks(6, 0.05), precision_goal=0.5)))
    assert not any("time box" in each for each in warnings_of(a_run(blocks=noisy_blocks(6, 0.05), precision_goal=None)))


def test_outliers_are_kept_in_the_numbers():
    with_outlier = (*blocks_of(*[10] * 5), a_block(*[10] * 9, 50))
    document = stats.document(a_run(blocks=with_outlier), session="s")
    assert 60 == len(document["samples"])
    assert 60 * 4 / 0.64 == pytest.approx(document["sustained"]["value"])


def test_the_warnings_of_the_run_come_first():
    document = stats.document(a_run(warnings=(Diagnostic("code", "first"),)), session="s")
    assert ("code", "first") == (document["warning_codes"][0], document["warnings"][0])
    assert len(document["warning_codes"]) == len(document["warnings"])


OUTCOMES = [a_run(), a_run(blocks=()), Skipped(spec=a_spec(), reason="r"), Failed(spec=a_spec(), reason="r", log="l")]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_status_has_the_same_keys(outcome):
    def keys(document):
        nested = {name: set(value) for name, value in document.items() if name in ("throughput", "verified", "ceiling")}
        return list(document), nested, set(document["latency_ms"])

    assert keys(stats.document(OUTCOMES[0], session="s")) == keys(stats.document(outcome, session="s"))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_documents_are_strict_json(outcome):
    document = stats.document(outcome, session="s", command="layermark run lstm")
    assert document == json.loads(json.dumps(document, allow_nan=False))


def test_what_json_cannot_say_is_null():
    wrong = Verification(ok=False, max_error=float("nan"), tolerance=1e-4, against="numpy")
    document = stats.document(a_run(verified=wrong), session="s")
    assert document["verified"]["max_error"] is None
    json.dumps(document, allow_nan=False)


def test_the_document_of_a_run():
    run = a_run(*[10.0] * 4)
    document = stats.document(run, session="s", rank=1, command="c")
    rate = {"value": 400, "low": 400, "high": 400, "unit": "sequences/s"}
    assert (2, "s", run.spec.group, 1, "ok", "", None) == tuple(list(document.values())[:7])
    assert rate == pytest.approx(document["throughput"])
    assert {"block": 0, "batches": 1, "items": 4, "seconds": 0.01} == document["samples"][0]
    assert 0.1 == pytest.approx(document["efficiency"])
    assert (False, 0.0, "c", 0.5) == tuple(
        document[each] for each in ("impossible", "noise_floor", "command", "compile_s")
    )
    assert run.spec.to_json() == document["spec"]


def test_settings_are_what_ran_over_what_was_asked():
    found = stats.document(a_run(), session="s")["settings"]
    assert ("eager", "library", "NTC", "perf_counter") == tuple(
        found[name] for name in ("execution", "formulation", "layout", "clock")
    )


def test_an_item_of_several_words_has_a_plural():
    document = stats.document(a_run(item="picture through one convolution"), session="s")
    assert "pictures through one convolution/s" == document["throughput"]["unit"]


WRONG = Verification(ok=False, max_error=0.5, tolerance=1e-4, against="numpy float64", worst="y")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"faults": (Diagnostic("device", "ran on another device"), Diagnostic("x", "two"))},
            "ran on another device; two",
        ),
        ({"verified": WRONG}, "the results are wrong at y: error 0.5, tolerance 0.0001 against numpy float64"),
        ({"blocks": blocks_of(*[0.5] * 8)}, "impossible: faster than the ceiling"),
        ({"blocks": ()}, "no block was timed"),
    ],
)
def test_a_run_that_cannot_be_believed_has_failed(changes, reason):
    document = stats.document(a_run(**changes), session="s")
    assert "failed" == document["status"]
    assert reason in document["reason"] and document["reason_code"]


def test_each_rank_has_its_rate_and_its_lag():
    block = dataclasses.replace(a_block(20), ranks_ns=((10_000_000, 20_000_000),))
    run = a_run(spec=a_spec(plan=Plan(replicas=2)), items_per_batch=8, blocks=(block,))
    first, second = stats.document(run, session="s")["ranks"]
    assert {"rank": 0, "rate": 400.0, "lag": 0.0} == pytest.approx(first)
    assert {"rank": 1, "rate": 200.0, "lag": 1.0} == pytest.approx(second)
    assert [] == stats.document(a_run(), session="s")["ranks"]


def test_a_failed_run_keeps_its_numbers():
    document = stats.document(a_run(verified=WRONG), session="s")
    assert document["throughput"]["value"] is not None
    assert 120 == len(document["samples"])


def test_skipped_and_failed_keep_their_reason_and_log():
    skipped, failed = (stats.document(each, session="s") for each in OUTCOMES[2:])
    assert ("skipped", "r", None) == (skipped["status"], skipped["reason"], skipped["log"])
    assert ("failed", "r", "l") == (failed["status"], failed["reason"], failed["log"])


def test_what_would_work_instead_is_in_the_document():
    instead = {"execution": "function"}
    outcomes = [Skipped(spec=a_spec(), reason="r", instead=instead), *OUTCOMES]
    assert [instead, {}, {}, {}, {}] == [stats.document(each, session="s")["instead"] for each in outcomes]


def test_an_unverified_run_says_so():
    assert "the results were not verified" in warnings_of(a_run(verified=None))


def test_the_seed_documents_average_leaves_the_first_block_out():
    run = a_run(100.0, 10.0, 20.0)
    document = stats.document(run, session="s")
    assert 300.0 == pytest.approx(document["mean_rate"]["value"])
    assert document["throughput"]["unit"] == document["mean_rate"]["unit"]
    assert stats.document(a_run(10.0), session="s")["mean_rate"]["value"] is None
