"""The seeds' programs as several instances: one result of all, who prints what, and what happens when one is killed."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Finished
from contract.covering import FULL
from needed import need

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SOON_S = 10
"""Within which everybody must have ended; a bound, not a speed."""

TIMES = 50 if FULL else 1
FEW = ["--backend", "torch", "--execution", "eager"]
SMALL = ["--size", "64", "--batches-per-step", "200"]
DENSE = ["tensorflow/dense", *FEW, *SMALL, "--steps", "3"]
CNN = ["pytorch_cnns/run_benchmark", *FEW, "--model", "resnet8-cifar", "--data", "generated", "--batch-size", "2"]
CNN += ["--iterations", "4", "--device-iterations", "3"]
VALIDATION = [
    "tensorflow_cnns/validation",
    "--backend",
    "null",
    "--model",
    "resnet",
    "--model-size",
    "8",
    "--dataset",
    "cifar-10",
]
VALIDATION += ["--generated-data", "--batch-size", "100", "--repeat", "2", "--budget", "15s"]


LAUNCHERS = ("mpirun", "builtin")


@pytest.fixture(params=LAUNCHERS)
def poprun(request, layermark, tmp_path):
    """Start a program of the seeds as two instances, on either launcher; afterwards nothing may be left of it."""
    if request.param == "mpirun":
        need(shutil.which("mpirun"), "mpirun: apt-get install openmpi-bin")
    temporary, shared = tmp_path / "temporary", set(os.listdir("/dev/shm"))
    temporary.mkdir()
    port = free_port()
    started = []
    own = {"TMPDIR": str(temporary), "MARK": str(tmp_path), "MASTER_PORT": str(port)}

    def start(name, *arguments, launch=(), env=()):
        counts = ["--num-instances", "2", "--num-replicas", "2", "--mpi-global-args=--allow-run-as-root --tag-output"]
        program = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
        command = [sys.executable, "-m", "layermark", "launch", "--launcher", request.param, *counts, *launch, *program]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**layermark.environment, **own, **dict(env)}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()  # its instances die with it
        process.wait()
    if any(process.returncode < 0 for process in started):
        until(lambda: not marked(tmp_path))
    assert [] == marked(tmp_path)
    assert [] == list(temporary.iterdir())
    assert [] == [name for name in set(os.listdir("/dev/shm")) - shared if not in_use(f"/dev/shm/{name}")]
    with socket.create_server(("127.0.0.1", port)):
        pass  # its port is free again


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def in_use(path):
    """Whether a living process has the file in its memory: then it is of another test."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if path in maps.read_text():
                return True
        except OSError:
            continue
    return not Path(path).exists()


def finished(process):
    stdout, stderr = process.communicate(timeout=240)
    return Finished(process.returncode, stdout, stderr)


def of_rank(output, rank):
    tag = f"[1,{rank}]<stdout>:"
    return [line.removeprefix(tag) for line in output.splitlines() if line.startswith(tag)]


one_launcher = pytest.mark.parametrize("poprun", LAUNCHERS if FULL else ["mpirun"], indirect=True)
"""For what the program does by itself, whoever started it."""


def test_a_layer_has_one_result_of_both_instances(poprun, layermark):
    done = finished(poprun(*DENSE))
    assert 0 == done.status, done.stdout + done.stderr
    assert of_rank(done.stdout, 0) and not of_rank(done.stdout, 1)
    (document,) = layermark.kept()
    assert {"instances": 2, "replicas": 2, "stages": 1, "micro_batches": 1} == document["spec"]["plan"]
    assert [0, 1] == [each["rank"] for each in document["ranks"]]
    assert document["verified"]["ok"] and not document["impossible"]
    assert document["scaling"]["efficiency"] is not None
    assert any("scaling" in line for line in of_rank(done.stdout, 0))


@one_launcher
def test_inference_prints_in_instance_0_only(poprun, layermark):
    done = finished(poprun(*CNN))
    assert 0 == done.status, done.stdout + done.stderr
    lines = of_rank(done.stdout, 0)
    assert 4 == sum("[INFO] [instance1/2] Throughput: " in line for line in lines)
    assert any("num_ipus=2" in line for line in lines)
    assert not of_rank(done.stdout, 1)
    (document,) = layermark.kept()
    assert 4 == document["samples"][0]["items"] // document["samples"][0]["batches"]  # two pictures in each of two


def test_validation_prints_the_rate_of_all_in_every_instance(poprun):
    done = finished(poprun(*VALIDATION))
    assert 0 == done.status, done.stdout + done.stderr
    first, second = (of_rank(done.stdout, rank) for rank in (0, 1))
    assert first == second and any("img/sec" in line for line in first)


@one_launcher
def test_replicas_that_were_typed_are_replaced_with_a_warning(poprun):
    done = finished(poprun(*CNN, "--replicas", "4"))
    assert 0 == done.status, done.stdout + done.stderr
    assert "--replicas 4 is replaced by 1 in each of 2 instances (2 in all)" in done.stdout


def test_devices_of_a_replica_must_be_the_stages_of_the_program(poprun):
    done = finished(poprun(*CNN, launch=["--ipus-per-replica", "2"]))
    assert (2, "", 1) == (done.status, done.stdout, len(done.stderr.splitlines()))
    assert "--ipus-per-replica 2: the program has 1 stage; set --ipus-per-replica 1" in done.stderr


def test_a_wrong_option_is_one_line_an_instance_and_status_2(poprun):
    done = finished(poprun(*DENSE, "--sizee", "3"))
    assert 2 == done.status and "--sizee" in done.stderr


