"""The validation program finishes and prints one line per validation."""

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
SMALL = "--dataset cifar-10 --model-size 8 --batch-size 1000"


def run(command, folder):
    """Type a command; what it printed."""
    environment = {"LAYERMARK_BUDGET": "60s", **os.environ}
    words = [sys.executable, str(FOLDER / command.split()[0]), *command.split()[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_validation_has_its_line(tmp_path):
    """With the rate of all pictures."""
    printed = run(f"validation.py {SMALL} --synthetic-data --repeat 3", tmp_path)
    rates = re.findall(r"^Validation top-1 accuracy \[None\] .* img/sec: ([\d.]+)", printed, re.M)
    assert rates and all(float(each) > 0 for each in rates)


def test_help_depends_on_the_model(tmp_path):
    """The options of the model are listed under its name."""
    printed = run("validation.py --help --model efficientnet", tmp_path)
    assert printed.startswith("usage: validation.py")
    assert "EfficientNet:" in printed
