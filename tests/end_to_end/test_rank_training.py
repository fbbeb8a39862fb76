"""`train.py` on several ranks: two instances of two stages, gone on with, killed, stopped, and by another door."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import Finished
from end_to_end import test_two_hosts
from layermark import safetensors
from layermark.launch.ports import Ports

pytest.importorskip("torch")
TRAIN = Path(__file__).parents[2] / "benchmarks" / "tensorflow_cnns" / "train.py"
hosts = test_two_hosts.hosts
FULL = os.environ.get("LAYERMARK_TEST_FULL") == "1"
SOON_S = 20
HUNG_S = 300
"""A call that hangs ends after ten times what was measured, on a machine that others use as well."""
LONG, ENDLESS = 400, 100_000
"""Updates: of a run that is killed early and gone on with, and of one that nobody waits for."""
RECIPE = (
    "--model resnet --model-size 8 --dataset cifar-10 --generated-data --batch-size 2 --gradient-accumulation-count 3"
)
RECIPE += (
    " --precision 32.32 --no-validation --optimiser momentum --batches-per-step 2 --log-freq 2 --ckpts-per-epoch 10000"
)
STAGES = "--shards 2 --pipeline --pipeline-splits b2/0/relu --pipeline-schedule Grouped"


@pytest.fixture
def train(layermark, tmp_path):
    """Start `train.py` as two instances, of a replica with two stages each unless told otherwise."""

    started = []

    def start(words, replicas=2, stages=2, **variables):
        program = [sys.executable, str(TRAIN), *f"{words} --log-dir {tmp_path}".split()]
        counts = ["--num-instances", "2", "--num-replicas", str(replicas), "--ipus-per-replica", str(stages)]
        counts += ["--mpi-global-args=--allow-run-as-root --tag-output"]
        command = [sys.executable, "-m", "layermark", "launch", "--launcher", "builtin", *counts, *program]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, env={**layermark.environment, **variables}, **pipes))
        return started[-1]

    yield start
    for each in started:
        if each.poll() is None:
            each.terminate()  # which ends its instances and their ranks
            each.communicate()


def finished(process):
    stdout, stderr = process.communicate(timeout=300)
    return Finished(process.returncode, stdout, stderr)


def lines_of(output, rank):
    tag = f"[1,{rank}]<stdout>:"
    return [line.removeprefix(tag) for line in output.splitlines() if line.startswith(f"{tag}step:")]


def arrays(folder, update):
    return safetensors.read(folder / "ckpt" / f"ckpt-{update}.safetensors")


def test_two_instances_of_two_stages_and_the_same_run_gone_on_with(train, layermark, tmp_path):
    done = finished(train(f"{RECIPE} {STAGES} --iterations 6"))
    assert 0 == done.status, done.stdout[-2000:] + done.stderr
    assert "2 x 2 ranks train together on PyTorch" in done.stdout
    assert 3 == len(lines_of(done.stdout, 0)) == len(lines_of(done.stdout, 1))
    (document,) = layermark.kept()
    assert document["verified"]["ok"] and document["communication"]["identical"]
    assert 2 == len(document["pipeline"]["stages"]) and document["lanes"]
    assert {"instances": 2, "replicas": 2, "stages": 2, "micro_batches": 1} == document["spec"]["plan"]

    (folder,) = (path.parent for path in tmp_path.glob("*/arguments.json"))
    expected = arrays(folder, 6)
    for path in (folder / "ckpt").glob("ckpt-6*"):
        path.unlink()
    again = finished(train(f"--restore-path {folder}"))
    assert 0 == again.status, again.stdout[-2000:] + again.stderr
    assert "Restoring training from latest checkpoint:" in again.stdout
    found = arrays(folder, 6)
    assert_same(expected, found)


def test_a_rank_that_is_killed_ends_all_and_the_last_checkpoint_is_whole(train, tmp_path):
    process = train(f"{RECIPE} {STAGES} --iterations {LONG}")
    ranks = ranks_at_work(process)
    os.kill(ranks[-1], signal.SIGKILL)
    assert "killed by signal SIGKILL" in ended(process, SOON_S)
    folder = folder_with_a_whole_checkpoint(tmp_path)
    if FULL:
        goes_on_as_if_nothing_had_happened(train, folder, LONG)


def folder_with_a_whole_checkpoint(logs):
    """The folder of a run that has failed: its last checkpoint holds the arrays of its first, all of finite numbers."""
    (folder,) = (path.parent for path in logs.glob("*/arguments.json"))
    last = max(json.loads(path.read_text())["update"] for path in (folder / "ckpt").glob("ckpt-*.json"))
    first, found = arrays(folder, 0), arrays(folder, last)
    assert last > 0
    assert {name: each.shape for name, each in first.items()} == {name: each.shape for name, each in found.items()}
    assert all(np.isfinite(each).all() for each in found.values())
    return folder


def goes_on_as_if_nothing_had_happened(train, folder, updates):
    """The run that was killed, gone on with, and one that was never interrupted come to the same weights."""
    again = finished(train(f"--restore-path {folder}"))
    assert 0 == again.status, again.stdout[-2000:] + again.stderr
    whole = finished(train(f"{RECIPE} {STAGES} --iterations {updates}"))
    assert 0 == whole.status, whole.stdout[-2000:] + whole.stderr
    (other,) = (path.parent for path in folder.parent.glob("*/arguments.json") if path.parent != folder)
    assert_same(arrays(other, updates), arrays(folder, updates))


def assert_same(expected, found):
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_a_rank_that_hangs_is_named_and_ends_all_and_the_last_checkpoint_is_whole(train, tmp_path):
    process = train(f"{RECIPE} {STAGES} --iterations {ENDLESS}", LAYERMARK_LEAST_WAIT="5s")
    ranks = ranks_at_work(process)
    os.kill(ranks[-1], signal.SIGSTOP)
    said = ended(process, HUNG_S)
    # It trains or saves a checkpoint when it is stopped.
    assert re.search(r"hung: no answer to '(train|save)' within", said), said
    assert "hangs: it is stopped (state T)" in said
    folder_with_a_whole_checkpoint(tmp_path)


OUT_OF_MEMORY = """
import os
from pathlib import Path
import layermark.backends._led as led

