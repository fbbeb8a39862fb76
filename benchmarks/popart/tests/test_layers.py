"""The layer benchmarks finish and print the rate of every step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1]
SMALL = "--batches-per-step 4 --steps 2"
CASES = [
    "lstm.py",
    f"lstm.py {SMALL} --mode train --batch-size 8 --timesteps 5",
    f"conv.py {SMALL} --input-width 64 --input-height 48",
]


def run(command, folder):
    """Type a command; what it printed."""
    environment = {"LAYERMARK_BUDGET": "60s", **os.environ}
    words = [sys.executable, str(FOLDER / command.split()[0]), *command.split()[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", CASES)
def test_every_step_has_a_rate(command, tmp_path):
    """A word, any character, a word, then the unit: what people's scripts look for."""
    assert re.search(r"\w+.\w+ items/sec\.", run(command, tmp_path))


@pytest.mark.parametrize("script", ["lstm.py", "conv.py"])
def test_help(script, tmp_path):
    """The options are listed under the script's name."""
    assert run(f"{script} --help", tmp_path).startswith(f"usage: {script}")
