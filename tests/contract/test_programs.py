"""The contract of a program: every layer on every runtime, in every mode, against the float64 reference."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import time
from typing import Any

import numpy as np
import pytest

from conftest import MASK
from contract.covering import covering, product
from contract.programs import (
    JAX,
    LOOPING,
    RECURRENT,
    RUNTIMES,
    SMALL,
    TENSORFLOW_XLA,
    TORCH,
    TRAINING,
    VARIANTS,
    Variant,
    blank,
    close,
    each_of,
    fresh,
    oracle,
    slopes,
)
from layermark import reference
from layermark.backends.base import backend
from layermark.errors import Unsupported, UserError
from layermark.session.threads import over_budget
from layermark.spec import Spec
from layermark.worker.loop import unfinished_share
from layermark.worker.service import UNFINISHED
from layermark.workloads.base import Task

Made = tuple[Any, Task]
MANY = 4


def walks_the_ring(program: Any, task: Task, floor: float = 1e-12) -> None:
    """Single batches and several at once, over a ring of three."""
    for batches, index in ((1, 0), (1, 1), (1, 2), (1, 0), (5, 2), (2, 1)):
        program.run(batches)
        close(program.outputs(), oracle(task, index), floor=floor)


@pytest.fixture(
    scope="module", params=list(itertools.product(VARIANTS, SMALL)), ids=lambda pair: "-".join(map(str, pair))
)
def inferring(request: pytest.FixtureRequest) -> Made:
    """A layer in inference; where the runtime can loop by itself, several batches go into one call of it."""
    variant, workload = request.param
    return variant.prepared(workload, ring=3, batches_per_step=MANY if variant.loops else 1)


def test_ring_is_walked_in_order(inferring: Made) -> None:
    walks_the_ring(*inferring)


def test_weights_come_back_as_they_went_in(inferring: Made) -> None:
    program, task = inferring
    other = {name: values * 0.5 + 0.25 for name, values in task.weights().items()}
    program.run(2)
    program.load(other)
    close(program.weights(), other, 1e-6)
    for index in (0, 1):
        program.run(1)
        close(program.outputs(), oracle(task, index, other))


@pytest.mark.parametrize(
    ("variant", "workload", "losing"),
    product(VARIANTS, SMALL, [("target", "synthetic"), ("seed", "generated")]),
    ids=str,
)
def test_losses_are_those_of_the_reference(variant: Variant, workload: str, losing: tuple[str, str]) -> None:
    loss, data = losing
    many = MANY if variant.loops else 1
    made = variant.prepared(workload, mode="eval", loss=loss, data=data, ring=3, batches_per_step=many)
    walks_the_ring(*made, floor=1e-7)  # a mean of values of either sign may be nearly zero


FORMS: list[tuple[Variant, str, dict[str, Any]]] = [
    *((variant, workload, {}) for variant in TRAINING for workload in SMALL),
    *((TORCH, workload, {"cell": "loop"}) for workload in RECURRENT),
]


@pytest.mark.parametrize(
    ("variant", "workload", "params"),
    FORMS,
    ids=[f"{variant}-{name}{'-loop' if more else ''}" for variant, name, more in FORMS],
)
def test_one_update_follows_the_reference_gradients(variant: Variant, workload: str, params: dict[str, Any]) -> None:
    program, task = variant.prepared(workload, mode="train", params=params)
    start = task.weights()
    loss, gradients = slopes(task)
    close(program.weights(), start)
    for rate in (32.0, 8.0):  # large, so that differences of fp32 weights show them well
        program.load(start)
        program.learning_rate = rate
        program.run(1)
        assert program.outputs()["loss"].shape == ()
        assert float(program.outputs()["loss"]) == pytest.approx(loss, rel=1e-5)
        moved = {name: (start[name] - values) / rate for name, values in program.weights().items()}
        close(moved, gradients, 2e-5 if variant is TORCH else 5e-5)


@each_of(TRAINING)
@pytest.mark.parametrize("workload", ["dense", "lstm"])
def test_several_steps_in_one_call_train_as_single_ones_do(variant: Variant, workload: str) -> None:
    program, task = variant.prepared(workload, mode="train", ring=3, batches_per_step=7)
    given = {name: values.copy() for name, values in task.weights().items()}
    program.load(given)
    for _ in range(7):
        program.run(1)
    single = program.outputs(), dict(program.weights())
    program.load(given)
    timeline = program.run(7)
    assert len(timeline.done) == (1 if variant.loops else 7)
    close(program.outputs(), single[0])
    close(program.weights(), single[1])
    assert np.abs(program.weights()[f"{workload}/weight"] - task.weights()[f"{workload}/weight"]).max() > 0
    assert all(np.array_equal(given[name], values) for name, values in task.weights().items()), "arrays of the caller"


@each_of(LOOPING)
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_loop_does_all_of_its_work(variant: Variant, mode: str) -> None:
    """Twenty times the batches take about twenty times as long, and no longer than the machine could make them."""
    program, task = variant.prepared(mode=mode, batch_size=64, batches_per_step=300, params={"size": 512})

    def seconds(batches: int) -> float:
        times = []
        for _ in range(4):
            began = time.perf_counter()
            program.run(batches)
            times.append(time.perf_counter() - began)
        return min(times)

    program.run(15)
    few, many = seconds(15), seconds(300)
    assert many > 5 * few
    assert 300 * task.graph.flops(mode) / many < 1e12 * (os.cpu_count() or 1)


@pytest.fixture(scope="module", params=RUNTIMES, ids=str)
def dense(request: pytest.FixtureRequest) -> Made:
    """The smallest layer."""
    made: Made = request.param.prepared()
    return made


def test_loading_goes_back_to_the_first_input(dense: Made) -> None:
    program, task = dense
    program.run(2)
    program.load(task.weights())
    with pytest.raises(RuntimeError, match="no batch has run"):
        program.outputs()
    program.run(1)
    close(program.outputs(), oracle(task, 0))


def test_outputs_are_copies(dense: Made) -> None:
    program, task = dense
    program.load(task.weights())
    program.run(1)
    first = program.outputs()
    program.run(1)
    close(first, oracle(task, 0))


def test_timeline_is_in_order(dense: Made) -> None:
    for batches in (1, 5):
        before = time.perf_counter_ns()
        handed_over, done = dense[0].run(batches)
        pairs = [stamp for pair in zip(handed_over, done, strict=True) for stamp in pair]
        stamps = [before, *pairs, time.perf_counter_ns()]
        assert len(done) in (1, batches)
        assert stamps == sorted(stamps)


def test_settings_say_what_ran(dense: Made) -> None:
    found = dense[0].settings
    assert found["compute_type"] == found["weight_type"] == found["output_type"] == "float32"
    assert found["formulation"] == "library"
    assert found["subnormals"] == "flush"
    assert found["execution"] in ("eager", "function", "jit", "sequential", "latency")


def test_later_changes_of_loaded_arrays_do_not_reach_the_program(dense: Made) -> None:
    program, task = dense
    given = {name: values * 2 for name, values in task.weights().items()}
    program.load(given)
    given["dense/bias"][:] = 0
    assert program.weights()["dense/bias"].any()


@each_of(RUNTIMES)
def test_synthetic_data_is_resident_and_close_lets_go(variant: Variant) -> None:
    program, task = variant.prepared(ring=2)
    blank(program.host[0])
    program.run(1)
    if variant.backend not in ("torch", "tensorflow"):  # there the ring that is read is the host's own memory
        close(program.outputs(), oracle(task, 0))
    program.close()
    with pytest.raises(RuntimeError, match="no batch has run"):
        program.outputs()


@each_of(RUNTIMES)
def test_generated_data_is_copied_for_every_batch(variant: Variant) -> None:
    program, task = variant.prepared("conv", data="generated", ring=2)
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    blank(program.host[1])
    program.run(1)
    zeros = {name: np.zeros(values.shape) for name, values in task.batch(1).items()}
    close(program.outputs(), reference.evaluate(task.graph, reference.doubles(task.weights()), zeros))


@each_of(RUNTIMES)
@pytest.mark.parametrize("changes", [{"data": "generated"}, {"cache": "cold"}], ids=str)
def test_several_batches_are_separate_where_the_host_acts_before_each(
    variant: Variant, changes: dict[str, Any]
) -> None:
    program, task = variant.prepared(batches_per_step=4, **changes)
    handed_over, done = program.run(6)
    assert len(done) == 6
    close(program.outputs(), oracle(task, 5 % program_ring(variant)))
    if "cache" in changes:
        assert all(after > before for before, after in zip(done, handed_over[1:], strict=False))
        assert program.settings["cache"].startswith("cold")


@each_of(VARIANTS)
@pytest.mark.parametrize("model", ["mobilenet-v3-small", "resnext14"])
def test_models_are_what_the_reference_says(variant: Variant, model: str) -> None:
    program, task = variant.prepared(model, batch_size=1, params={"image_size": (32, 32)})
    program.run(1)
    close(program.outputs(), oracle(task, 0), 1e-3)


@each_of(RUNTIMES)
@pytest.mark.parametrize("changes", [{}, {"data": "generated"}, {"cache": "cold"}], ids=str)
def test_calls_of_one_batch_may_be_joined_unless_the_host_acts_between_them(
    variant: Variant, changes: dict[str, Any]
) -> None:
    program, task = variant.prepared(**changes)
    assert program.seamless is ("cache" not in changes)
    handed_over, done = program.run(6)
    assert 6 == len(handed_over) == len(done)
    close(program.outputs(), oracle(task, 5 % program_ring(variant)))


def program_ring(variant: Variant) -> int:
    """How many inputs a ring has if nobody says."""
    return variant.spec().ring


@each_of(RUNTIMES)
def test_run_returns_when_the_work_is_finished(variant: Variant) -> None:
    program, _ = variant.prepared(batch_size=256, params={"size": 1024}, ring=2)
    assert unfinished_share(program, 8, 1) <= UNFINISHED


BUSY = """
import json, sys
from layermark.worker.service import Service
service = Service()
service.handle("prepare", {"spec": json.loads(sys.argv[1])})
fault = service.handle("warm_up", {}).get("fault", "")
blocks = [service.handle("measure", {"seconds": 0.15, "min_steps": 1}) for _ in range(5)]
print(json.dumps({"fault": fault, "contexts": [each["context"] for each in blocks]}))
"""
CHAINS = (TORCH, TENSORFLOW_XLA, JAX)
WATCHED = [
    *((variant, "dense", "infer", threads) for variant in RUNTIMES for threads in sorted({1, len(MASK)})),
    *((variant, "lstm", "infer", 1) for variant in RUNTIMES),
    *((variant, "dense", "train", 1) for variant in RUNTIMES if variant.trains),
    *((variant, "hmc", "infer", 1) for variant in CHAINS),
]


def seen(case: tuple[Variant, str, str, int]) -> set[Any]:
    """Every runtime with every kind of work, and every execution of it with all threads."""
    variant, workload, mode, threads = case
    return {(variant.backend, workload, mode)} | ({(variant, threads)} if threads > 1 else set())


SEEN = covering(WATCHED, seen)


@pytest.mark.alone
@pytest.mark.parametrize(("variant", "workload", "mode", "threads"), SEEN, ids=str)
def test_work_keeps_to_its_threads_and_is_done_when_a_call_returns(
    variant: Variant, workload: str, mode: str, threads: int
) -> None:
    needed = {("jax", "hmc"): "blackjax", ("tensorflow", "hmc"): "tensorflow_probability"}.get(
        (variant.backend, workload)
    )
    if not backend(variant.backend).installed or (needed and importlib.util.find_spec(needed) is None):
        pytest.skip(f"{needed or variant.backend} is not installed")
    if (variant.backend, workload, mode) == ("tensorflow", "dense", "infer"):
        workload = "grouped_conv"  # small operations, in whose loops the calling thread takes part
    batch = {"dense": 128, "grouped_conv": 2}.get(workload, 1)
    facts = {"mode": mode, "batch_size": batch, "execution": variant.execution, "threads": threads}
    facts |= {"params": {"hmc_steps": 500}} if workload == "hmc" else {}
    spec = Spec(workload=workload, backend=variant.backend, **facts)
    found = json.loads(fresh(BUSY, json.dumps(spec.to_json()), **backend(variant.backend).environment(spec)))
    assert not found["fault"]
    contexts = found["contexts"]
    assert 0.5 < max(each["busy_threads"] for each in contexts)
    # On a loaded machine a thread may stand in line since long before a window began: most windows tell.
    assert sum(over_budget(each, threads) for each in contexts) <= len(contexts) // 2, [
        each["busy_threads"] for each in contexts
    ]


SUBNORMALS = """
import sys
import numpy as np
from layermark import ops
from layermark.backends.base import backend
from layermark.graph import Builder
from layermark.laws import Constant
from layermark.spec import Spec
from layermark.workloads.base import Task

