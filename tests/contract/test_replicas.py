"""Replicas that share their updates are one process: weights, state, statistics and losses after ten updates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from contract import programs
from contract.covering import FULL
from contract.programs import each_of
from layermark.axes import complete
from layermark.launch.ports import Ports
from layermark.launch.process import worker_environment
from layermark.spec import Loading, Plan
from layermark.training.mixing import Mixing
from layermark.training.update import Update
from layermark.worker import oracle
from layermark.workloads.base import task

TIMEOUT_S = 240
MOMENTUM = Update(optimiser="momentum", weight_decay=1e-3, loss_scaling=8.0)
MICRO_BATCHES = 4
SMALL = {"params": {"image_size": (8, 8)}, "batch_size": 2, "precision": "64.64", "mode": "train", "threads": 1}
TWO = "layer2/0"


def spec_of(variant, replicas, **changes):
    """The same four micro-batches of an update, shared by so many replicas."""
    update = MOMENTUM.replace(accumulation=MICRO_BATCHES // replicas)
    facts = {**SMALL, "update": update, "plan": Plan(replicas=replicas), "ring": 8, **changes}
    return complete(variant.spec("resnet8-cifar", **facts))


def trained(folder, spec, *, answered=False):
    """What the ranks of one spec come to, each in a process of its own."""
    folder.mkdir()
    ranks = spec.ranks
    with Ports(ranks) as ports:
        doc = [spec.to_json(), ports.addresses(), ranks // spec.plan.replicas]
        (folder / "specs.json").write_text(json.dumps([doc]))
        if answered:
            oracle.compute(spec, folder / "answer0.npz", 2)
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "contract.replica_rank", str(folder), str(rank)],
                env={**os.environ, **worker_environment(spec), "PYTHONPATH": path},
                stderr=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        try:
            said = [each.communicate(timeout=TIMEOUT_S)[1].decode() for each in started]
        finally:
            for each in started:
                each.kill()
    assert all(each.returncode == 0 for each in started), "\n".join(said)[-4000:]
    with np.load(folder / "weights0.npz") as file:
        return dict(file), json.loads((folder / "facts0.json").read_text())


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, expected in one.items():
        assert np.allclose(other[name], expected, rtol=1e-8, atol=1e-10), (name, np.abs(other[name] - expected).max())


@each_of(programs.CONNECTED)
def test_one_two_and_four_replicas_give_the_same_weights(variant, tmp_path):
    pytest.importorskip(variant.backend)
    alone, _ = trained(tmp_path / "1", spec_of(variant, 1))
    for replicas in (2, 4) if FULL else (2,):
        found, facts = trained(tmp_path / str(replicas), spec_of(variant, replicas), answered=replicas == 2)
        assert_equal(alone, found)
        assert facts["communication"]["identical"] and all(
            each["right"] for each in facts["communication"]["all_reduce"]
        )
        assert gradient_bytes(variant) == facts["communication"]["gradient_bytes"]
        assert facts["communication"]["overlaps"] == (variant.backend == "torch")
        if replicas == 2:
            assert facts["verified"]["ok"] and facts["verified"]["max_error"] < 1e-8, facts["verified"]


def gradient_bytes(variant):
    """Of all weights that are trained, in float64."""
    return 8 * sum(each.count for each in task(spec_of(variant, 1)).graph.parameters.values() if each.trainable)


@each_of(programs.CONNECTED if FULL else (programs.TORCH,))
def test_replicas_in_fp32_are_proven_as_one_process_is(variant, tmp_path):
    """Roundings differ, and are allowed for as anywhere else: by what they do to the reference."""
    pytest.importorskip(variant.backend)
    _, facts = trained(tmp_path / "2", spec_of(variant, 2, precision="32.32"), answered=True)
    assert facts["verified"]["ok"] and 0 < facts["verified"]["max_error"], facts["verified"]
    assert facts["communication"]["identical"]


@pytest.mark.skipif(not FULL, reason="one of each is enough for a change; LAYERMARK_TEST_FULL=1 runs it")
@pytest.mark.parametrize("execution", ["recompute", "compile"])
def test_replicas_that_are_compiled_or_compute_again_equal_one_process(execution, tmp_path):
    pytest.importorskip("torch")
    alone, _ = trained(tmp_path / "1", spec_of(programs.TORCH, 1))
    found, facts = trained(tmp_path / "2", spec_of(programs.TORCH, 2, execution=execution))
    assert_equal(alone, found)
    assert execution == facts["settings"]["execution"] and facts["communication"]["identical"]


PIPES = {"pipeline_splits": TWO, "pipeline_schedule": "Grouped", "execution": "recompute"}
SPREADS = {"2x2-once-an-update": ("update", PIPES)}
if FULL:
    SPREADS |= {"2x2": ("micro-batch", PIPES), "2-once-an-update": ("update", {})}


@pytest.mark.parametrize(("statistics_per", "pipes"), SPREADS.values(), ids=SPREADS)
def test_replicas_of_pipelines_equal_both(statistics_per, pipes, tmp_path):
    pytest.importorskip("torch")
    once = MOMENTUM.replace(statistics_per=statistics_per)
    alone, _ = trained(tmp_path / "1", spec_of(programs.TORCH, 1, update=once.replace(accumulation=4)))
    spread = spec_of(programs.TORCH, 2, update=once.replace(accumulation=2), **pipes)
    found, facts = trained(tmp_path / "2", spread)
    assert_equal(alone, found)
    assert facts["communication"]["identical"] and facts["settings"].get("stages", "1") == ("2" if pipes else "1")
    assert gradient_bytes(programs.TORCH) == facts["communication"]["gradient_bytes"], "those of all stages"


DROPPING = {"image_size": (8, 8), "width_coefficient": 0.1, "depth_coefficient": 0.3, "top_width": 8}
DROPPING |= {"block_survival_prob": 0.5, "dropout_rate": 0.5}
MIXED = Mixing(mixup_alpha=0.4, cutmix_lambda=0.5)


def of_pictures(folder, replicas, **changes):
    """A network that drops blocks and units at random, fed with pictures that are mixed."""
    loading = Loading(data_dir=str(folder), loader_workers=0, augment=True, shuffle=True)
    update = MOMENTUM.replace(accumulation=MICRO_BATCHES // replicas)
    facts = {**SMALL, "params": DROPPING, "update": update, "plan": Plan(replicas=replicas), "ring": 3}
    facts |= {"data": "real", "loading": loading, "mixing": MIXED, **changes}
    return complete(programs.TORCH.spec("efficientnet-cifar", **facts))


@pytest.mark.parametrize("pipes", [{}, {"pipeline_splits": "blocks/4/0/conv_pw"}] if FULL else [{}])
def test_replicas_drop_and_mix_the_pictures_of_one_process_and_go_on_from_a_checkpoint(pipes, pictures, tmp_path):
    pytest.importorskip("torch")
    alone, _ = trained(tmp_path / "1", of_pictures(pictures, 1))
    found, facts = trained(tmp_path / "2", of_pictures(pictures, 2, **pipes))
    assert_equal(alone, found)
    assert facts["communication"]["identical"]
    assert_equal({name: each for name, each in found.items() if f"restored:{name}" in found}, restored(found))


def restored(found):
    return {name.removeprefix("restored:"): each for name, each in found.items() if name.startswith("restored:")}
