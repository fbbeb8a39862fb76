"""`pytest` inside each folder of the seed documents' programs, as a holder of the documents would type it."""

import subprocess
import sys
from pathlib import Path

import pytest

from contract.covering import FULL

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHOSEN = {
    "popart": "",
    "tensorflow": "help or hmc or rnn",
    "pytorch_cnns": "help or real",
    "tensorflow_cnns": "",
}
"""What is run of a folder's tests, unless LAYERMARK_TEST_FULL asks for all of them."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("folder", CHOSEN)
def test_the_tests_of_a_folder_pass(layermark, folder):
    environment = {"LAYERMARK_BUDGET": "60s", **layermark.environment}
    environment = {name: each for name, each in environment.items() if not name.startswith("PYTEST_")}
    some = [] if FULL or not CHOSEN[folder] else ["-k", CHOSEN[folder]]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *some]
    done = subprocess.run(
        command, cwd=BENCHMARKS / folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("folder", CHOSEN)
def test_a_folder_has_what_the_documents_list(folder):
    found = {each.name for each in (BENCHMARKS / folder).iterdir()}
    assert {"README.md", "requirements.txt"} <= found
    assert found & {"tests", "test", "test_inference.py"}
    told = (BENCHMARKS / folder / "README.md").read_text()
    assert [each.name for each in (BENCHMARKS / folder).glob("*.py") if f"`{each.name}`" not in told] == []