@one_launcher
def test_the_loader_of_all_instances_adds_up(poprun):
    done = finished(
        poprun("pytorch_cnns/host_benchmark", "--data", "generated", "--batch-size", "4", "--budget", "10s")
    )
    assert 0 == done.status, done.stdout + done.stderr
    assert [2, 0] == [sum("Throughput" in line for line in of_rank(done.stdout, rank)) for rank in (0, 1)]
    lines = of_rank(done.stdout, 0)
    pattern = r"  each      ([\d.]+), ([\d.]+) img/sec; instance [01] is the slowest, [\d.]+% behind the fastest"
    for total, each in zip(lines[::2], lines[1::2], strict=True):
        rates = [float(rate) for rate in re.fullmatch(pattern, each).groups()]
        assert pytest.approx(sum(rates), abs=0.2) == float(re.search(r"Throughput: ([\d.]+)", total)[1])


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
@pytest.mark.parametrize("program", ["dense", "host_benchmark"])
def test_other_launchers_start_our_programs_too(launcher, program, layermark, tmp_path):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    starts = {
        "mpirun": ["mpirun", *root, "--oversubscribe", "-np", "2", sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    }
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not on the path; apt-get install openmpi-bin")
    words = {
        "dense": ["tensorflow/dense.py", "--backend", "null", *SMALL, "--steps", "2"],
        "host_benchmark": ["pytorch_cnns/host_benchmark.py", "--data", "generated", "--batch-size", "4"],
    }[program]
    more = ["--budget", "4s"] if program == "host_benchmark" else []
    command = [*starts[launcher], str(BENCHMARKS / words[0]), *words[1:], *more]
    done = subprocess.run(
        command, cwd=tmp_path, env=layermark.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert 2 == done.stdout.count("sec/itr" if program == "dense" else "Throughput: ")
    if program == "dense":
        (document,) = layermark.kept()
        assert 2 == document["spec"]["plan"]["instances"] and [0, 1] == [each["rank"] for each in document["ranks"]]


PHASES = ("start", "build", "timed")
# In the gate each phase once, on one launcher or the other.
KILLED = [
    (launcher, phase, (attempt + place) % 2, attempt)
    for place, phase in enumerate(PHASES)
    for attempt in range(TIMES)
    for launcher in (LAUNCHERS if FULL else LAUNCHERS[place % 2 :][:1])
]
ATTEMPTS = [(launcher, attempt) for launcher in LAUNCHERS for attempt in range(TIMES)] if FULL else [("builtin", 0)]


def begun(poprun, phase, *arguments, env=()):
    """A job that is in this phase: its launcher, and the programs of both instances."""
    # A build of PyTorch takes long enough to be caught in it.
    runtime = ["--backend", "torch", "--execution", "eager"] if phase == "build" else ["--backend", "null"]
    process = poprun("tensorflow/dense", *runtime, *SMALL, "--steps", "1000000", *arguments, env=env)
    line = {"start": "", "build": "Compiling", "timed": "sec/itr"}[phase]
    said = []
    # After the first steps, the ceilings have been read.
    while line and sum(line in each for each in said) < (3 if phase == "timed" else 1):
        said.append(next(process.stdout))
    until(lambda: 2 == len(programs(process.pid)))
    found = programs(process.pid)
    if phase == "build":
        until(lambda: all(map(workers, found)))
        assert not any("Duration" in line for line in said)
    return process, found


@pytest.mark.parametrize(("poprun", "phase", "victim", "attempt"), KILLED, indirect=["poprun"])
def test_an_instance_that_is_killed_ends_the_job(poprun, phase, victim, attempt):
    process, found = begun(poprun, phase)
    os.kill(found[victim], signal.SIGKILL)
    _, stderr = process.communicate(timeout=SOON_S)
    assert 137 == process.returncode
    assert f"poprun: error: instance {victim} was killed by SIGKILL" in stderr


@pytest.mark.parametrize(("poprun", "attempt"), ATTEMPTS, indirect=["poprun"])
def test_a_worker_that_is_killed_ends_the_job(poprun, attempt):
    process, found = begun(poprun, "timed")
    os.kill(workers(found[1])[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=SOON_S)
    assert 1 == process.returncode and "Traceback" not in stderr


@pytest.mark.parametrize(("poprun", "attempt"), ATTEMPTS, indirect=["poprun"])
def test_an_instance_that_hangs_ends_the_job_after_its_time_out(poprun, attempt):
    process, found = begun(poprun, "timed", env={"LAYERMARK_LEAST_WAIT": "2s"})
    os.kill(found[1], signal.SIGSTOP)
    stdout, _ = process.communicate(timeout=2 + 2 + SOON_S)
    assert 1 == process.returncode
    assert re.search(r"FAILED: instance 1 did not reach .* within", stdout)


@one_launcher
def test_an_interruption_while_timed_ends_the_job(poprun):
    process, _ = begun(poprun, "timed")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SOON_S)
    assert 130 == process.returncode


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def marked(folder):
    """The processes whose environment carries this test's mark."""
    return [pid for pid, _, variables in processes() if variables.get(b"MARK") == str(folder).encode()]


def processes():
    """Process, words and variables of everything that runs."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            variables = dict(each.partition(b"=")[::2] for each in (path / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        yield int(path.name), words, variables


def programs(launcher):
    """The processes of the two programs, by instance."""
    found = {}
    for pid, words, variables in processes():
        script = any(word.endswith(b"dense.py") for word in words[1:2])
        if script and b"POPDIST_INSTANCE_INDEX" in variables and descends(pid, launcher):
            found[int(variables[b"POPDIST_INSTANCE_INDEX"])] = pid
    return [found[index] for index in sorted(found)]


def workers(program):
    """The worker processes of an instance."""
    return [pid for pid, words, _ in processes() if b"layermark.worker" in words and descends(pid, program)]


def descends(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
