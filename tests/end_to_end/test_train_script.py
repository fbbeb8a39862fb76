"""`train.py` as it is typed: it learns, goes on after being killed, and says in one line what is wrong."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import CommandLine, Finished
from contract.covering import FULL
from layermark.backends.base import backend
from layermark.data.making_cifar import SmallRecipe, make_small
from layermark.report.trace import faults
from layermark.training import checkpoint

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "tensorflow_cnns"
LINE = re.compile(
    r"^step: +(\d+), iteration: +(\d+), epoch: +[\d.]+, lr: +\S+, loss: +([\d.]+), top-1 accuracy: +[\d.]+%, "
    r"img/sec: +([\d.]+), time: [\d.]+, total_time: +[\d.]+$",
    re.M,
)
VALIDATION = re.compile(r"^Validation top-1 accuracy \[(\S+)\] .*: ([\d.]+)%$", re.M)
SMALL = "--dataset cifar-10 --model-size 8 --epoch-size found --threads 1 --warmup-epochs 0"
RUNTIMES = {"torch": "eager", "tensorflow": "auto", "jax": "auto"}


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A command line, and beside it a set that can be learnt and a tiny one."""
    made = CommandLine(tmp_path_factory.mktemp("training"))
    make_small(made.folder / "learnt", SmallRecipe(train=1600, test=200))
    make_small(made.folder / "tiny", SmallRecipe(train=64, test=16))
    return made


def command(name, text):
    return [sys.executable, str(BENCHMARKS / f"{name}.py"), *text.split()]