works = led.LedProgram._run_turns


def run_turns(self, batches):
    if self._group.rank == 3 and Path(os.environ["FULL_MEMORY"]).exists():
        raise MemoryError("planted")
    works(self, batches)


led.LedProgram._run_turns = run_turns
"""


def test_a_rank_without_memory_ends_all_and_the_last_checkpoint_is_whole(train, layermark, tmp_path):
    """The last rank: it follows the first one, which nobody has to ask for it to be noticed."""
    full, folder = tmp_path / "full", tmp_path / "planted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(OUT_OF_MEMORY)
    path = os.pathsep.join([str(folder), layermark.environment["PYTHONPATH"]])
    process = train(f"{RECIPE} {STAGES} --iterations {ENDLESS}", PYTHONPATH=path, FULL_MEMORY=str(full))
    ranks_at_work(process)
    full.touch()
    assert "memory" in ended(process, SOON_S)
    folder_with_a_whole_checkpoint(tmp_path)


def ranks_at_work(process):
    """The ranks of a run that has begun to train."""
    assert any("iteration:      4" in line for line in process.stdout), process.stderr.read()[-2000:]
    found = workers_of(process.pid)
    assert 4 == len(found), found
    return found


def ended(process, soon_s):
    """What a run said that has failed, soon and with nobody left behind."""
    began = time.monotonic()
    stdout = process.stdout.read()
    assert 1 == process.wait(60) and time.monotonic() - began < soon_s
    assert not workers_of(process.pid)
    return stdout + process.stderr.read()


def workers_of(launcher):
    """The workers of all instances: processes of this package below a launcher."""
    table = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()[1:]]
    below = {str(launcher)}
    for _ in range(6):
        below |= {pid for pid, parent, _ in rows if parent in below}
    return [int(pid) for pid, _, args in rows if pid in below and "layermark.worker" in args and is_rank(pid)]


def is_rank(pid):
    """Whether it is one of several ranks, and neither reference nor probe."""
    try:
        return b"LAYERMARK_MEMORY_SHARE=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


REPLICAS = "--model resnet --model-size 8 --dataset cifar-10 --generated-data --batch-size 1 --precision 32.32"
REPLICAS += (
    " --no-validation --optimiser momentum --batches-per-step 2 --log-freq 2 --ckpts-per-epoch 10000 --backend torch"
)


@pytest.mark.skipif(not FULL, reason="four ranks; LAYERMARK_TEST_FULL=1 runs it")
def test_two_instances_of_two_replicas(train, layermark, tmp_path):
    done = finished(train(f"{REPLICAS} --iterations 4", replicas=4, stages=1))
    assert 0 == done.status, done.stdout[-2000:] + done.stderr
    assert 2 == len(lines_of(done.stdout, 0)) == len(lines_of(done.stdout, 1))
    (document,) = layermark.kept()
    assert document["verified"]["ok"] and document["communication"]["identical"]
    assert {"instances": 2, "replicas": 4, "stages": 1, "micro_batches": 1} == document["spec"]["plan"]
    assert 4 == document["communication"]["replicas"]
    (path,) = tmp_path.glob("*/arguments.json")
    found = json.loads(path.read_text())
    assert (2, 4, 2, 4) == tuple(
        found[name] for name in ("replicas", "total_replicas", "instances", "global_batch_size")
    )


def distributed(layermark, folder, addresses, on=lambda index, command: command, words="--iterations 4"):
    """`train.py --distributed` on workers at these addresses, each with the TF_CONFIG of its place."""
    own = f"{REPLICAS} --gradient-accumulation-count 2 --distributed --log-dir {folder} {words}"
    started = []
    for index in range(len(addresses)):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        command = on(index, [sys.executable, str(TRAIN), *own.split()])
        environment = {**layermark.environment, "TF_CONFIG": json.dumps(config)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
    try:
        return [finished(each) for each in started]
    finally:
        for each in started:
            each.kill()


def assert_trained_together(layermark, done):
    assert [0, 0] == [each.status for each in done], done[0].stdout[-2000:] + done[0].stderr + done[1].stderr
    (document,) = layermark.kept()
    assert document["verified"]["ok"] and document["communication"]["identical"]
    assert (2, 2) == (document["communication"]["replicas"], document["spec"]["plan"]["instances"])


@pytest.mark.skipif(not FULL, reason="one door more to the same ranks; LAYERMARK_TEST_FULL=1 runs it")
def test_two_ranks_by_tf_config_on_one_host(layermark, tmp_path):
    with Ports(2) as ports:
        addresses = ports.addresses()
    done = distributed(layermark, tmp_path, addresses)
    assert_trained_together(layermark, done)
    assert 2 == sum(line.startswith("step:") for line in done[0].stdout.splitlines())


@pytest.mark.skipif(not FULL, reason="two hosts made of network namespaces; LAYERMARK_TEST_FULL=1 runs it")
def test_two_ranks_by_tf_config_on_two_hosts(layermark, hosts, tmp_path):
    """The names of these hosts are known to nobody, not even to themselves."""
    addresses = [f"{hosts.addresses[host]}:23456" for host in "ab"]
    assert_trained_together(
        layermark, distributed(layermark, tmp_path, addresses, lambda index, command: hosts.on("ab"[index], *command))
    )


@pytest.mark.skipif(not FULL, reason="one door more to the same ranks; LAYERMARK_TEST_FULL=1 runs it")
def test_stages_are_processes_without_a_launcher(layermark, tmp_path):
    words = f"{RECIPE} {STAGES} --stages-as-processes --iterations 4 --log-dir {tmp_path}"
    command = [sys.executable, str(TRAIN), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=layermark.environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr
    (document,) = layermark.kept()
    assert document["verified"]["ok"] and 2 == document["pipeline"]["ranks"] == len(document["pipeline"]["stages"])


@pytest.mark.timeout(900)
@pytest.mark.skipif(not FULL, reason="four runs; LAYERMARK_TEST_FULL=1 runs it")
def test_two_instances_are_one_process_with_their_global_batch(layermark, tmp_path):
    """Batch 1 and accumulation: the same losses and accuracies, the same weights in both, and again when restored."""
    both, alone = tmp_path / "both", tmp_path / "alone"
    for folder in (both, alone):
        folder.mkdir()
    with Ports(2) as ports:
        addresses = ports.addresses()
    done = distributed(layermark, both, addresses, words="--iterations 6")
    assert_trained_together(layermark, done)
    words = f"{REPLICAS} --gradient-accumulation-count 4 --iterations 6 --log-dir {alone}"
    command = [sys.executable, str(TRAIN), *words.split()]
    single = subprocess.run(command, cwd=alone, env=layermark.environment, capture_output=True, text=True, check=False)
    assert 0 == single.returncode, single.stderr
    assert figures(single.stdout) == figures(done[0].stdout) == figures(done[1].stdout) != []

    (folder,) = (path.parent for path in both.glob("*/arguments.json"))
    expected = arrays(folder, 6)
    for path in (folder / "ckpt").glob("ckpt-6*"):
        path.unlink()
    again = distributed(layermark, both, addresses, words=f"--iterations 6 --restore-path {folder}")
    assert [0, 0] == [each.status for each in again], again[0].stdout[-2000:] + again[0].stderr
    assert_same(expected, arrays(folder, 6))


def figures(output):
    """Loss, to two places, and accuracy of every line."""
    return [
        (round(float(words[0]), 2), words[1])
        for words in re.findall(r"loss: +([0-9.]+), top-1 accuracy: +([0-9.]+)%", output)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--shards 3 --pipeline --pipeline-splits b2/0/relu", "1 names for 3 shards, expected 2"),
        ("--shards 2 --pipeline --pipeline-splits b9/0/relu", "b9/0/relu"),
        (f"{STAGES} --gradient-accumulation-count 1", "needs as many batches as stages"),
        (f"{STAGES} --available-memory-proportion 0.1 0.2 0.3", "two per shard"),
        ("--stages-as-processes", "add --pipeline, or --replicas N"),
    ],
)
def test_wrong_plans_fail_in_one_line_before_anything_starts(layermark, words, said, tmp_path):
    command = [sys.executable, str(TRAIN), *f"{RECIPE} {words} --iterations 2".split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=layermark.environment, check=False)
    assert 2 == done.returncode and said in done.stderr and 1 == len(done.stderr.splitlines()), done.stderr
