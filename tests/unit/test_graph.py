"""Graphs: what they refuse, what they count, and that stages add up to the whole."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from layermark import reference
from layermark.errors import UserError
from layermark.graph import Builder, Graph, Node
from layermark.laws import Integers, random_generator
from layermark.ops import (
    Activation,
    Add,
    Conv2d,
    CrossEntropy,
    Dense,
    Dropout,
    GlobalPool,
    Input,
    MeanSquaredError,
    Multiply,
    Norm,
    Recurrent,
    TakeLast,
)
from layermark.spec import Spec
from layermark.training.update import Update
from layermark.workloads.base import task


def residual() -> Graph:
    """Two residual blocks, one with a gate; a mask and labels that only late nodes read; two results."""
    build = Builder()
    x = build.input("x", (2, 4, 5, 5))
    mask = build.input("mask", (2, 6), law=Integers(0, 2), role="mask")
    stem = build.add("stem", Conv2d(6, (3, 3), padding=(1, 1, 1, 1)), x)
    stem = build.add("stem/norm", Norm("batch"), stem)
    stem = build.add("stem/relu", Activation("relu"), stem)
    for block in ("a", "b"):
        inner = build.add(f"{block}/conv", Conv2d(6, (1, 1)), stem)
        inner = build.add(f"{block}/norm", Norm("batch"), inner)
        inner = build.add(f"{block}/relu", Activation("swish"), inner)
        if block == "b":
            gate = build.add("b/gate", Activation("sigmoid"), build.add("b/squeeze", GlobalPool(), inner))
            inner = build.add("b/scale", Multiply(), inner, gate)
        stem = build.add(f"{block}/add", Add(), inner, stem)
    pooled = build.add("pool", GlobalPool(), stem)
    dropped = build.add("drop", Dropout(0.5), pooled, mask)
    y = build.add("head", Dense(3), dropped)
    labels = build.input("labels", (2,), law=Integers(0, 3), role="target", item_bytes=4)
    loss = build.add("loss", CrossEntropy(), y, labels)
    build.alias("block-b", "b/conv")
    return build.graph(y, loss)


def values(graph: Graph) -> tuple[dict, dict]:
    weights = {n: p.law.draw(random_generator(1, n), p.shape).astype("float64") for n, p in graph.parameters.items()}
    inputs = {n: op.law.draw(random_generator(2, n), op.dims) for n, op in graph.inputs.items()}
    return weights, reference.doubles(inputs)


def run_stages(graph: Graph, stages: tuple[Graph, ...]) -> dict:
    """The stages one after the other; each sees what the graph is fed with and what the stage before hands on."""
    weights, fed = values(graph)
    results, handed = {}, {}
    for stage in stages:
        seen = {name: (fed | handed)[name] for name in stage.inputs}
        handed = reference.evaluate(stage, weights, seen)
        results |= handed
    return {name: results[name] for name in graph.outputs}


def assert_whole(graph: Graph, stages: tuple[Graph, ...]) -> None:
    whole, parts = reference.evaluate(graph, *values(graph)), run_stages(graph, stages)
    assert set(whole) == set(parts)
    for name, expected in whole.items():
        np.testing.assert_array_equal(expected, parts[name], err_msg=name)


@pytest.mark.parametrize("name", residual().splits)
def test_a_cut_at_any_legal_name_equals_the_whole(name):
    graph = residual()
    assert_whole(graph, graph.cut([name]))


@pytest.mark.parametrize("count", [2, 3])
def test_cuts_at_several_names_equal_the_whole(count):
    graph = residual()
    tried = 0
    for names in combinations(graph.splits, count):
        if len({graph._boundary(name) for name in names}) == count:
            assert_whole(graph, graph.cut(names))
            tried += 1
    assert tried > 80


def test_stages_share_nodes_and_parameters_without_loss():
    graph = residual()
    stages = graph.cut(["a/relu", "b/scale"])
    own = [node for stage in stages for node in stage if not isinstance(node.op, Input)]
    assert [node for node in graph if not isinstance(node.op, Input)] == own
    assert graph.parameters == {name: each for stage in stages for name, each in stage.parameters.items()}
    assert graph.macs == sum(stage.macs for stage in stages)


def test_a_cut_inside_a_residual_block_carries_two_tensors():
    first, second = residual().cut(["a/relu"])
    assert ("stem/relu", "a/norm") == first.outputs
    live = {name: op for name, op in second.inputs.items() if op.role == "live"}
    assert ["stem/relu", "a/norm"] == list(live)
    assert (2, 6, 5, 5) == live["a/norm"].dims
    assert ("a/add",) == residual().cut(["b/conv"])[0].outputs


def test_a_stage_hands_on_what_only_a_later_stage_reads():
    _, middle, last = residual().cut(["a/relu", "a/add"])
    assert ("stem/relu", "a/relu") == middle.outputs
    assert {"stem/relu", "a/norm"} == set(middle.inputs)
    assert {"stem/relu", "a/relu"} <= set(last.inputs)


def test_inputs_enter_where_they_are_read_and_results_leave_where_they_are_made():
    first, second, third = residual().cut(["drop", "loss"])
    assert ["x"] == list(first.inputs)
    assert {"pool", "mask"} == set(second.inputs)
    assert {"head", "labels"} == set(third.inputs)
    assert [("pool",), ("head",), ("loss",)] == [first.outputs, second.outputs, third.outputs]
    assert residual().inputs["labels"] == third.inputs["labels"]


def test_an_input_that_two_stages_read_is_an_input_of_both():
    build = Builder()
    x = build.input("x", (2, 3))
    one = build.add("one", Dense(3), x)
    graph = build.graph(build.add("two", Add(), one, x))
    first, second = graph.cut(["two"])
    assert ["x"] == list(first.inputs)
    assert ["x", "one"] == list(second.inputs)
    assert ("one",) == first.outputs
    assert_whole(graph, (first, second))


def test_a_batch_norm_stays_with_the_convolution_it_folds_into():
    graph = residual()
    assert graph.cut(["a/conv"]) == graph.cut(["a/norm"])
    with pytest.raises(UserError, match="begin the same stage"):
        graph.cut(["a/conv", "a/norm"])


def test_only_what_can_be_folded_is_kept_together():
    build = Builder()
    x = build.input("x", (2, 4, 5, 5))
    conv = build.add("conv", Conv2d(4, (1, 1)), build.add("stem", Conv2d(4, (1, 1)), x))
    norm = build.add("norm", Norm("group", 2), conv)
    shared = build.add("shared", Norm("batch"), build.add("shared/conv", Conv2d(4, (1, 1)), norm))
    graph = build.graph(build.add("add", Add(), shared, "shared/conv"))
    assert "norm" == graph.cut(["norm"])[1].nodes[1].name
    assert "shared" == graph.cut(["shared"])[1].nodes[1].name


def test_no_stage_is_empty():
    assert not {"stem", "stem/norm"} & set(residual().splits)
    assert "stem/relu" in residual().splits
    assert () == Builder().graph().splits


def test_aliases_cut_and_stay_with_their_stage():
    graph = residual()
    assert "block-b" in graph.splits
    assert graph.cut(["b/conv"]) == graph.cut(["block-b"])
    assert [{}, {"block-b": "b/conv"}] == [dict(stage.aliases) for stage in graph.cut(["block-b"])]


def test_an_unknown_split_offers_the_nearest():
    with pytest.raises(UserError, match="did you mean a/relu"):
        residual().cut(["a/rely"])


def test_live_sequences_keep_their_batch_axis():
    build = Builder()
    x = build.input("x", (5, 2, 3), batch=1)
    one = build.add("one", Recurrent("rnn", 4), x)
    last = build.add("last", TakeLast(), build.add("two", Recurrent("rnn", 4), one))
    graph = build.graph(build.add("dense", Dense(1), last))
    assert [1, 0] == [graph.cut([name])[1].inputs[live].batch for name, live in (("two", "one"), ("dense", "last"))]
    assert {"x": 1, "one": 1, "two": 1, "last": 0, "dense": 0} == dict(graph.batch_axes)


@pytest.mark.parametrize(
    ("nodes", "outputs", "part"),
    [
        ((Node("y", Dense(1), ("x",)),), ("y",), "reads 'x', which no earlier node makes"),
        ((Node("x", Input((1, 1))), Node("x", Input((1, 1)))), ("x",), "two nodes are called 'x'"),
        ((Node("x", Input((1, 1))),), ("y",), "unknown output 'y'"),
        ((Node("x", Input(())), Node("y", Dense(1), ("x",))), ("y",), "a scalar"),
    ],
)
def test_a_graph_that_does_not_fit_cannot_exist(nodes, outputs, part):
    with pytest.raises(UserError, match=part):
        Graph(nodes, outputs)


def test_parameters_and_gradient_needs():
    graph = residual()
    assert "stem/weight" == next(iter(graph.parameters))
    trained = 6 * 4 * 9 + 2 * 36 + 3 * 12 + 3 * 6 + 3
    assert trained == graph.parameter_count
    assert {"x", "mask", "labels"} == set(graph.by_name) - graph.needs_gradient


def test_flops_of_training_by_hand():
    build = Builder()
    x = build.input("x", (2, 3))
    one = build.add("one", Dense(4, bias=False), x)
    two = build.add("two", Dense(4), one)
    added = build.add("add", Add(), one, two)
    loss = build.add("loss", MeanSquaredError(), added, build.input("t", (2, 4), role="target"))
    graph = build.graph(loss)
    forward = 2 * 24 + (2 * 32 + 8) + 8 + (3 * 8 + 1)
    assert forward == graph.flops("infer") == graph.flops("eval")
    # one: weight only; two: weight, input and bias; add: nothing; loss: one product; two gradients meet at one.
    backward = 2 * 24 + (4 * 32 + 8) + 0 + 8 + 8
    assert forward + backward + 2 * (12 + 16 + 4) == graph.flops("train")


def test_compulsory_bytes():
    graph = residual()
    state = 3 * 12
    fed = (200 + 12) * 4 + 2 * 4
    held = graph.parameter_count + state
    assert fed + 4 * held + 4 * (6 + 1) == graph.compulsory_bytes("eval")
    assert fed + 8 * held + 4 * (6 + 1) == graph.compulsory_bytes("train")
    assert (200 + 12) * 2 + 8 + 2 * held + 2 * 7 == graph.compulsory_bytes("infer", 2, 2)


def test_other_outputs():
    graph = residual().with_outputs("stem", "pool")
    assert ["stem", "pool"] == list(reference.evaluate(graph, *values(graph)))


def test_training_counts_the_operations_of_its_update() -> None:
    graph = task(Spec(workload="resnet8-cifar", backend="torch", mode="train", batch_size=2)).graph
    plain, count = graph.flops("train"), graph.parameter_count
    assert graph.flops("train", Update()) == plain
    assert graph.flops("train", Update(optimiser="momentum")) == plain + 2 * count
    halves = Update(optimiser="momentum", accumulation=2)
    assert graph.flops("train", halves) == plain - 2 * count + halves.flops(_counts(graph)) // 2


def _counts(graph: Graph) -> dict[str, int]:
    return {name: each.count for name, each in graph.parameters.items()}


def test_label_smoothing_reaches_the_loss_or_is_refused() -> None:
    spec = Spec(workload="resnet8-cifar", backend="torch", mode="train", batch_size=2)
    soft = task(spec.replace(update=Update(label_smoothing=0.1))).graph
    assert soft.by_name["loss"].op == CrossEntropy(0.1)
    assert soft.with_outputs("loss").smoothed(0.0) is not None and task(spec).graph.by_name["loss"].op == CrossEntropy()
    with pytest.raises(UserError, match=r"--label-smoothing 0\.1: this workload has no class labels"):
        task(spec.replace(workload="dense", update=Update(label_smoothing=0.1)))
