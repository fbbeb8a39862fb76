"""The life of a JAX program: ring, outputs, weights, one update, the compiled loop, types, threads."""

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

jax = pytest.importorskip("jax")
compiled = pytest.importorskip("layermark.backends.jax.compiled")

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


def spec_of(workload: str, **changes: Any) -> Spec:
    """A small measurement of a layer."""
    params = SMALL[workload] | changes.pop("params", {})
    facts = {"batch_size": 3, "execution": "jit", "threads": 2, "learning_rate": 0.5} | changes
    return Spec(workload=workload, backend="jax", params=params, **facts)


def prepared(spec: Spec) -> tuple[Any, Task]:
    """The program and its task."""
    task = task_of(spec)
    return backend("jax").prepare(spec, task), task


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
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("batches_per_step", [1, 4], ids=["calls", "loop"])
@pytest.mark.parametrize("mode", ["infer", "eval"])
@pytest.mark.parametrize("workload", LAYERS)
def test_ring_is_walked_in_order(workload: str, mode: str, batches_per_step: int) -> None:
    program, task = prepared(spec_of(workload, mode=mode, ring=3, batches_per_step=batches_per_step))
    for index in (0, 1, 2, 0):
        program.run(1)
        close(program.outputs(), oracle(task, index))
    program.run(5)
    close(program.outputs(), oracle(task, 2))
    program.run(2)
    close(program.outputs(), oracle(task, 1))


@pytest.mark.parametrize("workload", LAYERS)
def test_weights_come_back_as_they_went_in(workload: str) -> None:
    program, task = prepared(spec_of(workload))
    other = {name: values * 0.5 + 0.25 for name, values in task.weights().items()}
    program.run(2)
    program.load(other)
    close(program.weights(), other)
    program.run(1)
    close(program.outputs(), oracle(task, 0, other))


@pytest.mark.parametrize("workload", LAYERS)
def test_one_update_follows_the_reference_gradients(workload: str) -> None:
    torch = pytest.importorskip("torch")
    program, task = prepared(spec_of(workload, mode="train"))
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


def test_training_leaves_the_loaded_arrays_alone() -> None:
    program, task = prepared(spec_of("dense", mode="train"))
    given = {name: values.copy() for name, values in task.weights().items()}
    program.load(given)
    program.run(3)
    assert all(np.array_equal(given[name], values) for name, values in task.weights().items())


@pytest.mark.parametrize("workload", ["dense", "lstm"])
def test_the_loop_trains_as_single_steps_do(workload: str) -> None:
    looped, task = prepared(spec_of(workload, mode="train", ring=3, batches_per_step=7))
    single, _ = prepared(spec_of(workload, mode="train", ring=3))
    assert looped.settings["loop"] == "compiled while loop"
    assert single.settings["loop"] == "calls"
    for program in (looped, single):
        program.run(7)
    close(looped.outputs(), single.outputs())
    close(looped.weights(), dict(single.weights()))
    assert np.abs(looped.weights()[f"{workload}/weight"] - task.weights()[f"{workload}/weight"]).max() > 0


def test_rate_and_trip_count_are_arguments() -> None:
    program, task = prepared(spec_of("dense", mode="train", batches_per_step=4))
    program.run(4)
    counts = program._step._cache_size(), program._loop._cache_size()
    for rate, batches in ((1.0, 1), (0.25, 2), (1e-3, 9), (1e-30, 1)):
        program.load(task.weights())
        program.learning_rate = rate
        program.run(batches)
    assert (program._step._cache_size(), program._loop._cache_size()) == counts == (1, 1)


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_loop_does_all_of_its_work(mode: str) -> None:
    """Twenty times the batches take about twenty times as long, and no longer than the machine could make them."""
    params = {"size": 512}
    program, task = prepared(spec_of("dense", mode=mode, batch_size=64, batches_per_step=400, params=params))

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


def test_auto_records_the_trial_of_the_loop() -> None:
    settings = prepared(spec_of("lstm", execution="auto", batches_per_step=50))[0].settings
    assert settings["loop"] in ("compiled while loop", "calls")
    assert "compiled while loop" in settings["loop_trial"]
    assert "calls" in settings["loop_trial"]


@pytest.mark.parametrize("changes", [{"data": "generated"}, {"cache": "cold"}], ids=str)
def test_no_loop_where_the_host_acts_before_every_batch(changes: dict[str, Any]) -> None:
    program, task = prepared(spec_of("dense", batches_per_step=4, **changes))
    assert program.settings["loop"] == "calls"
    program.run(6)
    close(program.outputs(), oracle(task, 1))


def test_generated_data_is_copied_for_every_batch() -> None:
    program, task = prepared(spec_of("conv", data="generated", ring=2))
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    program.host[1][0][:] = 0
    program.run(1)
    zeros = {name: np.zeros(values.shape) for name, values in task.batch(1).items()}
    changed = reference.evaluate(task.graph, reference.doubles(task.weights()), zeros)
    close(program.outputs(), changed)


