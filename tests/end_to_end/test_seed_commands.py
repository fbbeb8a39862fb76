"""The commands of the seed documents and of the seeds' own tests, typed in their folders, on their own runtimes."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Finished
from contract.covering import FULL
from layermark.backends.base import backend

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUNTIMES = {"popart": "onnxruntime", "tensorflow": "tensorflow"}
SECONDS, RATE = r"^(\d[\d.e-]*) +sec/itr\. +", r"(\d+\.\d{6}) "
LINES = {
    "popart": re.compile(rf"{SECONDS}{RATE}items/sec\.$", re.M),
    "tensorflow": re.compile(rf"{SECONDS}{RATE}items/sec$", re.M),
    "hmc": re.compile(rf"{SECONDS}{RATE}hmc steps/sec$", re.M),
}
AS_TYPED = [
    "popart: python3 lstm.py",
    "popart: python3 conv.py",
    "tensorflow: python3 grouped_conv.py",
    "tensorflow: python3 gru.py",
    "tensorflow: python3 hmc.py",
    "tensorflow: python3 lstm.py",
    "tensorflow: python3 lstm_multi.py",
    "tensorflow: python3 rnn.py",
    "tensorflow: python3 dense.py",
    "tensorflow: python3 dense.py --steps 5",
]
SMALL = [
    "tensorflow: python3 dense.py --train --include-activation --size 256 --batch-size 128",
    "tensorflow: python3 dense.py --replicas 2",
    "tensorflow: python3 grouped_conv.py --train --input-size 112 --stride 3 --filter-in 32 --filter-out 16",
]
if FULL:  # the same programs, with options that others of the list have
    AS_TYPED += [
        f"tensorflow: python3 {name}.py --steps 5"
        for name in ("grouped_conv", "gru", "hmc", "lstm", "lstm_multi", "rnn")
    ]
    SMALL += [
        """tensorflow: python3 dense.py --steps 1 --convolution-options '{"availableMemoryProportion": "0.2"}'""",
        """tensorflow: python3 dense.py --size 128 --batch-size 4 --matmul-options '{"partialsType": "half"}'""",
        "tensorflow: python3 lstm.py --replicas 2",
        "tensorflow: python3 grouped_conv.py --batch-size 8 --use-generated-data",
        "tensorflow: python3 grouped_conv.py --block-repeats 20 --group-dim 8",
        "tensorflow: python3 grouped_conv.py --replicas 2",
        "tensorflow: python3 gru.py --replicas 2",
        "tensorflow: python3 rnn.py --replicas 2",
        "tensorflow: python3 hmc.py --steps 500",
        "tensorflow: python3 hmc.py --steps 200 --hmc-steps 10000 --leapfrog-steps 10",
    ]
SIZES = {
    "A": "--batch-size 256 --timesteps 25 --hidden-size 1024",
    "B": "--batch-size 128 --timesteps 50 --hidden-size 1536",
    "C": "--batch-size 64 --timesteps 25 --hidden-size 2048",
    "D": "--batch-size 1024 --timesteps 150 --hidden-size 256",
    "E": "--batch-size 1024 --timesteps 25 --hidden-size 512",
    "F": "--batch-size 64 --timesteps 25 --hidden-size 512",
}
LARGE = [
    "popart: python3 lstm.py {A}",
    """popart: python3 lstm.py {B} --lstm-options '{{"availableMemoryProportion": "0.55"}}'""",
    "popart: python3 lstm.py {C}",
    "popart: python3 lstm.py {D}",
    "popart: python3 lstm.py {E}",
    "tensorflow: python3 gru.py {A} --use-generated-data --popnn",
    "tensorflow: python3 gru.py {B} --save-graph",
    "tensorflow: python3 gru.py {C} --steps 1 --no-train",
    "tensorflow: python3 gru.py {D} --use-zero-values --popnn",
    "tensorflow: python3 gru.py {F} --train --use-generated-data",
    "tensorflow: python3 lstm.py {A} --use-generated-data --popnn",
    "tensorflow: python3 lstm.py {B} --popnn --save-graph",
    "tensorflow: python3 lstm.py {C} --steps 6 --popnn",
    "tensorflow: python3 lstm.py {D} --use-zero-values",
    "tensorflow: python3 lstm.py {F} --train --use-generated-data",
    "tensorflow: python3 rnn.py {A} --use-generated-data",
    "tensorflow: python3 rnn.py {B} --save-graph",
    "tensorflow: python3 rnn.py {C} --steps 1",
    "tensorflow: python3 rnn.py {D} --use-zero-values",
    "tensorflow: python3 rnn.py {F} --train --use-generated-data",
]
LARGE_IN_40_S = [
    f"{folder}: LAYERMARK_BUDGET=40s python3 lstm.py {{D}} --use-zero-values --batches-per-step 100"
    for folder in ("popart", "tensorflow")
]


class Shell:
    """Types commands into a shell whose `python3` is the one that runs the tests."""

    def __init__(self, line):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**line.environment, "PATH": path}

    def __call__(self, typed, more="", patience=240):
        """Run `folder: command` with more options; its family and how it ended."""
        folder, command = typed.split(": ", 1)
        if not backend(RUNTIMES[folder]).installed:
            pytest.skip(f"needs {RUNTIMES[folder]}")
        finished = subprocess.run(
            f"{command} {more}",
            shell=True,
            cwd=BENCHMARKS / folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
        )
        family = "hmc" if "hmc.py" in command else folder
        return family, Finished(finished.returncode, finished.stdout, finished.stderr)


@pytest.fixture
def shell(layermark):
    """A shell with a store of its own."""
    return Shell(layermark)


def check(family, finished, runtime, steps):
    """A benchmark that went well prints the seeds' lines in their order, then the proof."""
    assert 0 == finished.status, finished.stdout + finished.stderr
    begins = "Compiling..." if family == "popart" else "Compiling and Warmup..."
    assert re.search(rf"\n{re.escape(begins)}\nDuration: \d+\.\d{{3}} seconds\n\nExecuting\.\.\.\n", finished.stdout)
    lines = LINES[family].findall(finished.stdout)
    assert steps == len(lines)
    assert all(float(seconds) > 0 and float(rate) > 0 for seconds, rate in lines)
    assert f"Summary ({runtime} " in finished.stdout
    assert re.search(r"^  verified  yes", finished.stdout, re.M)
    if family == "hmc":
        assert re.search(r"^Average time per hmc step: \S+ sec$", finished.stdout, re.M)


