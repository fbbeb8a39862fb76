"""Test cases for inference; run them with pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_benchmark.py")
SMALL = "--iterations 3 --batch-size 2 --image-size 64 --execution eager"
CASES = [
    "--data real --model resnet18",
    "--data synthetic --model resnet18 --replicas 2",
    "--data synthetic --model resnet50 --device-iterations 8 --pipeline-splits layer3/2",
    *(f"--data generated --model {name}" for name in ("resnet34", "resnext50", "mobilenet", "efficientnet-b0")),
    *(f"--data generated --model resnet18 --norm-type {norm}" for norm in ("group", "none")),
    "--data generated --model efficientnet-b0 --norm-type group --norm-num-groups 4 --random-weights",
    "--data synthetic --model resnet18 --precision full",
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with sample pictures, as ./get_images.sh leaves it."""
    made = tmp_path_factory.mktemp("inference")
    get = [SCRIPT.with_name("get_images.sh")]
    subprocess.run(get, cwd=made, env={**os.environ, "PYTHON": sys.executable}, check=True, capture_output=True)
    return made


def run(arguments, folder):
    """Type a command; what it printed."""
    environment = {"LAYERMARK_BUDGET": "60s", **os.environ}
    command = [sys.executable, str(SCRIPT), *arguments.split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", CASES)
def test_the_highest_rate_is_above_nothing(arguments, folder):
    """The first `max=` of the output is the highest rate of a host call."""
    assert float(re.search(r"max=([\d.]+)", run(f"{arguments} {SMALL}", folder)).group(1)) > 0


def test_help(tmp_path):
    """The options are listed under the script's name."""
    assert run("-h", tmp_path).startswith("usage: run_benchmark.py")
