"""A network in several processes gives what it gives in one: outputs, weights, state and running statistics."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.covering import FULL
from contract.programs import TORCH
from layermark import pipelines
from layermark.axes import complete
from layermark.training.update import Update
from layermark.worker import oracle

pytest.importorskip("torch")
TIMEOUT_S = 240
CIFAR = {"params": {"image_size": (8, 8)}, "batch_size": 2, "precision": "64.64"}
TWO, FOUR = "layer2/0", "layer1/0/conv2,layer2/0,layer3/0"
"""Two stages, and four whose first cut is inside a residual block, so that two tensors are handed on."""
UPDATES = 2
THREE_WORDS = ("Grouped", "Interleaved", "Sequential")
OTHERS = tuple(name for name in pipelines.SCHEDULES if name not in THREE_WORDS)
MOMENTUM = Update(optimiser="momentum", accumulation=4, weight_decay=1e-3, loss_scaling=8.0)
CLIPPED = Update(accumulation=4, clip_norm=1e-3)


def spec_of(splits, schedule="Grouped", **changes):
    facts = {**CIFAR, "pipeline_splits": splits, "pipeline_schedule": schedule, **changes}
    return complete(TORCH.spec("resnet8-cifar", **facts))


def piped(folder, ranks, specs):
    """What rank 0 of each pipeline finds out, each rank in a process of its own."""
    (folder / "specs.json").write_text(json.dumps([spec.to_json() for spec in specs]))
    answers = {}
    for number, spec in enumerate(specs):
        key = (spec.mode, spec.update, oracle.proven_update(spec).accumulation)
        if key not in answers:
            answers[key] = folder / f"answer{number}.npz"
            oracle.compute(spec, answers[key], UPDATES)
        (folder / f"answer{number}").symlink_to(answers[key])
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "contract.stage_rank", str(folder), str(rank), str(ranks)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
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
    return json.loads((folder / "results.json").read_text())


def assert_all_proven(specs, found):
    for spec, each in zip(specs, found, strict=True):
        verified, what = each["verified"], (spec.mode, spec.pipeline_schedule, spec.update)
        assert verified["ok"], (what, verified["reason"])
        assert verified["max_error"] < 1e-8, (what, verified)


def assert_kept_as_memory_is_counted_for(specs, found):
    """How many micro-batches a stage has begun and not ended at the same time, by the words of the seeds."""
    trained = [(spec, each["events"]) for spec, each in zip(specs, found, strict=True) if spec.mode == "train"]
    for spec, events in trained:
        if spec.pipeline_schedule not in THREE_WORDS:
            continue
        for one in events["passes"]:
            kinds = [[kind for kind, *_ in rank] for rank in one]
            seen = tuple(max(itertools.accumulate(1 if kind == "F" else -1 for kind in each)) for each in kinds)
            count = kinds[0].count("F")
            assert pipelines.in_flight(spec.pipeline_schedule, events["stages"], count) == seen, spec.pipeline_schedule


def test_two_ranks_give_what_one_process_gives_by_every_schedule(tmp_path):
    trained = {"mode": "train", "update": MOMENTUM}
    specs = [
        *(spec_of(TWO, schedule, **trained) for schedule in THREE_WORDS),
        *(spec_of(FOUR, schedule, **trained) for schedule in OTHERS),
        spec_of(TWO, mode="train", update=CLIPPED),
        spec_of("loss", mode="train", update=CLIPPED),  # the last stage has no weights
        spec_of(TWO, mode="train", update=MOMENTUM.replace(statistics_per="update")),
        spec_of(TWO),
        spec_of(TWO, "Sequential", data="generated"),
        spec_of("fc", mode="eval"),
    ]
    found = piped(tmp_path, 2, specs)
    assert_all_proven(specs, found)
    assert_kept_as_memory_is_counted_for(specs, found)


@pytest.mark.skipif(not FULL, reason="four processes; LAYERMARK_TEST_FULL=1 runs it")
def test_four_ranks_give_what_one_process_gives_by_every_schedule(tmp_path):
    trained = {"mode": "train", "update": MOMENTUM}
    eight = FOUR + ",layer1/0/relu2,layer2/0/conv2,layer3/0/conv2,fc"
    many = {"mode": "train", "update": MOMENTUM.replace(accumulation=8)}
    specs = [
        *(spec_of(FOUR, schedule, **trained) for schedule in THREE_WORDS),
        *(spec_of(eight, schedule, **many) for schedule in OTHERS),
        spec_of(FOUR),
    ]
    assert_all_proven(specs, piped(tmp_path, 4, specs))
