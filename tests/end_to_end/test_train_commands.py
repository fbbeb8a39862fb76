"""`train.py` on TFRecords of ImageNet's shape: a small run, and the documents' commands as they are typed."""

import csv
import os
import re
import shlex
import subprocess
import sys

import pytest

from conftest import Finished
from layermark.backends.base import backend
from unit.train_commands import COMMANDS, SCRIPT

SMALL = (
    "--model resnet --model-size 18 --dataset imagenet --data-dir $DATASETS_DIR --image-size 32 --batch-size 4 "
    "--epoch-size found --epochs 2 --logs-per-epoch 2 --warmup-epochs 0 --optimiser momentum --seed 3 --threads 1 "
    "--backend torch --execution eager"
)
DOCUMENTS = {
    "S10": (
        "RN50_bs16x1024p_BN_16.32_v",
        25_610_152,
        ("ResNet-50", " Batch Size: 16384", " Batch Norm", "Stepped LR schedule", " Pipeline Num Parallel: 32"),
    ),
    "S12": (
        "RNX101_bs6x2rx64p_GN32_16.16_v",
        44_177_704,
        ("ResNeXt-101", " Batch Size: 768", "  Training on 2 replicas", "  32 groups", "Cosine LR schedule"),
    ),
    "S14": (
        "EfficientNet-B4_bs5x40p_GN4_16.32_380x380_v",
        19_328_168,
        ("EfficientNet-B4", " Batch Size: 200", " Decay: 0.987793", "Exponential LR schedule", "  4 groups"),
    ),
    "S14 corrected": (
        "EfficientNet-B4_bs3x256p_GN4_16.32_380x380_v",
        19_341_616,
        ("EfficientNet-B4", " Batch Size: 768", "Exponential LR schedule", "  4 groups"),
    ),
}
"""How the folder's name begins, the parameters, and some of the labels."""


@pytest.fixture
def typed(layermark):
    """Types a training command beside a set of 64 pictures for training and 8 for validation."""
    for split, count in (("train", 64), ("validation", 8)):
        place = layermark.folder / "sets" / "imagenet-data"
        made = layermark("data", "imagenet", place, "--split", split, "--count", count, "--classes", 10)
        assert 0 == made.status, made.stderr

    def run(words, timeout=600):
        command = [sys.executable, str(SCRIPT), *shlex.split(words.replace("$DATASETS_DIR", "sets"))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, cwd=layermark.folder, env=layermark.environment, timeout=timeout, **pipes)
        assert 0 == done.returncode, done.stdout + done.stderr
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


def folder_of(layermark, done):
    (place,) = re.findall(r"^ Saving to (.*)$", done.stdout, re.M)
    return layermark.folder / place


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_records_are_trained_on_and_validated(typed, layermark):
    if not backend("torch").installed:
        pytest.skip("torch is not installed")
    done = typed(f"{SMALL} --no-dataset-cache --budget 2m")
    folder = folder_of(layermark, done)
    assert ["16", "32"] == [row["iteration"] for row in rows_of(folder / "training.csv")][1::2]
    found = rows_of(folder / "validation.csv")
    assert ["ckpt-0", "ckpt-16", "ckpt-32"] == [row["name"] for row in found if row["iteration"] in ("0", "16", "32")]
    (document,) = layermark.kept()
    assert "ok" == document["status"] and "real" == document["spec"]["data"]
    assert document["settings"]["training"]["anatomy"]["loader_only_per_s"] > 0


@pytest.mark.skipif(not os.environ.get("LAYERMARK_TEST_LARGE"), reason="large: set LAYERMARK_TEST_LARGE=1")
@pytest.mark.timeout(1800)
@pytest.mark.alone
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_training_as_typed(typed, layermark, name):
    if not backend("tensorflow").installed:
        pytest.skip("tensorflow is not installed")
    start, parameters, labels = DOCUMENTS[name]
    done = typed(f"{COMMANDS[name]} --budget 3m", timeout=1500)
    lines, folder = done.stdout.splitlines(), folder_of(layermark, done)
    assert set(labels) < set(lines) and f"Total Parameters:{parameters}" in lines
    assert folder.name.startswith(start)
    steps = [each for each in lines if each.startswith("step:")]
    assert len(steps) > 1 and len(steps) == len(rows_of(folder / "training.csv"))
    (document,) = layermark.kept()
    assert "ok" == document["status"] and document["sustained"]["value"] > 0