def test_copies_do_not_share_the_memory_of_the_host() -> None:
    from layermark.backends.jax.program import _put

    room = np.zeros(64 + 16, "float32")
    aligned = room[(-room.ctypes.data // 4) % 16 :][:64]  # what XLA would take as it is
    (copy,) = _put((aligned,))
    aligned[0] = 1
    assert float(copy[0]) == 0


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("group_dim", [1, 2])
def test_tuned_formulation_computes_the_same(group_dim: int, mode: str) -> None:
    torch = pytest.importorskip("torch")
    program, task = prepared(spec_of("grouped_conv", formulation="tuned", mode=mode, params={"group_dim": group_dim}))
    program.learning_rate = 8.0
    program.run(1)
    assert program.settings["formulation"] == "tuned"
    close(program.outputs(), oracle(task, 0))
    if mode == "train":
        _, gradients = reference.gradients(task.graph, task.weights(), task.batch(0), torch)
        close({name: (task.weights()[name] - each) / 8 for name, each in program.weights().items()}, gradients, 1e-4)


@pytest.mark.parametrize("precision", ["16.32", "16.16", "bf16.32", "bf16.bf16"])
@pytest.mark.parametrize("workload", ["dense", "conv", "lstm"])
def test_a_type_that_xla_does_not_compute_in_is_refused(workload: str, precision: str) -> None:
    with pytest.raises(Unsupported, match="XLA multiplies in float32 on this cpu, not in"):
        prepared(spec_of(workload, precision=precision))


def test_types_of_products_are_read_from_the_compiled_program() -> None:
    half = jax.numpy.ones((64, 64), "bfloat16")
    text = (
        jax.jit(lambda x: (x.astype("float32") @ x.astype("float32")).astype("bfloat16"))
        .lower(half)
        .compile()
        .as_text()
    )
    assert compiled.multiplied_types(text) == {"float32"}
    assert compiled.other_type(text, np.dtype("float32")) is None


def test_run_returns_when_the_work_is_finished() -> None:
    program, _ = prepared(spec_of("dense", batch_size=256, params={"size": 1024}))
    program.run(4)
    began = time.perf_counter()
    program.run(16)
    ran = time.perf_counter() - began
    began = time.perf_counter()
    program.outputs()
    assert time.perf_counter() - began < max(0.5 * ran, 0.02)


def test_timeline_covers_every_batch() -> None:
    timeline = prepared(spec_of("dense"))[0].run(7)
    assert len(timeline.handed_over) == len(timeline.done) > 0
    assert list(timeline.done) == sorted(timeline.done)
    assert all(one <= other for one, other in zip(timeline.handed_over, timeline.done, strict=True))


def test_settings_say_what_was_built() -> None:
    settings = prepared(spec_of("conv"))[0].settings
    assert settings["layout"] == "NHWC"
    assert settings["execution"] == "jit"
    assert settings["formulation"] == "library"
    assert settings["compute_type"] == settings["weight_type"] == settings["output_type"] == "float32"
    assert settings["subnormals"] == "flush"
    assert "convolution" in settings["kernels"]


@pytest.mark.parametrize(("timesteps", "cell"), [(5, "unrolled"), (20, "scan")])
@pytest.mark.parametrize("form", ["fused", "loop"])
def test_both_forms_are_the_best_loop_there_is(form: str, timesteps: int, cell: str) -> None:
    program, task = prepared(spec_of("lstm", params={"cell": form, "timesteps": timesteps}))
    program.run(1)
    assert program.settings["cell"] == cell
    close(program.outputs(), oracle(task, 0))


@pytest.mark.parametrize(
    ("workload", "changes", "error", "reason"),
    [
        ("lstm", {"device": "ipu"}, Unsupported, "ipu"),
        ("rnn", {"formulation": "tuned"}, Unsupported, "no tuned formulation of rnn on jax"),
        ("dense", {"subnormals": "keep"}, Unsupported, "always flushes"),
        ("dense", {"execution": "eager"}, UserError, "jax knows auto, jit"),
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
spec = Spec(workload="dense", backend="jax", batch_size=128, threads=THREADS)
program = backend("jax").prepare(spec, task(spec))
program.run(10)
before, began = thread_times_ns(), time.perf_counter_ns()
while time.perf_counter_ns() - began < 5e8:
    program.run(5)
gained = [now - before.get(name, 0) for name, now in thread_times_ns().items()]
print(sum(each > 5e6 for each in gained), program.settings["dispatch"])
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_no_more_threads_than_the_budget_are_busy(threads: int) -> None:
    variables = backend("jax").environment(spec_of("dense", threads=threads))
    busy, dispatch = fresh(BUSY.replace("THREADS", str(threads)), **variables).split()
    assert 1 <= int(busy) <= threads
    assert dispatch == "synchronous"


TURNS = """
import time
from layermark.backends.base import backend
from layermark.spec import Spec
from layermark.workloads.base import task
params = {"timesteps": 50, "hidden_size": 128}
spec = Spec(workload="lstm_multi", backend="jax", mode="train", batch_size=1, threads=1, params=params)
program = backend("jax").prepare(spec, task(spec))
program.run(3)
used, began = time.process_time(), time.perf_counter()
while time.perf_counter() - began < 1:
    program.run(1)
print((time.process_time() - used) / (time.perf_counter() - began))
"""


def test_a_program_with_loops_uses_no_more_cpu_time_than_one_thread_has() -> None:
    """XLA moves such a program between two threads, so that their number says nothing; their time does."""
    variables = backend("jax").environment(spec_of("dense", threads=1))
    assert float(fresh(TURNS, **variables)) < 1.1


def test_asking_about_the_backend_imports_no_jax() -> None:
    script = "import sys; from layermark.backends.base import backend; b = backend('jax'); b.installed, b.version"
    assert fresh(f"{script}; print('jax' in sys.modules)") == "False"


def test_load_answers_versions() -> None:
    facts = backend("jax").load()
    assert facts["jax"] == jax.__version__
    assert facts["platform"] == "cpu"
