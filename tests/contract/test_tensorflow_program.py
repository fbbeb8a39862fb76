"""The life of a TensorFlow program: ring, outputs, weights, one update, the loop in one call, types, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from layermark import reference
from layermark.backends.base import backend
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.workloads.base import Task
from layermark.workloads.base import task as task_of

pytest.importorskip("tensorflow")

SMALL: dict[str, dict[str, Any]] = {
    "dense": {"size": 24},
    "conv": {"input_height": 9, "input_width": 11, "filter_number": 4},
    "grouped_conv": {"input_size": (8, 8), "filter_in": 8, "filter_out": 8, "block_repeats": 2, "group_dim": 2},
    "rnn": {"hidden_size": 12},
    "gru": {"hidden_size": 12},
    "lstm": {"hidden_size": 12},
    "lstm_multi": {"hidden_size": 12, "timesteps": 6},
}
LAYERS = list(SMALL)
EXECUTIONS = pytest.mark.parametrize("execution", ["function", "xla"])


def spec_of(workload: str, **changes: Any) -> Spec:
    """A small measurement of a layer."""
    params = SMALL[workload] | changes.pop("params", {})
    facts = {"batch_size": 3, "execution": "function", "threads": 2, "learning_rate": 0.5} | changes
    return Spec(workload=workload, backend="tensorflow", params=params, **facts)


def prepared(spec: Spec) -> tuple[Any, Task]:
    """The program and its task."""
    task = task_of(spec)
    return backend("tensorflow").prepare(spec, task), task


def oracle(task: Task, index: int, weights: Any = None) -> dict[str, Any]:
    """The reference's outputs for one input of the ring."""
    return reference.evaluate(
        task.graph, reference.doubles(weights or task.weights()), reference.doubles(task.batch(index))
    )


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Every array equal up to a share of its size."""
    assert set(actual) == set(expected)
    for name, wanted in expected.items():
        assert actual[name].shape == np.shape(wanted), name
        assert np.abs(actual[name] - wanted).max() <= tolerance * np.abs(wanted).max() + 1e-12, name


def fresh(script: str, **variables: str) -> str:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@EXECUTIONS
@pytest.mark.parametrize("mode", ["infer", "eval"])
@pytest.mark.parametrize("workload", LAYERS)
def test_ring_is_walked_in_order(workload: str, mode: str, execution: str) -> None:
    program, task = prepared(spec_of(workload, mode=mode, ring=3, execution=execution))
    for index in (0, 1, 2, 0):
        program.run(1)
        close(program.outputs(), oracle(task, index))
    program.run(5)
    close(program.outputs(), oracle(task, 2))
    program.run(2)
    close(program.outputs(), oracle(task, 1))


def test_inputs_too_large_to_copy_are_switched_between() -> None:
    program, task = prepared(spec_of("dense", batch_size=16, params={"size": 8, "input_size": 2048}, ring=3))
    for batches, index in ((2, 1), (3, 1), (5, 0)):
        program.run(batches)
        close(program.outputs(), oracle(task, index))


@pytest.mark.parametrize("workload", LAYERS)
def test_weights_come_back_as_they_went_in(workload: str) -> None:
    program, task = prepared(spec_of(workload))
    other = {name: values * 0.5 + 0.25 for name, values in task.weights().items()}
    program.run(2)
    program.load(other)
    close(program.weights(), other)
    for index in (0, 1):
        program.run(1)
        close(program.outputs(), oracle(task, index, other))


@EXECUTIONS
@pytest.mark.parametrize("workload", LAYERS)
def test_one_update_follows_the_reference_gradients(workload: str, execution: str) -> None:
    torch = pytest.importorskip("torch")
    program, task = prepared(spec_of(workload, mode="train", execution=execution))
    start = task.weights()
    loss, gradients = reference.gradients(task.graph, start, task.batch(0), torch)
    close(program.weights(), start)
    for rate in (32.0, 8.0):  # large, so that differences of fp32 weights show them well
        program.load(start)
        program.learning_rate = rate
        program.run(1)
        assert program.outputs()["loss"].shape == ()
        assert float(program.outputs()["loss"]) == pytest.approx(loss, rel=1e-5)
        moved = {name: (start[name] - values) / rate for name, values in program.weights().items()}
        close(moved, gradients, 5e-5)


@EXECUTIONS
@pytest.mark.parametrize("workload", ["dense", "lstm"])
def test_the_loop_trains_as_single_steps_do(workload: str, execution: str) -> None:
    program, task = prepared(spec_of(workload, mode="train", ring=3, execution=execution))
    for _ in range(7):
        program.run(1)
    single = program.outputs(), program.weights()
    program.load(task.weights())
    program.run(7)
    close(program.outputs(), single[0])
    close(program.weights(), single[1])
    assert np.abs(program.weights()[f"{workload}/weight"] - task.weights()[f"{workload}/weight"]).max() > 0


def test_training_leaves_the_loaded_arrays_alone() -> None:
    program, task = prepared(spec_of("dense", mode="train"))
    given = {name: values.copy() for name, values in task.weights().items()}
    program.load(given)
    program.run(3)
    assert all(np.array_equal(given[name], values) for name, values in task.weights().items())


@EXECUTIONS
def test_rate_and_trip_count_are_arguments(execution: str) -> None:
    program, task = prepared(spec_of("dense", mode="train", execution=execution))
    program.run(4)
    graph = program._way.compiled.graph
    operations = len(graph.get_operations())
    for rate, batches in ((1.0, 1), (0.25, 2), (1e-3, 9), (1e-30, 1)):
        program.load(task.weights())
        program.learning_rate = rate
        program.run(batches)
    assert len(graph.get_operations()) == operations


@EXECUTIONS
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_loop_does_all_of_its_work(mode: str, execution: str) -> None:
    """Twenty times the batches take about twenty times as long, and no longer than the machine could make them."""
    program, task = prepared(spec_of("dense", mode=mode, batch_size=64, params={"size": 512}, execution=execution))

    def seconds(batches: int) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            program.run(batches)
            times.append(time.perf_counter() - began)
        return min(times)

    program.run(20)
    few, many = seconds(20), seconds(400)
    assert many > 5 * few
    assert 400 * task.graph.flops(mode) / many < 1e12 * (os.cpu_count() or 1)


def test_auto_records_the_trial() -> None:
    single = prepared(spec_of("lstm", execution="auto"))[0].settings
    assert single["execution"] in ("function", "xla")
    assert single["execution_trial"].count("/s") == 2
    several = prepared(spec_of("lstm", execution="auto", batches_per_step=50))[0].settings
    assert several["loop"] in ("in one call", "separate calls")
    assert several["execution_trial"].count("/s") == 4


@pytest.mark.parametrize("changes", [{"data": "generated"}, {"cache": "cold"}], ids=str)
def test_no_loop_where_the_host_acts_before_every_batch(changes: dict[str, Any]) -> None:
    program, task = prepared(spec_of("dense", batches_per_step=4, **changes))
    assert program.settings["loop"] == "separate calls"
    timeline = program.run(6)
    assert len(timeline.done) == 6
    close(program.outputs(), oracle(task, 1))


def test_generated_data_is_copied_for_every_batch() -> None:
    program, task = prepared(spec_of("conv", data="generated", ring=2))
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    program.host[1][0][:] = 0
    program.run(1)
    zeros = {name: np.zeros(values.shape) for name, values in task.batch(1).items()}
    close(program.outputs(), reference.evaluate(task.graph, reference.doubles(task.weights()), zeros))


@pytest.mark.parametrize("group_dim", [1, 2])
def test_tuned_formulation_computes_the_same(group_dim: int) -> None:
    program, task = prepared(
        spec_of("grouped_conv", formulation="tuned", execution="xla", params={"group_dim": group_dim})
    )
    program.run(1)
    assert program.settings["convolution"] == "taps"
    close(program.outputs(), oracle(task, 0))


@pytest.mark.parametrize(
    ("precision", "compute", "weight"), [("bf16.32", "bfloat16", "float32"), ("16.16", "float16", "float16")]
)
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_lower_types_are_what_is_recorded(precision: str, compute: str, weight: str, mode: str) -> None:
    program, task = prepared(spec_of("dense", precision=precision, execution="auto", mode=mode))
    assert program.settings["compute_type"] == compute
    assert program.settings["weight_type"] == weight
    assert program.settings["execution"] == "function"
    program.run(3)
    assert np.isfinite(next(iter(program.outputs().values()))).all()
    if mode == "infer":
        close(program.outputs(), oracle(task, 2), 5e-2)


def test_run_returns_when_the_work_is_finished() -> None:
    program, _ = prepared(spec_of("dense", batch_size=256, params={"size": 1024}))
    program.run(4)
    began = time.perf_counter()
    program.run(16)
    ran = time.perf_counter() - began
    began = time.perf_counter()
    program.outputs()
    assert time.perf_counter() - began < max(0.5 * ran, 0.02)


def test_timeline_covers_the_call() -> None:
    program, _ = prepared(spec_of("dense"))
    for batches in (1, 7):
        timeline = program.run(batches)
        assert len(timeline.handed_over) == len(timeline.done) == 1
        assert timeline.handed_over[0] <= timeline.done[0]


def test_settings_say_what_was_built() -> None:
    settings = prepared(spec_of("conv"))[0].settings
    assert settings["layout"] == "NHWC"
    assert settings["execution"] == "function"
    assert settings["formulation"] == "library"
    assert settings["convolution"] == "conv2d"
    assert settings["weights"] == "constants"
    assert settings["compute_type"] == settings["weight_type"] == settings["output_type"] == "float32"
    assert settings["subnormals"] == "flush"


def test_nothing_has_run_after_a_load() -> None:
    program, task = prepared(spec_of("dense"))
    program.run(1)
    program.load(task.weights())
    with pytest.raises(RuntimeError, match="no batch"):
        program.outputs()
    program.close()


@pytest.mark.parametrize(
    ("workload", "changes", "error", "reason"),
    [
        ("lstm", {"device": "ipu"}, Unsupported, "ipu"),
        ("rnn", {"formulation": "tuned"}, Unsupported, "no tuned formulation of rnn on tensorflow"),
        ("grouped_conv", {"formulation": "tuned"}, Unsupported, "no tuned formulation of grouped_conv on tensorflow's"),
        ("dense", {"subnormals": "keep"}, Unsupported, "always flush"),
        ("dense", {"precision": "bf16.32", "execution": "xla"}, Unsupported, "float32"),
        ("dense", {"execution": "eager"}, UserError, "tensorflow knows auto, function, xla"),
    ],
)
def test_refusals(workload: str, changes: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        prepared(spec_of(workload, **changes))


BUSY = """
import time
from layermark.backends.base import backend
from layermark.devices.cpu import thread_times_ns
from layermark.spec import Spec
from layermark.workloads.base import task
spec = Spec(workload="grouped_conv", backend="tensorflow", batch_size=2, threads=THREADS, execution="function")
program = backend("tensorflow").prepare(spec, task(spec))
program.run(3)
before, began = thread_times_ns(), time.perf_counter_ns()
while time.perf_counter_ns() - began < 5e8:
    program.run(1)
gained = [now - before.get(name, 0) for name, now in thread_times_ns().items()]
print(sum(each > 0.1 * max(gained) for each in gained))
"""


@pytest.mark.parametrize("threads", sorted({1, len(os.sched_getaffinity(0))}))
def test_no_more_threads_than_the_budget_are_busy(threads: int) -> None:
    variables = backend("tensorflow").environment(spec_of("dense", threads=threads))
    busy = fresh(BUSY.replace("THREADS", str(threads)), **variables)
    assert 1 <= int(busy) <= threads


def test_asking_about_the_backend_imports_no_tensorflow() -> None:
    script = (
        "import sys; from layermark.backends.base import backend; b = backend('tensorflow'); b.installed, b.version"
    )
    assert fresh(f"{script}; print('tensorflow' in sys.modules)") == "False"


def test_load_answers_versions() -> None:
    import tensorflow

    assert backend("tensorflow").load()["tensorflow"] == tensorflow.__version__
