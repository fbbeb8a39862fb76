"""The parent imports no framework, and answers at once."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FRAMEWORKS = ("torch", "tensorflow", "jax", "onnx", "onnxruntime", "openvino", "ray")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def imported(*argv: str, program: Sequence[str] = ("-m", "layermark")) -> set[str]:
    """The top-level packages that a command imports."""
    command = [sys.executable, "-X", "importtime", *program, *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in re.findall(r"^import time:.*", done.stderr, re.M)}


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "run --help",
        "compare --help",
        "show --help",
        "report --help",
        "fleet --help",
        "list",
        "describe lstm_multi --mode train",
        "doctor --quick --json",
    ],
)
def test_the_parent_imports_no_framework(line: str) -> None:
    assert imported(*line.split()).isdisjoint(FRAMEWORKS)


@pytest.mark.parametrize("name", ["popart/lstm", "tensorflow_cnns/train"])
def test_a_seed_script_imports_no_framework_in_the_parent(name: str) -> None:
    found = imported("--help", program=[str(BENCHMARKS / f"{name}.py")])
    assert "layermark" in found and found.isdisjoint(FRAMEWORKS)


@pytest.mark.parametrize(
    "modules",
    [
        "layermark.session, layermark.store, layermark.report.terminal",
        "layermark.seeds.run",
        "layermark.seeds.cnns.train_run",
    ],
)
def test_a_whole_session_imports_no_framework_in_the_parent(modules: str) -> None:
    code = f"import {modules}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in done.stdout.split()}.isdisjoint(FRAMEWORKS)


def test_sqlalchemy_comes_with_the_first_store() -> None:
    code = "import layermark.store, sys; assert 'sqlalchemy' not in sys.modules; layermark.store.open_store(':memory:')"
    done = subprocess.run([sys.executable, "-c", f"{code}; print('sqlalchemy' in sys.modules)"], capture_output=True)
    assert (done.returncode, done.stdout.strip()) == (0, b"True")


@pytest.mark.parametrize("line", ["--help", "--version", "run --help", "describe dense"])
def test_what_needs_no_arrays_imports_no_numpy(line: str) -> None:
    assert imported(*line.split()).isdisjoint({"numpy", "rich", "yaml", "psutil", "sqlalchemy", *FRAMEWORKS})


HELP = ("-m", "layermark", "--help")


def test_help_is_quick() -> None:
    """Beside what any command line of the standard library takes: about three times that."""
    plain = ("-c", "import argparse, dataclasses, json, pathlib")
    assert min(cpu_seconds(*HELP) for _ in range(5)) < 5 * min(cpu_seconds(*plain) for _ in range(5))


def cpu_seconds(*argv: str) -> float:
    """CPU time of a command: other work on the machine hardly changes it."""
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
