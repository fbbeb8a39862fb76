"""Every runtime's profile in one schema: rows tied to nodes, a valid trace, times within the pass."""

import json

import pytest

from layermark.report.trace import faults
from layermark.worker import profile_memory
from layermark.worker.profile import write_profile

from .programs import (
    JAX,
    ONNXRUNTIME,
    OPENVINO,
    TENSORFLOW,
    TENSORFLOW_SESSION,
    TENSORFLOW_XLA,
    TORCH,
    Variant,
    each_of,
)

BATCHES = 3
COMPILED = Variant("torch", "compile")
MARGIN_S = 0.002
"""Clocks of profilers are read a moment before or after ours."""
VARIANTS = (TORCH, TENSORFLOW, TENSORFLOW_XLA, TENSORFLOW_SESSION, JAX, ONNXRUNTIME, OPENVINO)
MODEL = "resnet8-cifar"


def profiled(variant, folder, workload=MODEL, **changes):
    program, task = variant.prepared(workload, batch_size=2, **changes)
    found = write_profile(program, folder, "it", BATCHES, graph=task.graph, mode=changes.get("mode", "infer"))
    return found, task.graph


def tied(found):
    rows = found["operators"]
    return sum(row["seconds"] for row in rows if row["node"]) / sum(row["seconds"] for row in rows)


@pytest.fixture(scope="module")
def of_model(tmp_path_factory):
    """The profile of the model on a runtime, its graph and its trace; made once."""
    made = {}

    def once(variant):
        if variant not in made:
            folder = tmp_path_factory.mktemp("profile")
            found, graph = profiled(variant, folder)
            made[variant] = found, graph, json.loads((folder / "it.trace.json").read_text())
        return made[variant]

    return once


@each_of(VARIANTS)
def test_the_time_of_a_cnn_is_tied_to_its_nodes(variant: Variant, of_model):
    found, graph, _ = of_model(variant)
    rows = found["operators"]
    assert 0.95 <= tied(found)
    work = {node.name for node in graph} - set(graph.inputs)
    assert work == {name for row in rows for name in row["node"]}
    assert graph.flops("infer") == sum(row["flops"] or 0 for row in rows)
    assert all(row["calls"] >= 1 and row["seconds"] >= 0 and row["operator"] for row in rows)
    products = [row for row in rows if row["kind"] == "Conv2d" and row["flops"]]
    assert 0 < sum(row["seconds"] for row in products) <= found["pass_s"] * 1.1


@each_of(VARIANTS)
def test_the_trace_is_valid_and_within_the_pass(variant: Variant, of_model):
    found, _, document = of_model(variant)
    assert found["pass_s"] <= found["window_s"]
    assert [] == list(faults(document, pass_s=found["window_s"] + MARGIN_S))
    operators = [each for each in document["traceEvents"] if each["ph"] == "X" and each["cat"] != "runtime"]
    end = max(each["ts"] + each["dur"] for each in operators) / 1e6
    assert any("after the pass" in fault for fault in faults(document, pass_s=0.9 * end))
    assert any(event["args"].get("nodes") for event in operators)


@each_of(VARIANTS)
def test_memory_over_time_says_where_it_is_from(variant: Variant, of_model):
    found, graph, _ = of_model(variant)
    liveness = found["liveness"]
    assert ("allocator" if variant is TORCH else "graph") == liveness["source"]
    assert liveness["peak_bytes"] == max(held for _, held in liveness["points"])
    assert 10 < len(liveness["points"]) <= profile_memory.POINTS
    assert {node.name for node in graph} & {each["node"] for each in liveness["alive"]}
    assert 0 < sum(each["bytes"] for each in liveness["alive"]) <= liveness["peak_bytes"]
    assert "over_time" not in found["memory"]


@each_of((TORCH, TENSORFLOW, JAX))
def test_training_is_tied_forwards_and_backwards(variant: Variant, tmp_path):
    found, graph = profiled(variant, tmp_path, mode="train")
    assert 0.8 <= tied(found)
    convolutions = {node.name for node in graph if type(node.op).__name__ == "Conv2d"}
    assert convolutions <= {name for row in found["operators"] for name in row["node"]}
    assert all(row["flops"] is None for row in found["operators"])


@each_of((TORCH, JAX, ONNXRUNTIME, OPENVINO))
def test_recurrent_layers_are_tied_too(variant: Variant, tmp_path):
    found, graph = profiled(variant, tmp_path, workload="lstm")
    assert {name for row in found["operators"] for name in row["node"]} & {
        node.name for node in graph if type(node.op).__name__ == "Recurrent"
    }
    assert 0.95 <= tied(found)


def test_loops_of_compiled_sessions_belong_to_their_layers(tmp_path):
    loop = {"timesteps": 100, "hidden_size": 16, "input_size": 4}
    found, _ = profiled(Variant("tensorflow", "session-xla"), tmp_path, workload="lstm_multi", params=loop)
    assert {"lstm1", "lstm2"} < {name for row in found["operators"] for name in row["node"]}
    assert 0.95 <= tied(found)


def test_kernels_of_compiled_torch_are_tied_to_their_nodes(tmp_path):
    pytest.importorskip("torch")
    found, graph = profiled(COMPILED, tmp_path)
    assert 0.95 <= tied(found)
    assert {node.name for node in graph} - set(graph.inputs) == {
        name for row in found["operators"] for name in row["node"]
    }
    kernels = [row for row in found["operators"] if row["operator"].startswith("cpp_fused_")]
    assert ["avgpool"] in [row["node"] for row in kernels]
    assert graph.flops("infer") == sum(row["flops"] or 0 for row in found["operators"])
    document = json.loads((tmp_path / "it.trace.json").read_text())
    assert [] == list(faults(document, pass_s=found["window_s"] + MARGIN_S))


def test_compiled_training_is_tied_forwards_and_backwards(tmp_path):
    pytest.importorskip("torch")
    found, graph = profiled(COMPILED, tmp_path, workload="conv", mode="train")
    rows = {row["operator"]: row["node"] for row in found["operators"] if row["node"]}
    (layer,) = [node.name for node in graph if type(node.op).__name__ == "Conv2d"]
    assert {"aten::convolution_backward"} < set(rows)
    assert [layer] == rows["aten::convolution_backward"]
    # What updates weights belongs to no node.
    assert 0.8 <= tied(found)


def test_compiled_recurrent_layers_are_told_by_their_packed_weights(tmp_path):
    pytest.importorskip("torch")
    found, _ = profiled(COMPILED, tmp_path, workload="lstm_multi")
    assert {"lstm1", "lstm2"} < {name for row in found["operators"] for name in row["node"]}
    assert 0.95 <= tied(found)


def test_torch_runs_on_as_before_after_a_profile(tmp_path):
    program, _ = TORCH.prepared(MODEL, batch_size=2)
    program.load(program.weights())
    program.run(1)
    before = program.outputs()
    program.profile(tmp_path, 1)
    program.load(program.weights())
    program.run(1)
    assert all((before[name] == each).all() for name, each in program.outputs().items())
    assert "forward" not in vars(program.module)


def test_torch_tells_what_is_alive_at_the_peak(of_model):
    found, graph, _ = of_model(TORCH)
    alive, names = found["memory"]["alive"], {node.name for node in graph}
    assert 0 < sum(each["bytes"] for each in alive) <= found["memory"]["peak_bytes"]
    assert names & {each["node"] for each in alive}


def test_onnxruntime_tells_the_peak_of_its_arena(of_model):
    found, _, _ = of_model(ONNXRUNTIME)
    assert 0 < found["memory"]["peak_bytes"]
