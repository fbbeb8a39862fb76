"""Programs that cheat or err are reported as what they are, through the command line and real workers."""

import itertools
import re

import pytest

from conftest import QUICKLY
from contract.covering import FULL

pytestmark = pytest.mark.alone


def test_every_cheat_is_named(layermark):
    cheats = "torch,skips,wrong_output,returns_early,another_type"
    finished = layermark("run", "dense", "--backend", cheats, "--json", *QUICKLY)
    assert 1 == finished.status, finished.stderr
    found = {each["spec"]["backend"]: each for each in finished.documents}
    honest = found.pop("torch")
    assert "ok" == honest["status"], honest["reason"]
    assert honest["efficiency"] > 0
    assert {"failed"} == {each["status"] for each in found.values()}
    assert all(words in found[name]["reason"] for name, words in NAMED.items()), finished.stdout
    assert ["skips"] == [name for name, each in found.items() if each["impossible"]]
    assert found["skips"]["verified"]["ok"] and not found["wrong_output"]["verified"]["ok"]


NAMED = {
    "skips": "impossible",
    "wrong_output": "wrong result",
    "returns_early": "returns before the work is done",
    "another_type": "another type",
}


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


LOOPS = {
    "loop_skips": ("dense", "--size", "64"),
    "loop_forgets": ("dense", "--size", "64"),
    "loop_stale": ("resnet8-cifar", "--batch-size", "4"),
}
FOUR = ("--batches-per-step", "4")
TIMED = pytest.mark.parametrize("batches", [FOUR, ()], ids=["four", "default"])
# The gate has each loop once, and calls of several batches and of one.
TRAINED = list(itertools.product(LOOPS, (FOUR, ()))) if FULL else list(zip(LOOPS, (FOUR, (), FOUR), strict=True))


@pytest.mark.parametrize(("name", "batches"), TRAINED, ids=[f"{name}-{len(batches)}" for name, batches in TRAINED])
def test_a_training_loop_that_is_right_for_one_update_only_is_caught(layermark, name, batches):
    workload, *size = LOOPS[name]
    finished = layermark(
        "run", workload, *size, "--mode", "train", "--backend", f"torch,{name}", *batches, "--json", *QUICKLY
    )
    honest, wrong = finished.documents
    assert "ok" == honest["status"], honest["reason"]
    assert "failed" == wrong["status"]
    assert re.search(r"(loss|/\w+) after \d updates in one call", wrong["verified"]["worst"]), wrong["reason"]


@TIMED
def test_an_inference_loop_that_skips_is_caught(layermark, batches):
    finished = layermark("run", "dense", "--size", "64", "--backend", "loop_skips", *batches, "--json", *QUICKLY)
    (found,) = finished.documents
    assert "failed" == found["status"]
    assert found["verified"]["worst"].startswith("dense of input"), found["reason"]


HONEST = """
measure:
  - {workloads: [dense], batch_size: 1}
  - {workloads: [grouped_conv]}
  - {workloads: [dense], mode: train, batch_size: 4096}
  - {workloads: [dense], size: 4, batch_size: 1}
"""


def test_honest_small_and_memory_bound_layers_are_possible(layermark, tmp_path):
    (tmp_path / "honest.yml").write_text(HONEST)
    finished = layermark("run", "--suite", "honest.yml", "--backend", "torch", "--json", *QUICKLY)
    assert ["ok"] * 4 == [each["status"] for each in finished.documents], finished.stdout
    assert not any(each["impossible"] for each in finished.documents)
    assert all(each["efficiency"] > 0 for each in finished.documents)
