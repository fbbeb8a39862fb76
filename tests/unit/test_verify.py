"""Which calls a proof makes, how far is far, and that nothing but numbers passes."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from layermark.graph import Builder
from layermark.ops import Dense, Norm
from layermark.spec import Spec
from layermark.worker.distance import Comparison, error, l2_error, rms_error
from layermark.worker.training_proof import LARGEST, _Proof, scales
from layermark.worker.verify import calls, judged

SPEC = Spec(workload="dense", backend="null")
DISTANCES = [error, rms_error, lambda actual, expected: l2_error(actual, expected, 1.0)]


@pytest.mark.parametrize("ring", [2, 3, 4, 7])
@pytest.mark.parametrize("batches", [1, 2, 4, 100])
@pytest.mark.parametrize("least", [1, 5])
def test_first_and_last_input_are_seen_alone_and_as_the_last_of_several(ring, batches, least):
    spec = SPEC.replace(ring=ring, batches_per_step=batches)
    made, position, seen = calls(spec, least, live=False), 0, []
    for count, index in made:
        position += count
        if index is not None:
            assert (position - 1) % ring == index
            seen.append((count > 1, index))
    assert {(False, 0), (True, 0), (False, ring - 1), (True, ring - 1)} == set(seen)
    assert all(count >= max(2, least, min(batches, 16)) for count, index in made if count > 1 and index is not None)
    looked = [index for _, index in made if index is not None]
    assert all(one != other for one, other in itertools.pairwise(looked)), "a call that does nothing would pass"


def test_batches_that_are_loaded_are_walked_once():
    assert [(1, 0), (3, 3)] == calls(SPEC.replace(ring=4), 1, live=True)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_is_infinitely_far_on_either_side(distance, broken, place):
    whole, spoilt = np.arange(3.0), np.arange(3.0)
    spoilt[place] = broken
    assert math.inf == distance(spoilt, whole) == distance(whole, spoilt) == distance(spoilt, spoilt)
    assert 0 == distance(whole, whole)


@pytest.mark.parametrize("distance", DISTANCES)
def test_what_is_missing_is_infinitely_far(distance):
    assert math.inf == distance(np.empty(0), np.arange(3.0))


@pytest.mark.parametrize("error_is", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_comparison_without_a_number_fails_wherever_it_stands(error_is, place):
    found = [Comparison("fine", 1e-6, 1e-4), Comparison("wrong", 1e-2, 1e-4)]
    found.insert(place, Comparison("broken", error_is, 1e-4))
    verdict = judged(SPEC, found)
    assert not verdict.ok
    assert "broken" == verdict.worst
    assert "not finite" in verdict.reason
    assert math.isfinite(verdict.max_error)


def test_an_allowance_that_is_no_number_allows_nothing():
    for allowed in (math.nan, math.inf, 0.0):
        assert not judged(SPEC, [Comparison("move", 1e-6, allowed), Comparison("fine", 0.0, 1e-4)]).ok


@pytest.mark.parametrize(("own", "luck"), [(math.nan, 0.0), (0.0, math.nan), (math.nan, math.nan)])
def test_a_reference_that_does_not_know_its_own_sensitivity_allows_nothing(own, luck):
    build = Builder()
    graph = build.graph(build.add("dense", Dense(4), build.input("x", (2, 4))))
    proof = _Proof(None, SPEC, SimpleNamespace(graph=graph), {}, 1e-4)
    assert 0 < proof._share("dense/weight", 0.0, 0.0) < LARGEST
    assert LARGEST == proof._share("dense/weight", 0.0, 9.0)
    assert math.isnan(proof._share("dense/weight", own, luck))


def test_a_move_that_cancels_is_judged_by_its_layer():
    build = Builder()
    x = build.add("dense", Dense(4), build.input("x", (2, 4)))
    graph = build.graph(build.add("norm", Norm("batch", training=True), x))
    weights = {name: np.full(facts.shape, 4.0) for name, facts in graph.parameters.items()}
    moves = {name: np.full(facts.shape, 0.5) for name, facts in graph.parameters.items()}
    own = scales(graph, moves, weights)
    assert {name: pytest.approx(0.5 * math.sqrt(each.size)) for name, each in moves.items()} == own
    still = ("norm/shift", "norm/mean", "norm/variance")
    found = scales(graph, moves | {name: 1e-15 * moves[name] for name in still}, weights)
    assert own["norm/shift"] == found["norm/shift"], "the scale of the same norm moves by as much"
    assert own["dense/weight"] == found["dense/weight"]
    # A tenth of the momentum (a tenth, too) times the deviation, and times the variance.
    assert (pytest.approx(0.02 * 2), pytest.approx(0.04 * 2)) == (found["norm/mean"], found["norm/variance"])
    assert {2.0 * math.sqrt(each.size) for each in moves.values()} == set(scales(graph, moves, weights, 2.0).values())
