"""What only TensorFlow does: its executions and their trial, the loop in one call, the kernels of its cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.cases import EVERY_GROUPED, LONG, PICTURES, ROWS, SEQUENCES, SINGLE, Case, case
from contract.programs import TENSORFLOW, close, oracle
from contract.runtimes import RUNTIMES_UNDER_TEST, Tensorflow
from layermark import ops
from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.training.update import Update
from layermark.workloads.base import Task

pytest.importorskip("tensorflow")
EXECUTIONS = pytest.mark.parametrize("execution", ["function", "xla", "session", "session-xla"])
PRIVATE_ENTRY = "_make_callable_from_options"
LOWERING = Tensorflow("tensorflow", "tensorflow-function")
prepared = TENSORFLOW.prepared


def test_inputs_too_large_to_copy_are_switched_between() -> None:
    sizes = {"batch_size": 16, "params": {"size": 8, "input_size": 2048}}
    program, task = prepared("dense", **sizes, ring=3, batches_per_step=2)
    for batches, index in ((2, 1), (3, 1), (5, 0)):
        program.run(batches)
        close(program.outputs(), oracle(task, index))


@EXECUTIONS
def test_rate_and_trip_count_are_arguments(execution: str) -> None:
    program, task = prepared("dense", mode="train", execution=execution, batches_per_step=4)
    program.run(4)
    operations = program._chosen.execution.operations()
    for rate, batches in ((1.0, 1), (0.25, 2), (1e-3, 9), (1e-30, 1)):
        program.load(task.weights())
        program.learning_rate = rate
        program.run(batches)
    assert operations == program._chosen.execution.operations()


def test_updates_of_live_inputs_are_those_of_the_ring() -> None:
    facts = {"mode": "train", "update": Update(optimiser="momentum", accumulation=2), "ring": 3}
    moved = []
    for data in ("synthetic", "generated"):
        program, _ = prepared(**facts, data=data)
        program.run(6)
        program.run(2)
        moved.append({**program.weights(), **program.state()})
    close(moved[1], moved[0])


@EXECUTIONS
@pytest.mark.parametrize("workload", ["lstm", "resnet8-cifar"])
def test_large_weights_are_variables_that_are_loaded(monkeypatch: Any, execution: str, workload: str) -> None:
    from layermark.backends.tensorflow import execution as written

    monkeypatch.setattr(written, "most_constants", lambda graph, share: 0)
    program, task = prepared(workload, execution=execution, batch_size=1)
    assert program.settings["weights"] == "variables"
    program.run(1)
    first = program.outputs()
    close(first, oracle(task, 0))
    other = {name: 1.5 * values for name, values in task.weights().items()}
    program.load(other)
    assert all(np.array_equal(values, other[name]) for name, values in program.weights().items())
    program.run(1)
    assert any(not np.allclose(values, first[name]) for name, values in program.outputs().items())
    program.load(task.weights())
    program.run(1)
    close(program.outputs(), oracle(task, 0))


def test_auto_records_the_trial() -> None:
    single = prepared("lstm", execution="auto")[0].settings
    assert single["execution"] in ("function", "xla", "session", "session-xla")
    assert single["execution_trial"].count("/s") == 4
    several = prepared("lstm", execution="auto", batches_per_step=50)[0].settings
    assert several["loop"] in ("in one call", "separate calls")
    named = [each.rpartition(" ")[0] for each in several["execution_trial"].split(", ")]
    assert {f"{each} in one call" for each in ("function", "xla", "session", "session-xla")} <= {*named}


@pytest.mark.parametrize("group_dim", [1, 2])
def test_tuned_formulation_computes_the_same(group_dim: int) -> None:
    program, task = prepared("grouped_conv", formulation="tuned", execution="xla", params={"group_dim": group_dim})
    program.run(1)
    assert program.settings["convolution"] == "taps"
    close(program.outputs(), oracle(task, 0))


@pytest.mark.parametrize(
    ("precision", "compute", "weight"), [("bf16.32", "bfloat16", "float32"), ("16.16", "float16", "float16")]
)
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_lower_types_are_what_is_recorded(precision: str, compute: str, weight: str, mode: str) -> None:
    program, task = prepared("dense", precision=precision, execution="auto", mode=mode)
    assert program.settings["compute_type"] == compute
    assert program.settings["weight_type"] == weight
    assert program.settings["execution"] in ("function", "session")
    program.run(3)
    assert np.isfinite(next(iter(program.outputs().values()))).all()
    if mode == "infer":
        close(program.outputs(), oracle(task, 2), 5e-2)


def test_settings_say_what_was_built() -> None:
    settings = prepared("conv")[0].settings
    assert settings["layout"] == "NHWC"
    assert settings["execution"] == "function"
    assert settings["formulation"] == "library"
    assert settings["convolution"] == "conv2d"
    assert settings["weights"] == "constants"
    assert settings["compute_type"] == settings["weight_type"] == settings["output_type"] == "float32"
    assert settings["subnormals"] == "flush"


@pytest.mark.parametrize(
    ("op", "shape", "kernel"),
    [
        (ops.Recurrent("lstm", 6), SINGLE, "BlockLSTMV2"),
        (ops.Recurrent("lstm", 6), SEQUENCES, "unrolled"),
        (ops.Recurrent("lstm", 6, "loop"), SINGLE, "unrolled"),
        (ops.Recurrent("lstm", 6), LONG, "while loop"),
        (ops.Recurrent("gru", 6, reset="before"), SINGLE, "GRUBlockCell"),
        (ops.Recurrent("gru", 6, reset="after"), SINGLE, "unrolled"),
    ],
)
def test_cells_use_the_kernel_that_computes_their_function(op: ops.Op, shape: Any, kernel: str) -> None:
    _, _, kernels = LOWERING.run(Task(case(op, shape).graph, 7, 1))
    assert kernels == {"b0/the-op": kernel}


@pytest.mark.parametrize(("precision", "share"), [("bf16.bf16", 5e-2), ("16.16", 1e-2), ("bf16.32", 5e-2)])
@pytest.mark.parametrize(
    "each",
    [
        case(ops.Dense(5), ROWS),
        case(ops.Conv2d(4, (3, 3)), PICTURES),
        case(ops.Recurrent("lstm", 6), SEQUENCES),
        case(ops.Norm("batch"), PICTURES),
    ],
    ids=lambda each: each.name,
)
def test_lower_precisions_round_and_stay_close(each: Case, precision: str, share: float) -> None:
    task = Task(each.graph, 7, 1)
    outputs, _, _ = LOWERING.run(task, precision=precision)
    wanted = oracle(task, 0)["b0/the-op"]
    size = float(np.sqrt(np.mean(np.square(wanted))))
    np.testing.assert_allclose(outputs["b0/the-op"], wanted, rtol=0, atol=3 * share * size)
    assert np.abs(outputs["b0/the-op"] - wanted).max() > 1e-5


@EVERY_GROUPED
def test_tuned_grouped_convolutions_are_shifted_products_on_xla(each: Case) -> None:
    task = Task(each.graph, 7, 1)
    _, _, kernels = RUNTIMES_UNDER_TEST["tensorflow-xla"].run(task, formulation="tuned")  # type: ignore[attr-defined]
    assert kernels == {"b0/the-op": "taps"}


@pytest.mark.parametrize("execution", ["function", "session"])
def test_sums_and_activations_are_joined_with_the_convolutions_before_them(tmp_path: Path, execution: str) -> None:
    program, _ = prepared("resnet8-cifar", execution=execution, batch_size=1)
    operators = {each.operator for each in program.profile(tmp_path, 1).operators}
    assert any("FusedConv2D" in name for name in operators)
    assert not operators & {"AddV2", "Relu", "BiasAdd", "FusedBatchNormV3"}


def test_node_names_are_in_the_native_graph() -> None:
    from layermark.backends.tensorflow import function, network

    task = Task(case(ops.Conv2d(4, (3, 3)), PICTURES).graph, 7, 1)
    built = network.Network(Spec(workload="an op", backend="tensorflow"), task.graph)
    inputs = built.feed(task.batch(0))
    made = function.FunctionExecution(built, built.stored(task.weights()), [inputs, inputs], xla=False)
    assert any(name.startswith("b0/the-op/") for name in made.operations())


@pytest.mark.parametrize(
    ("workload", "changes", "reason"),
    [
        ("grouped_conv", {"formulation": "tuned"}, "no tuned formulation of grouped_conv on tensorflow's"),
        ("dense", {"precision": "bf16.32", "execution": "xla"}, "float32"),
    ],
)
def test_refusals(workload: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        prepared(workload, **changes)


def test_documented_executions_need_no_private_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    def poisoned(*_: Any) -> None:
        raise AssertionError("a documented execution took the private entry")

    monkeypatch.setattr(tf.compat.v1.Session, PRIVATE_ENTRY, poisoned)
    for execution, batches in (("function", 1), ("xla", 1), ("function", 4)):
        program, task = prepared(execution=execution, batches_per_step=batches, ring=2)
        program.run(batches)
        close(program.outputs(), oracle(task, (batches - 1) % 2))
        assert (program.settings["execution"], program.settings["call"]) == (execution, "tf.function")


def test_documented_executions_call_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = prepared(execution="function")
    called, function = [], type(program._chosen.execution._functions[0])
    genuine = function.__call__
    monkeypatch.setattr(function, "__call__", lambda *args: called.append(1) or genuine(*args))
    program.run(3)
    assert 3 == len(called)


@pytest.mark.parametrize(("private", "documented"), [("session", "function"), ("session-xla", "xla")])
def test_private_entry_is_taken_under_its_own_name(private: str, documented: str) -> None:
    program, task = prepared(execution=private)
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    assert program.settings["execution"] == private
    assert PRIVATE_ENTRY in program.settings["call"]
    assert "fallback" not in program.settings


@pytest.mark.parametrize(("private", "documented"), [("session", "function"), ("session-xla", "xla")])
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "changed"])
def test_a_missing_private_entry_falls_back(
    monkeypatch: pytest.MonkeyPatch, private: str, documented: str, gone: bool
) -> None:
    without_entry(monkeypatch, gone)
    program, task = prepared(execution=private)
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    assert (program.settings["execution"], program.settings["call"]) == (documented, "tf.function")
    assert program.settings["fallback"].startswith(f"{private} -> {documented}: tensorflow ")


def test_auto_does_without_a_missing_private_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    without_entry(monkeypatch, gone=True)
    settings = prepared(execution="auto")[0].settings
    assert settings["execution"] in ("function", "xla")
    assert "session failed: MissingEntry" in settings["execution_trial"]


def without_entry(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """TensorFlow as a release may be that has no such entry, or one with other arguments."""
    import tensorflow as tf

    owner = next(each for each in tf.compat.v1.Session.__mro__ if PRIVATE_ENTRY in vars(each))
    if gone:
        monkeypatch.delattr(owner, PRIVATE_ENTRY)
    else:
        monkeypatch.setattr(owner, PRIVATE_ENTRY, lambda self: None)
