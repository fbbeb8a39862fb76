"""Programs that cheat or err are reported as what they are, through the command line and real workers."""

import re

import pytest

from conftest import QUICKLY

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    from conftest import CommandLine

    run = CommandLine(tmp_path_factory.mktemp("planted"))
    cheats = "torch,skips,wrong_output,returns_early,another_type"
    finished = run("run", "dense", "--backend", cheats, "--json", *QUICKLY, timeout=300)
    assert 1 == finished.status, finished.stderr
    return {doc["spec"]["backend"]: doc for doc in finished.documents}


def test_the_honest_one_is_ok(documents):
    assert "ok" == documents["torch"]["status"], documents["torch"]["reason"]
    assert documents["torch"]["efficiency"] > 0


def test_skipped_work_is_impossible(documents):
    assert documents["skips"]["impossible"]
    assert "impossible" in documents["skips"]["reason"]
    assert documents["skips"]["verified"]["ok"]


def test_wrong_outputs_fail(documents):
    assert "failed" == documents["wrong_output"]["status"]
    assert not documents["wrong_output"]["verified"]["ok"]
    assert "wrong result" in documents["wrong_output"]["reason"]


def test_early_return_is_named(documents):
    assert "failed" == documents["returns_early"]["status"]
    assert "returns before the work is done" in documents["returns_early"]["reason"]


def test_another_type_is_named(documents):
    assert "failed" == documents["another_type"]["status"]
    assert "another type" in documents["another_type"]["reason"]


def test_a_second_thread_is_named(layermark):
    finished = layermark("run", "dense", "--backend", "torch,two_threads", "--threads", "1", "--json", *QUICKLY)
    honest, greedy = finished.documents
    assert "ok" == honest["status"], honest["reason"]
    assert "failed" == greedy["status"]
    assert re.search(r"keeps \d\.\d threads busy on a budget of 1", greedy["reason"])


def test_wrong_gradients_fail(layermark):
    finished = layermark(
        "run", "dense", "--size", "64", "--mode", "train", "--backend", "wrong_gradient", "--json", *QUICKLY
    )
    (found,) = finished.documents
    assert 1 == finished.status
    assert "failed" == found["status"]
    assert "gradient of dense/bias" in found["reason"]


HONEST = [
    ("dense", "--batch-size", "1"),
    ("grouped_conv",),
    ("dense", "--mode", "train", "--batch-size", "4096"),
    ("dense", "--size", "4", "--batch-size", "1"),
]


@pytest.mark.parametrize("request_", HONEST, ids=" ".join)
def test_honest_small_and_memory_bound_layers_are_possible(layermark, request_):
    (found,) = layermark("run", *request_, "--backend", "torch", "--json", *QUICKLY).documents
    assert "ok" == found["status"], found["reason"]
    assert not found["impossible"]
    assert 0 < found["efficiency"]