@pytest.fixture
def typed(line):
    """Runs `python3 name.py ...` where the data sets are."""

    def start(name, text, timeout=600, **environment):
        variables = {**line.environment, **environment}
        done = subprocess.run(
            command(name, text),
            cwd=line.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return start


def folder_of(line, stdout):
    return line.folder / next(each for each in stdout.splitlines() if each.startswith(" Saving to "))[11:]


def test_a_profile_is_asked_for_by_its_option(typed, line):
    if not backend("torch").installed:
        pytest.skip("torch is not installed")
    options = json.dumps({"autoReport.directory": "profiled"})
    few = f"{SMALL} --data-dir tiny --batch-size 16 --epochs 1 --no-validation --backend torch --execution eager"
    done = typed("train", f"{few} --gc-profile", POPLAR_ENGINE_OPTIONS=options)
    assert 0 == done.status, done.stdout + done.stderr
    (trace,) = (line.folder / "profiled").glob("*.trace.json")
    name = trace.name.removesuffix(".trace.json")
    summary = json.loads(trace.with_name(f"{name}.profile.json").read_text())
    assert summary["operators"] and 0.5 < sum(bool(row["node"]) for row in summary["operators"]) / len(
        summary["operators"]
    )
    assert "share" in trace.with_name(f"{name}.profile.txt").read_text()
    assert [] == list(faults(json.loads(trace.read_text())))

    done = typed("train", f"{few} --gc-profile NO_PROFILE", POPLAR_ENGINE_OPTIONS=options.replace("profiled", "none"))
    assert 0 == done.status, done.stdout + done.stderr
    assert not list(line.folder.glob("none/*.trace.json"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("runtime", RUNTIMES if FULL else ["torch"])
def test_it_learns(typed, line, runtime):
    if not backend(runtime).installed:
        pytest.skip(f"{runtime} is not installed")
    way = f"--backend {runtime} --execution {RUNTIMES[runtime]}"
    done = typed("train", f"{SMALL} --data-dir learnt --batch-size 16 --epochs 2 --logs-per-epoch 2 --seed 5 {way}")
    assert 0 == done.status, done.stdout + done.stderr
    lines = LINE.findall(done.stdout)
    assert [50, 100, 150, 200] == [int(each[1]) for each in lines]
    found = {name: float(share) for name, share in VALIDATION.findall(done.stdout)}
    assert ["ckpt-0", "ckpt-50", "ckpt-100", "ckpt-150", "ckpt-200"] == list(found)
    assert found["ckpt-0"] < 40 and found["ckpt-200"] > 90
    assert "verified  yes" in done.stdout and "Throughput without the first line: min=" in done.stdout

    folder = folder_of(line, done.stdout)
    assert (folder / "log.txt").read_text() == done.stdout
    rows = (folder / "training.csv").read_text().splitlines()
    assert rows[0].startswith("step,iteration,epoch,lr,loss_batch,loss_avg") and 5 == len(rows)
    assert 6 == len((folder / "validation.csv").read_text().splitlines())
    assert 16 == json.loads((folder / "arguments.json").read_text())["global_batch_size"]

    document = max(line.kept(), key=lambda each: each["session"])
    facts = document["settings"]["training"]
    assert "ok" == document["status"] and document["sustained"]["value"] > 0
    assert [50, 100, 150, 200] == [each["update"] for each in facts["curve"]]
    assert 0 < facts["curve"][-1]["loss"] < 0.5
    assert {"end_to_end_per_s", "loader_only_per_s", "compute_only_per_s"} <= facts["anatomy"].keys()
    assert {"compile", "proof", "checkpoints", "validation"} <= facts["excluded_s"].keys()


TINY = (
    f"{SMALL} --data-dir tiny --batch-size 4 --iterations 24 --log-freq 2 --ckpts-per-epoch 8 --no-validation "
    "--abs-learning-rate 0.01 --optimiser momentum --gradient-accumulation-count 2 --mixup-alpha 0.2 "
    "--backend torch --execution eager --seed 7"
)


def last_digest(folder):
    """The digest of all arrays of the last checkpoint."""
    last = max(folder.glob("ckpt/ckpt-*.json"), key=lambda each: int(each.stem.partition("-")[2]))
    return last.stem, json.loads(last.read_text())["sha256"]


def killed(line, name, text, saves, pause):
    """Start a run and kill it some time after it has saved so many checkpoints; returns its folder."""
    process = subprocess.Popen(
        command(name, text), cwd=line.folder, env=line.environment, stdout=subprocess.PIPE, text=True
    )
    folder, seen = None, 0
    for each in process.stdout:
        folder = each[11:].strip() if each.startswith(" Saving to ") else folder
        seen += each.startswith("Saved checkpoint")
        if seen >= saves:
            break
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.stdout.read()
    process.wait()
    return folder


@pytest.mark.timeout(900)
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_happened(typed, line):
    whole = typed("train", f"{TINY} --logs-path whole")
    assert 0 == whole.status, whole.stdout + whole.stderr
    draw = random.Random(11)
    folder = killed(line, "train", TINY, 1 + draw.randrange(4), draw.random() / 4)
    for _ in range(19 if FULL else 1):
        killed(line, "restore", f"--restore-path {folder}", 1 + draw.randrange(2), draw.random() / 4)
    ended = typed("restore", f"--restore-path {folder}")
    assert 0 == ended.status, ended.stdout + ended.stderr
    assert "Restoring training from latest checkpoint: " in ended.stdout
    assert ("ckpt-24", last_digest(line.folder / folder)[1]) == last_digest(line.folder / "whole")
    iterations = [row.split(",")[1] for row in (line.folder / folder / "training.csv").read_text().splitlines()[1:]]
    assert [str(each) for each in range(2, 25, 2)] == iterations

    made = typed("weight_avg", f"--restore-path {folder} --filename mean --mode mean -N 1")
    assert 0 == made.status and (line.folder / folder / "ckpt" / "mean.safetensors").is_file()


def test_a_loss_that_is_no_number_is_one_line_and_leaves_the_checkpoints(typed, line):
    done = typed("train", f"{TINY} --optimiser SGD --abs-learning-rate 1e30 --logs-path diverged --budget 5m")
    assert 1 == done.status
    said = r"^FAILED: (the loss is \S+|\S+ is not finite) after update \d+: training has diverged; ckpt-\d+ is intact"
    assert re.search(said, done.stdout, re.M), done.stdout
    named = re.search(r"(ckpt-\d+) is intact", done.stdout)[1]
    read = checkpoint.load(line.folder / "diverged" / "ckpt" / f"{named}.json")
    assert all(np.isfinite(each).all() for each in read.arrays().values())
    assert named == checkpoint.latest(line.folder / "diverged" / "ckpt").stem


@pytest.mark.skipif(not FULL, reason="nine runs; LAYERMARK_TEST_FULL=1 makes them")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_two_runs_of_one_seed_have_equal_weights(typed, line, runtime):
    if not backend(runtime).installed:
        pytest.skip(f"{runtime} is not installed")
    digests = []
    for name, seed in (("first", 7), ("second", 7), ("other", 8)):
        words = f"{TINY} --iterations 4 --backend {runtime} --execution {RUNTIMES[runtime]} --seed {seed}"
        done = typed("train", f"{words} --logs-path {runtime}-{name} --budget 1m")
        assert 0 == done.status, done.stdout + done.stderr
        digests.append(last_digest(line.folder / f"{runtime}-{name}"))
    first, second, *others = digests
    assert "ckpt-4" == first[0] and first == second and first not in others


def test_data_that_vanish_are_one_line_that_says_how_to_go_on(line):
    make_small(line.folder / "fleeting", SmallRecipe(train=64, test=16))
    words = f"{TINY} --logs-path vanished --iterations 100000 --no-dataset-cache".replace("tiny", "fleeting")
    process = subprocess.Popen(
        command("train", words), cwd=line.folder, env=line.environment, stdout=subprocess.PIPE, text=True
    )
    for each in process.stdout:
        if each.startswith("Saved checkpoint"):
            break
    shutil.rmtree(line.folder / "fleeting")
    stdout, _ = process.communicate(timeout=60)
    assert 1 == process.returncode
    (told,) = (each for each in stdout.splitlines() if each.startswith("FAILED: "))
    said = r"FAILED: fleeting\S+: cannot be read: .*; go on from (\S+) with --restore-path vanished"
    named = re.fullmatch(said, told)
    assert named and named[1] == checkpoint.latest(line.folder / "vanished" / "ckpt").stem


def test_ctrl_c_is_one_line_that_says_how_to_go_on(line):
    process = subprocess.Popen(
        command("train", f"{TINY} --logs-path stopped --iterations 100000"),
        cwd=line.folder, env=line.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for each in process.stdout:
        if each.startswith("Saved checkpoint"):
            break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert 130 == process.returncode
    assert re.fullmatch(r"train.py: interrupted; ckpt-\d+ is kept; go on with --restore-path stopped\n", stderr)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--restore-path nowhere", "train.py: error: --restore-path nowhere: cannot read"),
        ("--data-dir nowhere --dataset cifar-10", "train.py: error: "),
        ("--generated-data", "train.py: error: --generated-data needs --dataset"),
        ("--generated-data --dataset cifar-10 --init-path no.safetensors", "--init-path no.safetensors: no such file"),
    ],
)
def test_what_is_wrong_is_one_line(typed, words, said):
    done = typed("train", words)
    assert 2 == done.status and said in done.stderr and 1 == len(done.stderr.splitlines())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_under_the_output_is_one_line(line):
    words = f"{SMALL} --generated-data --batch-size 2 --epochs 1 --dataset-benchmark --budget 1s"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("train", words), cwd=line.folder, env=line.environment, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=100, check=False,
        )  # fmt: skip
    assert (1, "train.py: error: cannot write: No space left on device; free some space\n") == (
        done.returncode, done.stderr,
    )  # fmt: skip


def test_compiling_and_loading_alone(typed):
    built = typed("train", f"{SMALL} --generated-data --backend torch --execution eager --compile-only")
    assert 0 == built.status and re.search(r"^Compiled in [\d.]+ seconds$", built.stdout, re.M)
    loaded = typed("train", f"{SMALL} --data-dir tiny --batch-size 2 --epochs 1 --dataset-benchmark --budget 5s")
    assert 0 == loaded.status and re.search(r"^Mean throughput over 1 epochs: [\d.]+ imgs/sec$", loaded.stdout, re.M)
