"""What only JAX does: the compiled loop and its trial, tuned convolutions, types that XLA computes in."""

from __future__ import annotations

import numpy as np
import pytest

from contract.cases import EVERY_GROUPED, ROWS, Case, case
from contract.programs import JAX, close, fresh, oracle, slopes
from contract.runtimes import RUNTIMES_UNDER_TEST
from layermark import ops
from layermark.backends.base import backend
from layermark.errors import Unsupported
from layermark.workloads.base import Task

jax = pytest.importorskip("jax")
compiled = pytest.importorskip("layermark.backends.jax.hlo")
prepared = JAX.prepared


@pytest.mark.parametrize("workload", ["dense", "lstm"])
def test_single_batches_a_step_are_calls(workload: str) -> None:
    program, task = prepared(workload, ring=3)
    assert program.settings["loop"] == "calls"
    handed_over, done = program.run(5)
    assert len(handed_over) == len(done) == 5
    close(program.outputs(), oracle(task, 1))
    assert prepared(workload, batches_per_step=4)[0].settings["loop"] == "compiled while loop"


@EVERY_GROUPED
def test_grouped_convolutions_can_be_tuned(each: Case) -> None:
    from layermark.backends.jax import convolution

    assert convolution.tunable(each.op, 6)


def test_names_are_stamped_into_the_compiled_program() -> None:
    task = Task(case(ops.Dense(5), ROWS).graph, 7, 1)
    net = RUNTIMES_UNDER_TEST["jax"]._network(task.graph, "infer", "library")  # type: ignore[attr-defined]
    program = jax.jit(net.infer).lower(net.hold(task.weights()), *net.feed(task.batch(0))).compile()
    assert "b0/the-op" in program.as_text()


def test_rate_and_trip_count_are_arguments() -> None:
    program, task = prepared("dense", mode="train", batches_per_step=4)
    program.run(4)
    counts = program._step._cache_size(), program._loop._cache_size()
    for rate, batches in ((1.0, 1), (0.25, 2), (1e-3, 9), (1e-30, 1)):
        program.load(task.weights())
        program.learning_rate = rate
        program.run(batches)
    assert (program._step._cache_size(), program._loop._cache_size()) == counts == (1, 1)


def test_auto_records_the_trial_of_the_loop() -> None:
    settings = prepared("lstm", execution="auto", batches_per_step=50)[0].settings
    assert settings["loop"] in ("compiled while loop", "calls")
    assert "compiled while loop" in settings["loop_trial"]
    assert "calls" in settings["loop_trial"]


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
    program, task = prepared("grouped_conv", formulation="tuned", mode=mode, params={"group_dim": group_dim})
    program.learning_rate = 8.0
    program.run(1)
    assert program.settings["formulation"] == "tuned"
    close(program.outputs(), oracle(task, 0))
    if mode == "train":
        _, gradients = slopes(task)
        close({name: (task.weights()[name] - each) / 8 for name, each in program.weights().items()}, gradients, 1e-4)


@pytest.mark.parametrize("precision", ["16.32", "16.16", "bf16.32", "bf16.bf16"])
@pytest.mark.parametrize("workload", ["dense", "conv", "lstm"])
def test_a_type_that_xla_does_not_compute_in_is_refused(workload: str, precision: str) -> None:
    with pytest.raises(Unsupported, match="XLA multiplies in float32 on this cpu, not in"):
        prepared(workload, precision=precision)


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


def test_settings_say_what_was_built() -> None:
    settings = prepared("conv")[0].settings
    assert settings["layout"] == "NHWC"
    assert settings["execution"] == "jit"
    assert settings["formulation"] == "library"
    assert settings["compute_type"] == settings["weight_type"] == settings["output_type"] == "float32"
    assert settings["subnormals"] == "flush"
    assert "convolution" in settings["kernels"]


@pytest.mark.parametrize(("timesteps", "cell"), [(5, "unrolled"), (20, "scan")])
@pytest.mark.parametrize("form", ["fused", "loop"])
def test_both_forms_are_the_best_loop_there_is(form: str, timesteps: int, cell: str) -> None:
    program, task = prepared("lstm", params={"cell": form, "timesteps": timesteps})
    program.run(1)
    assert program.settings["cell"] == cell
    close(program.outputs(), oracle(task, 0))


@pytest.mark.parametrize(("timesteps", "cell"), [(5, "unrolled"), (20, "scan")])
@pytest.mark.parametrize("workload", ["rnn", "lstm"])
def test_tuned_training_differentiates_the_loop_at_once(workload: str, timesteps: int, cell: str) -> None:
    program, task = prepared(workload, formulation="tuned", mode="train", params={"timesteps": timesteps})
    assert program.settings["cell"] == f"{cell}, differentiated at once"
    program.learning_rate = 1.0
    program.run(1)
    _, gradients = slopes(task)
    close({name: task.weights()[name] - each for name, each in program.weights().items()}, gradients, 1e-4)


@pytest.mark.parametrize(("workload", "mode", "phase"), [("lstm", "infer", "inference"), ("gru", "train", "training")])
def test_cells_without_a_tuned_formulation_say_so(workload: str, mode: str, phase: str) -> None:
    with pytest.raises(Unsupported, match=f"no tuned formulation of {workload} on jax in {phase}"):
        prepared(workload, formulation="tuned", mode=mode)


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
while time.perf_counter() - began < 0.7:
    program.run(1)
print((time.process_time() - used) / (time.perf_counter() - began), program.settings["dispatch"])
"""


def test_a_program_with_loops_uses_no_more_cpu_time_than_one_thread_has() -> None:
    """XLA moves such a program between two threads, so that their number says nothing; their time does."""
    variables = backend("jax").environment(JAX.spec("dense", threads=1))
    share, dispatch = fresh(TURNS, **variables).split()
    assert float(share) < 1.1
    assert dispatch == "synchronous"


def test_the_platform_is_the_cpu() -> None:
    assert backend("jax").load()["platform"] == "cpu"


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_call_has_done_its_work_since_what_it_reads_is_there(mode: str) -> None:
    """A call whose arguments are still on their way returns at once, whatever was said about dispatch."""
    program, task = JAX.prepared(params={"size": 4096}, ring=2, mode=mode)
    for turn in range(5):
        program.load(task.weights())
        program.learning_rate = 0.01 * turn
        assert all(each.is_ready() for each in jax.tree.leaves((program._held, program._resident)))
        program.run(1)
        assert all(each.is_ready() for each in jax.tree.leaves((program._held, program._last)))
