"""The ONNX models themselves: valid, named after the graph, and readable without Layermark."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from contract.cases import Case, cases_of
from contract.covering import covering
from contract.programs import EVERY_LAYER, SMALL, close, oracle
from layermark import ops
from layermark.backends import _onnx
from layermark.graph import Builder, Graph
from layermark.spec import Spec
from layermark.workloads.base import Task, task

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")


def checked(graph: Graph, weights: object, precision: str = "32.32", unroll: int = 0) -> onnx.ModelProto:
    """A model that onnx itself finds valid, shapes included."""
    model = _onnx.model(graph, weights, precision, unroll)  # type: ignore[arg-type]
    onnx.checker.check_model(model, full_check=True)
    return model


def shape_of(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    """The dimensions of a value."""
    return tuple(each.dim_value for each in info.type.tensor_type.shape.dim)


def shown(pair: tuple[Case, str]) -> set[Any]:
    """Every kind of operation in every type, and every case in one of them."""
    each, precision = pair
    return {(type(each.op), precision), each.name}


TYPED = covering(itertools.product(cases_of("onnxruntime"), ["32.32", "16.16", "bf16.32"]), shown)


@pytest.mark.parametrize(("each", "precision"), TYPED, ids=[f"{precision}-{each.name}" for each, precision in TYPED])
def test_every_op_is_valid_in_every_type(each: Case, precision: str) -> None:
    model = checked(each.graph, Task(each.graph, 5, 1).weights(), precision)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    (output,) = inferred.graph.output
    assert shape_of(output) == each.graph.shapes["b0/the-op"]


@EVERY_LAYER
def test_names_are_those_of_the_graph(workload: str) -> None:
    found = task(Spec(workload=workload, backend="any", batch_size=3, params=SMALL[workload], mode="eval"))
    model = checked(found.graph, found.weights())
    made = {name for node in model.graph.node for name in node.output}
    assert set(found.graph.by_name) <= made | set(found.graph.inputs)
    assert [each.name for each in model.graph.input] == list(found.graph.inputs)
    assert [each.name for each in model.graph.output] == list(found.graph.outputs)
    kept = {each.name for each in model.graph.initializer}
    assert {name for name in found.graph.parameters if not name.endswith("recurrent_bias")} <= kept
    assert all(node.name for node in model.graph.node)
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_plain_parameters_are_stored_in_the_canonical_layout() -> None:
    found = task(Spec(workload="dense", backend="any", batch_size=3, params=SMALL["dense"]))
    weights = found.weights()
    for each in _onnx.model(found.graph, weights).graph.initializer:
        assert np.array_equal(onnx.numpy_helper.to_array(each), weights[each.name])


@pytest.mark.parametrize("unroll", [0, 16])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_short_loops_are_written_out_on_request(cell: str, unroll: int) -> None:
    build = Builder()
    y = build.add("cell", ops.Recurrent(cell, 4, "loop"), build.input("x", (5, 2, 3), batch=1))
    found = Task(build.graph(y), 1, 1)
    kinds = [node.op_type for node in checked(found.graph, found.weights(), unroll=unroll).graph.node]
    assert ("Scan" in kinds) == (unroll == 0)
    assert kinds.count("Gemm") == (1 if unroll == 0 else 6)


def test_what_passes_through_is_an_output_too() -> None:
    build = Builder()
    x = build.input("x", (2, 3))
    same = build.add("same", ops.Dropout(0.5), x)
    found = Task(build.graph(x, same, build.add("relu", ops.Activation("relu"), same)), 1, 1)
    model = checked(found.graph, {})
    values = reference.ReferenceEvaluator(model).run(None, found.batch(0))
    close(dict(zip(found.graph.outputs, values, strict=True)), oracle(found, 0))


@pytest.mark.parametrize("workload", ["dense", "conv", "gru"])
def test_written_files_compute_the_same_in_onnx_itself(workload: str, tmp_path: object) -> None:
    found = task(Spec(workload=workload, backend="any", batch_size=2, params=SMALL[workload], mode="eval"))
    path = tmp_path / "layer.onnx"  # type: ignore[operator]
    _onnx.write_model(found.graph, found.weights(), path)
    values = reference.ReferenceEvaluator(str(path)).run(None, found.batch(0))
    close(dict(zip(found.graph.outputs, values, strict=True)), oracle(found, 0))


def test_importing_the_writer_imports_no_onnx() -> None:
    code = "import sys, layermark.backends._onnx; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_writer_is_not_taken_for_a_backend() -> None:
    from layermark import registry

    assert not [name for name in registry.modules("backends") if name.startswith("_")]
