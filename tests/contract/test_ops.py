"""Every operation of the vocabulary on every runtime, against the float64 reference: forward, loss and gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from contract.cases import CASES, EVERY_GROUPED, EVERY_STRIDED, PICTURES, TRAINS, Case, case, cases_of
from contract.covering import FULL, covering
from contract.runtimes import RUNTIMES_UNDER_TEST, RuntimeUnderTest
from layermark import ops, reference
from layermark.workloads.base import Task

SEED = 7
TRAINING = [each for each in RUNTIMES_UNDER_TEST.values() if each.trains]
XLA = "tensorflow-xla"


def kind(each: Case) -> tuple[Any, ...]:
    """What makes operations different for a runtime."""
    return type(each.op), *(getattr(each.op, name, "") for name in ("kind", "cell", "form"))


# XLA takes half a second to compile a step, and is given what tf.function runs as well: one case of each kind will do.
KINDS = {kind(each): each for each in CASES}


def shown(pair: tuple[Case, RuntimeUnderTest]) -> set[Any]:
    """Every kind on every runtime, and every case on one of them."""
    each, runtime = pair
    return {(kind(each), runtime.name), each.name}


def pairs(runtimes: Any, *, few_on_xla: bool = False) -> Any:
    """Every runtime with every case it is held to, case by case: what the reference answered is then still known."""
    every = [
        (each, runtime)
        for each in CASES
        for runtime in runtimes
        if each in cases_of(runtime.backend)
        if FULL or each in KINDS.values() or not (few_on_xla and runtime.name == XLA)
    ]
    found = covering(every, shown)
    return pytest.mark.parametrize(
        ("each", "runtime"), found, ids=[f"{runtime.name}-{each.name}" for each, runtime in found]
    )


@cache
def _forward(number: int) -> Any:
    task = Task(CASES[number].graph, SEED, 1)
    return reference.evaluate(task.graph, reference.doubles(task.weights()), reference.doubles(task.batch(0)))


@cache
def _gradients(number: int) -> tuple[float, Any]:
    torch = pytest.importorskip("torch")
    task = Task(CASES[number].trained, SEED, 1)
    return reference.gradients(task.graph, task.weights(), task.batch(0), torch)


def close(actual: Any, expected: Any, share: float, floor: float = 1e-12, what: str = "") -> None:
    """Equal up to a share of the largest expected value."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape, what
    assert float(np.abs(actual - expected).max()) <= share * float(np.abs(expected).max()) + floor, what


def check_forward(each: Case, runtime: RuntimeUnderTest, formulation: str = "library") -> None:
    """One pass against the reference."""
    runtime.require()
    task = Task(each.graph, SEED, 1)
    found = runtime.forward(task, formulation)
    # Torch's module holds the constants of a normalisation in fp32, whatever else is float64.
    share = max(runtime.forward_error, 1e-6 if isinstance(each.op, ops.Normalise) else 0)
    close(found["b0/the-op"], _forward(CASES.index(each))["b0/the-op"], share)


def check_gradients(each: Case, runtime: RuntimeUnderTest, formulation: str = "library") -> None:
    """The loss, and what one step at rate 1 moves, against the reference."""
    runtime.require()
    loss, expected = _gradients(CASES.index(each))
    task = Task(each.trained, SEED, 1)
    found, after = runtime.step(task, 1.0, formulation)
    assert found == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        moved = task.weights()[name].astype("float64") - after[name]
        close(moved, gradient, runtime.gradient_error, runtime.gradient_floor, name)


@pairs(RUNTIMES_UNDER_TEST.values())
def test_forward(each: Case, runtime: RuntimeUnderTest) -> None:
    check_forward(each, runtime)


@pairs(TRAINING, few_on_xla=True)
def test_gradients(each: Case, runtime: RuntimeUnderTest) -> None:
    check_gradients(each, runtime)


@EVERY_STRIDED
def test_tuned_convolution_of_few_channels(each: Case) -> None:
    check_forward(each, RUNTIMES_UNDER_TEST["jax"], "tuned")
    check_gradients(each, RUNTIMES_UNDER_TEST["jax"], "tuned")


PLAIN_CELLS = [each for each in cases_of("jax") if getattr(each.op, "cell", "gru") != "gru"]


@pytest.mark.parametrize("each", PLAIN_CELLS, ids=[each.name for each in PLAIN_CELLS])
def test_tuned_cells_in_training(each: Case) -> None:
    check_gradients(each, RUNTIMES_UNDER_TEST["jax"], "tuned")


@pytest.mark.parametrize("name", ["jax", XLA])
@EVERY_GROUPED
def test_tuned_grouped_convolution(each: Case, name: str) -> None:
    check_forward(each, RUNTIMES_UNDER_TEST[name], "tuned")
    check_gradients(each, RUNTIMES_UNDER_TEST[name], "tuned")


@pytest.mark.parametrize("name", ["jax", "tensorflow-function"])
def test_running_statistics_follow_the_batch(name: str) -> None:
    RUNTIMES_UNDER_TEST[name].require()
    task = Task(case(ops.Norm("batch", training=True, momentum=0.25), PICTURES).trained, SEED, 1)
    before = reference.doubles(task.weights())
    seen = reference.evaluate(task.graph, before, reference.doubles(task.batch(0)), every_node=True)["before"]
    _, after = RUNTIMES_UNDER_TEST[name].step(task, 0.0)
    now = {"mean": seen.mean((0, 2, 3)), "variance": seen.var((0, 2, 3), ddof=1)}
    for part, values in now.items():
        close(after[f"b0/the-op/{part}"], 0.75 * before[f"b0/the-op/{part}"] + 0.25 * values, 1e-5)


@pytest.mark.parametrize("backend", sorted({each.backend for each in RUNTIMES_UNDER_TEST.values()}))
def test_every_operation_has_a_case(backend: str) -> None:
    found = {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Op)}
    vocabulary = {kind for kind in found if not kind.__subclasses__()}
    untrained = set() if backend in TRAINS else {ops.MixPictures}
    assert vocabulary - {ops.Input} - untrained == {type(each.op) for each in cases_of(backend)}
