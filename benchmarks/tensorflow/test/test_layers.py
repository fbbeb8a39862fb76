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
    f"dense.py {SMALL} --train --include-activation --size 256 --batch-size 128",
    f"grouped_conv.py {SMALL} --input-size 28 --block-repeats 2 --group-dim 8",
    f"gru.py {SMALL} --use-generated-data --popnn",
    f"lstm.py {SMALL} --use-zero-values",
    f"lstm_multi.py {SMALL} --timesteps 10",
    f"rnn.py {SMALL}",
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
    assert re.search(r"\w+.\w+ items/sec", run(command, tmp_path))


def test_a_report_of_hmc_says_where_the_time_went(tmp_path):
    """Under these words, and after the rate."""
    assert re.search(r"\w+.\w+ hmc steps/sec(.|\n)*IPU Timings", run("hmc.py --report --hmc-steps 500", tmp_path))


@pytest.mark.parametrize("script", sorted(each.name for each in FOLDER.glob("*.py")))
def test_help(script, tmp_path):
    """The options are listed under the script's name."""
    assert run(f"{script} -h", tmp_path).startswith(f"usage: {script}")
