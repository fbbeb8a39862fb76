"""The commands of the documents under `poprun`, as typed, from their folders: four or eight instances on any host."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unit import train_commands

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENGINE = '--mpi-global-args="--allow-run-as-root --tag-output" --mpi-local-args="-x POPLAR_ENGINE_OPTIONS"'
RUNTIME = '--mpi-global-args="--allow-run-as-root --tag-output" --mpi-local-args="-x POPLAR_RUNTIME_OPTIONS"'
FOUR = "--num-instances=4 --numa-aware=yes --num-replicas=4 --ipus-per-replica=1"
FIRST = "poprun --num-replicas 4 --ipus-per-replica 1 --num-instances 4 --numa-aware 1"
COMMANDS = {
    "S6": f"poprun {ENGINE} {FOUR} python run_benchmark.py --config resnet50-mk2 --data generated"
    " --batch-size {batchsize} --iterations 20 --num-io-tiles 64",
    "S7": f"poprun {RUNTIME} {FOUR} python run_benchmark.py --config efficientnet-b0-mk2 --data generated"
    " --batch-size {batchsize} --iterations 20 --num-io-tiles 64",
    "S8": f"poprun {RUNTIME} {FOUR} python run_benchmark.py --config efficientnet-b4-mk2 --data generated"
    " --batch-size {batchsize} --iterations 20 --num-io-tiles 0",
    "S9": f"poprun {RUNTIME} {FOUR} python run_benchmark.py --data generated --batch-size {{batchsize}}"
    " --model resnext101 --device-iterations 128 --norm-type batch --precision 16.16 --half-partial --eight-bit-io"
    " --normalization-location ipu --iterations 20 --num-io-tiles 32",
    "S21": f"{FIRST} python3 validation.py --model resnet --model-size 50 --dataset imagenet --batch-size {{batchsize}}"
    " --generated-data --repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
    "S22": f"{FIRST} python3 validation.py --model resnext --model-size 101 --dataset imagenet"
    " --batch-size {batchsize} --generated-data --repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
    "S23": f"{FIRST} python3 validation.py --model efficientnet --model-size 0 --dataset imagenet --precision 16.16"
    " --batch-size {batchsize} --generated-data --repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
}
ENDS = {"S6": (1, 80), "S7": (1, 48), "S8": (1, 10), "S9": (1, 16), "S21": (1, 80), "S22": (1, 16), "S23": (1, 32)}
TRAINING = {
    "S11": "poprun --numa-aware=yes --num-replicas=4 --num-instances=4 --ipus-per-replica 4 python train.py ",
    "S13": "poprun --numa-aware 1 --num-replicas 8 --ipus-per-replica 2 --num-instances 8 python train.py ",
    "S15": "poprun --numa-aware 1 --num-replicas 4 --ipus-per-replica 4 --num-instances 4 python3 train.py ",
}
TRAINING["S15 corrected"] = TRAINING["S15"]
COMMANDS |= {name: start + train_commands.COMMANDS[name] for name, start in TRAINING.items()}
EVERY = [(name, batch, launcher) for name in ENDS for batch in ENDS[name] for launcher in ("mpirun", "builtin")]
FOLDERS = {"run_benchmark.py": "pytorch_cnns", "validation.py": "tensorflow_cnns", "train.py": "tensorflow_cnns"}
PREFETCH = "exchange.enablePrefetch (POPLAR_ENGINE_OPTIONS)"


@pytest.fixture
def typed(tmp_path, layermark):
    """Type a command in a shell, in a copy of its folder, with `poprun` on the path."""

    def run(name, batch, launcher, budget, longest_s=900, **variables):
        if launcher == "mpirun" and shutil.which("mpirun") is None:
            pytest.skip("mpirun is not on the path; apt-get install openmpi-bin")
        command = COMMANDS[name].format(batchsize=batch)
        (folder,) = (folder for script, folder in FOLDERS.items() if script in command)
        shutil.copytree(BENCHMARKS / folder, tmp_path / folder)
        python = shlex.quote(sys.executable)
        (tmp_path / "bin").mkdir()
        poprun = f"{python} -P -m layermark launch --launcher {launcher}"
        for word, meaning in (("python", python), ("python3", python), ("poprun", poprun)):
            (tmp_path / "bin" / word).write_text(f'#!/bin/sh\nexec {meaning} "$@"\n')
            (tmp_path / "bin" / word).chmod(0o755)
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**layermark.environment, "PATH": path, "LAYERMARK_BUDGET": budget, **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, shell=True, cwd=tmp_path / folder, env=environment, timeout=longest_s, **pipes)
        assert 0 == done.returncode, done.stdout + done.stderr
        return done

    return run


def check(name, done):
    """Lines are tagged where that was asked for; the summary is there; instances that share CPUs are named."""
    lines = done.stdout.splitlines()
    if name in ("S6", "S7", "S8", "S9"):
        assert all(line.startswith("[1,0]<stdout>:[INFO]") for line in lines)
        assert any("[INFO] [instance1/4] Throughput: " in line for line in lines)
        assert any(re.search(r"num_ipus=4, of \S+: min=[\d.]+ imgs/s, max=", line) for line in lines)
    else:
        rates = [line for line in lines if line.startswith("Validation top-1 accuracy [None]")]
        assert rates and all(4 == rates.count(line) for line in rates)  # every instance prints them
    assert any("Summary (" in line for line in lines) and any("  verified  " in line for line in lines)
    if len(os.sched_getaffinity(0)) < 4:
        assert "poprun: 4 instances share" in done.stderr


@pytest.mark.skipif(not os.environ.get("LAYERMARK_TEST_LARGE"), reason="large: set LAYERMARK_TEST_LARGE=1")
@pytest.mark.timeout(1800)
@pytest.mark.alone
@pytest.mark.parametrize(("name", "batch", "launcher"), EVERY)
def test_the_documents_commands_as_typed(typed, name, batch, launcher):
    check(name, typed(name, batch, launcher, "2m"))


@pytest.mark.skipif(os.environ.get("LAYERMARK_TEST_FULL") != "1", reason="minutes: LAYERMARK_TEST_FULL=1 types them")
@pytest.mark.timeout(900)
@pytest.mark.alone
@pytest.mark.parametrize(("name", "launcher"), [("S6", "mpirun"), ("S21", "builtin")])
def test_one_command_of_each_document_with_prefetch_forbidden(typed, name, launcher):
    prefetch = {"POPLAR_ENGINE_OPTIONS": '{"exchange.enablePrefetch": "false"}'}
    done = typed(name, 1, launcher, "2m", **prefetch)
    check(name, done)
    assert (1 if name == "S6" else 4) == done.stdout.count(PREFETCH)  # once in every instance that prints


@pytest.mark.skipif(not os.environ.get("LAYERMARK_TEST_LARGE"), reason="large: set LAYERMARK_TEST_LARGE=1")
@pytest.mark.timeout(3600)
@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "instances", "launcher"),
    [("S11", 4, "builtin"), ("S13", 8, "mpirun"), ("S15", 4, "builtin"), ("S15 corrected", 4, "builtin")],
)
def test_the_documents_training_as_typed(typed, layermark, tmp_path, name, instances, launcher):
    """A budget ends the calls, but not what is built before them."""
    pytest.importorskip("torch")
    made = layermark("data", "imagenet", tmp_path / "sets" / "imagenet-data", "--split", "train", "--count", 64)
    assert 0 == made.status, made.stderr
    done = typed(name, None, launcher, "10m", longest_s=3000, DATASETS_DIR=str(tmp_path / "sets"))
    lines = done.stdout.splitlines()
    steps = [line for line in lines if line.startswith("step:")]
    assert len(steps) > 1 and all(instances == steps.count(line) for line in steps)  # every instance prints them
    assert any("Summary (" in line for line in lines)
    (document,) = layermark.kept()
    assert instances == document["spec"]["plan"]["instances"] == document["communication"]["replicas"]
    assert "ok" == document["status"] and document["communication"]["identical"]