def steps_of(typed, default):
    """How many steps a command asks for."""
    named = re.search(r"--steps (\d+)", typed)
    return int(named[1]) if named else default


@pytest.mark.parametrize("typed", AS_TYPED)
def test_the_documents_commands(shell, typed):
    hmc = "hmc.py" in typed
    family, finished = shell(typed, "--hmc-steps 500" if hmc else "--batches-per-step 2")
    check(family, finished, RUNTIMES[typed.split(":")[0]], steps_of(typed, 100 if hmc else 5))


@pytest.mark.parametrize("typed", SMALL)
def test_the_small_runs_of_the_seeds_own_tests(shell, typed):
    hmc = "hmc.py" in typed
    family, finished = shell(typed, "" if hmc else f"--batches-per-step 2 {'' if '--steps' in typed else '--steps 2'}")
    check(family, finished, "tensorflow", steps_of(typed, 2))
    if "--input-size 112" in typed:
        assert " Input size 112.\n" in finished.stdout


@pytest.mark.skipif(not os.environ.get("LAYERMARK_TEST_LARGE"), reason="large: set LAYERMARK_TEST_LARGE=1")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("typed", LARGE)
def test_the_large_runs_of_the_seeds_own_tests(shell, typed):
    """Batches are streamed: no process of a run holds more than 8 GB."""
    typed = typed.format(**SIZES)
    more = f"--batches-per-step 2 {'' if '--steps' in typed else '--steps 2'}"
    family, finished = shell(typed, more, patience=1200)
    check(family, finished, RUNTIMES[typed.split(":")[0]], steps_of(typed, 2))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10 < 8 << 30


@pytest.mark.skipif(not os.environ.get("LAYERMARK_TEST_LARGE"), reason="large: set LAYERMARK_TEST_LARGE=1")
@pytest.mark.parametrize("typed", LARGE_IN_40_S)
def test_a_large_run_with_a_short_budget_has_a_rate(shell, typed):
    family, finished = shell(typed.format(**SIZES))
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert LINES[family].search(finished.stdout), finished.stdout + finished.stderr
