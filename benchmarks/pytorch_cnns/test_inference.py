"""Test cases for inference; run them with pytest, after ./get_images.sh."""

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


@pytest.mark.parametrize("arguments", CASES)
def test_the_highest_rate_is_above_nothing(arguments):
    """The first `max=` of the output is the highest rate of a host call."""
    command = [sys.executable, str(SCRIPT), *arguments.split(), *SMALL.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(re.search(r"max=([\d.]+)", done.stdout).group(1)) > 0
