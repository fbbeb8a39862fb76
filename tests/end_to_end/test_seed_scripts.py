"""The seed scripts, run as they are typed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import PLANTED, Finished
from contract.covering import FULL
from layermark import registry, stats
from layermark.axes import complete
from layermark.backends.base import backend
from layermark.errors import WorkerFailed
from layermark.launch.process import Crew, await_all
from layermark.seeds.scripts import SCRIPTS
from layermark.session.deadline import Deadline
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.spec import Spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAYERS = [name for name in SCRIPTS if name != "tensorflow/hmc"]
POPART_LINE = re.compile(r"^(\S+) +sec/itr\.   (\d+\.\d{6}) items/sec\.$", re.M)
TENSORFLOW_LINE = re.compile(r"^(\S+) +sec/itr\.   (\d+\.\d{6}) items/sec$", re.M)
SMALL = {
    "popart/conv": ["--input-width", "32", "--input-height", "24"],
    "tensorflow/grouped_conv": ["--input-size", "8", "--block-repeats", "2"],
    "tensorflow/lstm_multi": ["--timesteps", "4", "--hidden-size", "8"],
    "tensorflow/dense": ["--size", "16", "--batches-per-step", "10"],
}
TRAINED = (
    "--dataset cifar-10 --model-size 8 --generated-data --backend torch --execution eager --batch-size 2 --threads 1 "
    "--epoch-size 16 --epochs 1 --warmup-epochs 0 --precision 32.32 --no-validation --no-logs --budget 5s"
)
"""A short training run."""


@pytest.fixture
def typed(layermark, tmp_path):
    """Runs `python3 script.py ...` in a folder of its own, or answers the process when it is only started."""

    def start(name, *arguments, only_start=False, patience=240, **environment):
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, arguments)]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**layermark.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if only_start:
            return process
        stdout, stderr = process.communicate(timeout=patience)
        return Finished(process.returncode, stdout, stderr)

    return start


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_help(typed, name, flag):
    finished = typed(name, flag)
    assert 0 == finished.status
    assert finished.stdout.startswith(f"usage: {Path(name).name}.py")


@pytest.mark.parametrize("name", LAYERS)
def test_every_script_prints_its_lines(typed, name):
    finished = typed(name, "--backend", "null", "--steps", "3", *SMALL.get(name, []))
    assert 0 == finished.status, finished.stdout + finished.stderr
    popart = name.startswith("popart")
    lines = (POPART_LINE if popart else TENSORFLOW_LINE).findall(finished.stdout)
    assert 3 == len(lines)
    first = finished.stdout.split("Duration: ")[0].splitlines()[-1]
    assert ("Compiling..." if popart else "Compiling and Warmup...") == first
    assert re.search(r"Duration: \d+\.\d{3} seconds\n\nExecuting\.\.\.\n", finished.stdout)
    assert re.search(r"verified +yes", finished.stdout)


def test_the_rate_is_items_over_time(typed):
    finished = typed(
        "tensorflow/grouped_conv", "--backend", "null", "--batch-size", "2", *SMALL["tensorflow/grouped_conv"]
    )
    seconds, rate = TENSORFLOW_LINE.findall(finished.stdout)[0]
    assert 2 * 1000 * 2 / float(seconds) == pytest.approx(float(rate), rel=0.01)


def test_replicas_multiply_the_items(typed):
    arguments = ["--backend", "torch", "--execution", "eager", "--replicas", "2", "--steps", "2"]
    finished = typed("tensorflow/dense", *arguments, *SMALL["tensorflow/dense"])
    assert 0 == finished.status, finished.stdout + finished.stderr
    seconds, rate = TENSORFLOW_LINE.findall(finished.stdout)[0]
    assert 32 * 10 * 2 / float(seconds) == pytest.approx(float(rate), rel=0.01)


@pytest.mark.parametrize("name", ["popart/lstm", "popart/conv"] if FULL else ["popart/lstm"])
def test_training_falls_to_torch_and_says_so(typed, name):
    arguments = ["--mode", "train", "--recompute", "--steps", "2", "--batches-per-step", "3", *SMALL.get(name, [])]
    finished = typed(name, *arguments)
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert 2 == len(POPART_LINE.findall(finished.stdout))
    assert "training runs on torch instead" in finished.stdout
    assert "torch recompute" in finished.stdout


def test_simulated_options_are_recorded_in_the_result(typed, layermark, tmp_path):
    options = ["--lstm-options", '{"availableMemoryProportion": "0.55"}', "--tensor-tile-mapping", "--shards", "2"]
    finished = typed("popart/lstm", "--backend", "null", "--steps", "2", *options)
    assert 0 == finished.status, finished.stderr
    named = [line for line in finished.stdout.splitlines() if "no effect on this device" in line]
    assert ["Note: no effect on this device: --lstm-options, --tensor-tile-mapping, --shards"] == named
    documents = layermark.kept()
    assert {"availableMemoryProportion": "0.55"} == documents[0]["settings"]["seed"]["lstm_options"]
    assert "python3 lstm.py" in documents[0]["command"]


def test_save_graph_writes_a_model_where_one_stands(typed, tmp_path):
    onnx = pytest.importorskip("onnx")
    finished = typed("popart/lstm", "--backend", "null", "--steps", "1", "--save-graph")
    assert "Saved the graph to model.onnx" in finished.stdout
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"), full_check=True)


def test_a_report_is_a_trace_and_a_summary(typed, tmp_path):
    options = json.dumps({"autoReport.all": "true", "autoReport.directory": "reports"})
    arguments = ["--backend", "torch", "--execution", "eager", "--steps", "1", "--batches-per-step", "2"]
    finished = typed("tensorflow/lstm", *arguments, POPLAR_ENGINE_OPTIONS=options)
    assert 0 == finished.status, finished.stdout + finished.stderr
    trace = json.loads((tmp_path / "reports" / "tensorflow-lstm.trace.json").read_text())
    assert trace["traceEvents"]
    summary = json.loads((tmp_path / "reports" / "tensorflow-lstm.profile.json").read_text())
    assert {"operator", "calls", "seconds", "node"} <= summary["operators"][0].keys()
    assert (tmp_path / "reports" / "tensorflow-lstm.profile.txt").read_text().startswith("operator")


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino", "jax", "tensorflow"])
def test_report_is_a_single_batch(typed, tmp_path, name):
    if not backend(name).installed:
        pytest.skip(f"needs {name}")
    finished = typed("popart/lstm", "--backend", name, "--report")
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert " Batches per Step n/a." in finished.stdout
    assert 1 == len(POPART_LINE.findall(finished.stdout))
    assert json.loads((tmp_path / "popart-lstm.trace.json").read_text())["traceEvents"]
    operators = json.loads((tmp_path / "popart-lstm.profile.json").read_text())["operators"]
    assert 0 < sum(each["seconds"] for each in operators)


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"] if FULL else ["torch"])
def test_a_report_of_a_program_that_is_no_network(typed, tmp_path, name):
    if not backend(name).installed:
        pytest.skip(f"needs {name}")
    options = json.dumps({"autoReport.all": "true", "autoReport.directory": "."})
    arguments = ["--backend", name, "--steps", "1", "--hmc-steps", "500", "--budget", "50s"]
    finished = typed("tensorflow/hmc", *arguments, POPLAR_ENGINE_OPTIONS=options)
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert json.loads((tmp_path / "tensorflow-hmc.trace.json").read_text())["traceEvents"]
    operators = json.loads((tmp_path / "tensorflow-hmc.profile.json").read_text())["operators"]
    assert 0 < sum(each["seconds"] for each in operators)


DENSE = "tensorflow/dense --size 16 --batches-per-step 4 --steps 2"
RESNET = "tensorflow_cnns/train --dataset cifar-10 --generated-data --model-size 8 --batch-size 4 --iterations 4"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("loop_skips", DENSE),
        ("loop_skips", f"{DENSE} --train"),
        ("loop_forgets", f"{DENSE} --train"),
        ("loop_stale", RESNET),
    ],
)
def test_a_loop_that_is_right_for_one_batch_only_fails(typed, layermark, name, command):
    finished = typed(*command.split(), "--backend", name)
    assert 1 == finished.status, finished.stderr
    (found,) = layermark.kept()
    assert "failed" == found["status"]
    assert re.search(r"updates in one call|of input \d", found["verified"]["worst"])


@pytest.mark.alone
def test_a_budget_ends_in_time_with_what_was_measured(typed):
    began = time.monotonic()  # without a budget it would take hours
    arguments = ["--backend", "torch", "--execution", "eager", "--batch-size", "64", "--batches-per-step", "1000000"]
    finished = typed("tensorflow/lstm", *arguments, "--budget", "15s")
    assert time.monotonic() - began < 30
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert "Shortened to fit the budget of 15s" in finished.stdout
    # A machine that others slow down meanwhile may not get through the first step; then that is said.
    nothing = "Not measured: the budget was used up before the first step"
    assert TENSORFLOW_LINE.findall(finished.stdout) or nothing in finished.stdout


def test_a_budget_ends_in_time_even_if_a_worker_hangs(typed):
    """Even in the first batches, which may take longer than the budget."""
    began = time.monotonic()
    finished = typed("tensorflow/dense", "--backend", "hangs", "--budget", "8s", LAYERMARK_LEAST_WAIT="5s")
    assert time.monotonic() - began < 40
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert "Not measured: the budget was used up before the first step" in finished.stdout


@pytest.fixture
def planted(monkeypatch):
    """Planted backends are found in this process and in its workers; afterwards they are forgotten."""
    monkeypatch.syspath_prepend(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(PLANTED), prepend=os.pathsep)
    registry.modules.cache_clear()
    yield
    registry.modules.cache_clear()


@pytest.mark.usefixtures("planted")
def test_a_budget_ends_every_wait():
    """For ranks, the reference and the probes alike."""
    began = time.monotonic()
    with Crew() as crew:
        shared = Resources.of(crew, Deadline(0.1), 600.0)  # no runtime is imported sooner
        team = Team(complete(Spec(workload="dense", backend="hangs")), shared)
        assert not team.prepare() and "budget" == team.finish().code
        with pytest.raises(WorkerFailed, match="within"):
            shared.oracle.answer(complete(Spec(workload="conv", backend="null", seed=987)))
    assert time.monotonic() - began < 60


def test_the_first_rank_that_fails_ends_the_others():
    began = time.monotonic()
    with Crew() as crew:
        first, second = crew.hire({}), crew.hire({})
        os.kill(first.pid, signal.SIGSTOP)
        for worker in (first, second):
            worker.begin("facts")
        os.kill(second.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            await_all([first, second], 600.0)
        assert "SIGKILL" in subprocess_end(first)
    assert time.monotonic() - began < 60


def subprocess_end(worker):
    with pytest.raises(WorkerFailed) as caught:
        worker.call("facts", 1.0)
    return str(caught.value)


def test_deriving_a_document_again_gives_the_same(typed, layermark, monkeypatch):
    """Whatever the numbers need is stored, by every kind of session."""
    quick = ("--backend", "null", "--size", "64", "--time-box", "1s", "--precision-goal", "0.5")
    done = [
        typed("tensorflow/dense", "--backend", "null", "--size", "64", "--steps", "3"),
        layermark("run", "dense", *quick),
        layermark("run", "dense", *quick, "--replicas", "2"),
    ]
    if backend("torch").installed:
        done.append(typed("tensorflow_cnns/train", *TRAINED.split()))
    before = layermark.kept()
    assert [("ok", "")] * len(done) == [(each["status"], each["reason"]) for each in before], done
    monkeypatch.setattr(stats, "DERIVED_VERSION", stats.DERIVED_VERSION + 1)
    assert before == layermark.kept()


def test_a_worker_that_hung_says_so_whenever_it_is_asked():
    with Crew() as crew:
        worker = crew.hire({})
        os.kill(worker.pid, signal.SIGSTOP)
        for do in ("verify", "facts"):
            with pytest.raises(WorkerFailed, match="no answer to 'verify' within"):
                worker.call(do, 0.1)


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("popart/lstm", "--simulation", "lstm.py: error: --simulation: there is no simulated device"),
        ("tensorflow/rnn", "--shards 2", "rnn.py: error: --shards 2: sharding is not implemented"),
        ("popart/lstm", "--lstm-options {", "lstm.py: error: --lstm-options {: expected a JSON object"),
        ("popart/conv", "--kernel-size 9999", "conv.py: error: conv: conv2d"),
        ("tensorflow/gru", "--execution no-such --backend torch", "gru.py: error: "),
    ],
)
def test_wrong_input_is_one_line_and_status_2(typed, name, arguments, line):
    finished = typed(name, *arguments.split())
    assert 2 == finished.status
    assert finished.stderr.startswith(line)
    assert 1 == len(finished.stderr.splitlines())


def test_a_wrong_store_costs_no_measurement(typed, tmp_path):
    (tmp_path / "notes.txt").write_text("no database" * 100)
    finished = typed("tensorflow/dense", "--backend", "null", "--store", tmp_path / "notes.txt")
    assert (2, "") == (finished.status, finished.stdout)
    assert 1 == len(finished.stderr.splitlines())


def test_the_summary_names_the_form_of_a_recurrent_layer(typed):
    few = ["--backend", "torch", "--execution", "eager", "--steps", "1", "--batches-per-step", "2"]
    assert "  cell      loop" in typed("tensorflow/lstm", *few).stdout
    assert "  cell      fused" in typed("tensorflow/lstm", *few, "--popnn").stdout


def test_more_copies_than_threads_are_named(typed):
    few = ["--backend", "torch", "--execution", "eager", "--steps", "2", "--batches-per-step", "50"]
    finished = typed("tensorflow/dense", *few, "--size", "64", "--threads", "1", "--replicas", "3")
    assert 0 == finished.status, finished.stdout + finished.stderr
    assert "warning   3 copies of one thread each share a budget of 1" in finished.stdout


def test_interrupted_leaves_no_process(typed):
    process = typed(
        "tensorflow/dense",
        "--backend",
        "torch",
        "--execution",
        "eager",
        "--batches-per-step",
        "10000000",
        only_start=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("This run will take"):
                break
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        assert children
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(20)
        told = process.stderr.read().splitlines()
        assert ["dense.py: interrupted; what was not finished is not kept"] == told
        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    finally:
        process.kill()
        process.communicate()