name, execution, choice = sys.argv[1:]
build = Builder()
x, scale = (build.input(name, (512, 512), law=Constant(value)) for name, value in (("x", 1e-30), ("scale", 1e-10)))
task = Task(build.graph(build.add("y", ops.Multiply(), x, scale)), 0, 1)
spec = Spec(workload="any", backend=name, execution=execution, subnormals=choice, threads=2)
program = backend(name).prepare(spec, task)
program.run(1)
print(np.count_nonzero(program.outputs()["y"].view("int32")), program.settings["subnormals"])
"""


@each_of(RUNTIMES)
@pytest.mark.parametrize("choice", ["keep", "flush"])
def test_subnormals_are_kept_or_flushed(variant: Variant, choice: str) -> None:
    """In a process of its own: thread pools keep what they were first started with."""
    if choice == "keep" and variant.loops:
        with pytest.raises(Unsupported, match="always flush"):
            variant.prepared(subnormals="keep")
        return
    found = fresh(
        SUBNORMALS, variant.backend, variant.execution, choice, **backend(variant.backend).environment(variant.spec())
    )
    assert found.split() == [str(512 * 512 if choice == "keep" else 0), choice]


@each_of(RUNTIMES)
@pytest.mark.parametrize(
    ("workload", "changes", "reason"),
    [
        ("lstm", {"device": "ipu"}, "ipu"),
        ("gru", {"formulation": "tuned", "params": {"timesteps": 20}}, "no tuned formulation of gru on"),
    ],
    ids=["device", "tuned"],
)
def test_what_it_cannot_do_is_named(variant: Variant, workload: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        variant.prepared(workload, **changes)


@each_of(RUNTIMES)
def test_unknown_execution_is_the_users_error(variant: Variant) -> None:
    with pytest.raises(UserError, match=f"--execution no-such: {variant.backend} knows .*{variant.execution}"):
        variant.prepared(execution="no-such")


@each_of(RUNTIMES)
def test_asking_about_a_backend_imports_no_framework(variant: Variant) -> None:
    script = f"import sys; from layermark.backends.base import backend; b = backend({variant.backend!r}); b.installed"
    assert fresh(f"{script}, b.version, b.executions; print({variant.backend!r} in sys.modules)") == "False"


@each_of(RUNTIMES)
def test_load_answers_versions(variant: Variant) -> None:
    found = backend(variant.backend)
    if not found.installed:
        pytest.skip(f"{variant.backend} is not installed")
    assert found.load()[variant.backend].startswith(found.version.split("+")[0])
