"""The oracle's gradients against differences of its own forward, for every operation and every layer."""

from __future__ import annotations

import numpy as np
import pytest

from layermark import ops, reference
from layermark.graph import Builder, Graph
from layermark.laws import Integers, Uniform, random_generator
from layermark.spec import Spec
from layermark.workloads.base import task


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def rng(name: str) -> np.random.Generator:
    return random_generator(7, name)


def all_ops() -> Graph:
    """Every operation of the vocabulary on the way to one scalar."""
    build = Builder()
    x = build.input("x", (2, 3, 8, 8), law=Integers(0, 256), item_bytes=1)
    y = build.add("normalise", ops.Normalise((0.5,) * 3, (0.25,) * 3), x)
    own, box = build.input("own", (2,), law=Uniform(0, 1), role="mask"), {"law": Integers(0, 2), "role": "mask"}
    y = build.add("mix", ops.MixPictures(1), y, own, build.input("box", (8, 8), batch=-1, **box))
    y = build.add("conv", ops.Conv2d(8, (3, 3), (1, 1), (1, 0, 1, 1), bias=True), y)
    y = build.add("norm", ops.Norm("batch", training=True), y)
    for kind in ops.ACTIVATIONS:
        y = build.add(kind, ops.Activation(kind), y)
        y = build.add(f"{kind}/again", ops.Conv2d(8, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), groups=2), y)
    y = build.add("proxy", ops.Norm("proxy", 4, True, activation="swish", training=True), y)
    y = build.add("group", ops.Norm("group", 2), y)
    y = build.add("same", ops.Norm("none"), y)
    y = build.add("max", ops.Pool("max", (3, 3), (2, 2), (1, 1, 1, 1)), y)
    wide = build.add("pad", ops.Pad((1, 0, 0, 0), (2, 2)), y)
    shortcut = build.add("subsample", ops.Subsample((2, 2)), wide)
    y = build.add("down", ops.Conv2d(12, (2, 2), (2, 2), dilation=(2, 2), padding=(1, 1, 1, 1)), wide)
    y = build.add("add", ops.Add(), y, shortcut)
    depth = build.input("depth", (2,), law=Integers(0, 2), role="mask")
    y = build.add("depth/op", ops.StochasticDepth(0.8), y, depth)
    gate = build.add("gate", ops.Activation("sigmoid"), build.add("squeeze", ops.GlobalPool(), y))
    y = build.add("excite", ops.Multiply(), y, gate)
    y = build.add("concat", ops.Concat(), y, shortcut)
    y = build.add("flat", ops.Flatten(), build.add("average", ops.Pool("average", (2, 2), (1, 1), (0, 1, 1, 0)), y))
    mask = build.input("mask", build.graph(y).shapes[y], law=Integers(0, 2), role="mask")
    y = build.add("head", ops.Dense(5), build.add("dropout", ops.Dropout(0.5), y, mask))
    losses = [_add_loss(build, "smooth", ops.CrossEntropy(0.1), y), *_sequence_losses(build)]
    return build.graph(build.add("total", ops.Add(), *losses))


def _add_loss(build: Builder, name: str, op: ops.Op, y: str, *, labelled: bool = True) -> str:
    dims = build.graph(y).shapes[y]
    law = Integers(0, 3) if labelled else Uniform(0, 1)
    target = build.input(f"{name}/target", dims[:-1] if labelled else dims, law=law, role="target")
    return build.add(name, op, y, target)


def _sequence_losses(build: Builder) -> list[str]:
    y = build.input("s", (4, 2, 3), batch=1)
    for name, op in {
        "rnn": ops.Recurrent("rnn", 5),
        "after": ops.Recurrent("gru", 4),
        "before": ops.Recurrent("gru", 4, "loop", "before"),
        "lstm": ops.Recurrent("lstm", 5, forget_bias=1.0),
    }.items():
        y = build.add(name, op, y)
    last = build.add("last", ops.TakeLast(), y)
    return [
        _add_loss(build, "likelihood", ops.NegativeLogLikelihood(), build.add("softmax", ops.Softmax(1), y)),
        _add_loss(build, "entropy", ops.CrossEntropy(), y, labelled=False),
        _add_loss(build, "sum", ops.SumSquaredError(), y, labelled=False),
        _add_loss(build, "squares", ops.MeanSquaredError(), last, labelled=False),
        build.add("mean", ops.Mean(), last),
    ]


def test_the_graph_of_all_operations_has_them_all():
    known = {each for each in vars(ops).values() if isinstance(each, type) and issubclass(each, ops.Op)}
    assert known - {ops.Op, ops.Loss} == {type(node.op) for node in all_ops()}


def drawn(graph: Graph) -> tuple[dict, dict]:
    weights = {n: p.law.draw(rng(n), p.shape) for n, p in graph.parameters.items()}
    return weights, {n: op.law.draw(rng(n), op.dims) for n, op in graph.inputs.items()}


def assert_anchored(graph: Graph, weights: dict, inputs: dict, torch) -> None:
    """Along random directions, of each parameter alone and of all, gradients equal differences of the NumPy forward."""
    loss, found = reference.gradients(graph, weights, inputs, torch)
    forward = reference.evaluate(graph, reference.doubles(weights), reference.doubles(inputs))
    assert float(forward[graph.outputs[-1]]) == pytest.approx(loss, rel=1e-12)
    assert [n for n, p in graph.parameters.items() if p.trainable] == list(found)
    whole = {name: rng("direction" + name).standard_normal(each.shape) for name, each in found.items()}
    for direction in [whole, *({name: each} for name, each in whole.items())]:
        expected = sum(float((found[name] * each).sum()) for name, each in direction.items())
        actual = reference.directional_difference(graph, weights, inputs, direction, 1e-6)
        assert expected == pytest.approx(actual, rel=1e-5, abs=1e-7 * max(1.0, abs(loss))), direction.keys()


def test_gradients_of_all_operations(torch):
    graph = all_ops()
    assert_anchored(graph, *drawn(graph), torch)


LAYERS = [
    ("dense", {"size": 6, "input_size": 4, "include_activation": True}),
    ("conv", {"input_height": 9, "input_width": 7, "filter_number": 5, "kernel_size": (4, 3), "stride": (2, 1)}),
    ("grouped_conv", {"filter_in": 8, "filter_out": 4, "input_size": (7, 6), "block_repeats": 3, "stride": (2, 1)}),
    ("rnn", {"hidden_size": 6, "input_size": 3}),
    ("gru", {"hidden_size": 6, "input_size": 3, "reset": "after"}),
    ("gru", {"hidden_size": 6, "input_size": 3, "reset": "before"}),
    ("lstm", {"hidden_size": 6, "input_size": 3, "seed_loss": "popart"}),
    ("lstm_multi", {"timesteps": 4, "input_size": 3, "hidden_size": 5}),
]


@pytest.mark.parametrize("loss", ["target", "seed"])
@pytest.mark.parametrize(("name", "params"), LAYERS, ids=lambda each: each if isinstance(each, str) else "")
def test_gradients_of_layers(name, params, loss, torch):
    made = task(Spec(workload=name, backend="null", params=params, mode="train", batch_size=3, loss=loss))
    assert_anchored(made.graph, made.weights(), made.batch(0), torch)


@pytest.mark.parametrize(("name", "params"), LAYERS, ids=lambda each: each if isinstance(each, str) else "")
def test_every_parameter_of_a_layer_matters(name, params):
    """Zeroing any of them moves the output, so that verification notices its loss."""
    made = task(Spec(workload=name, backend="null", params=params, batch_size=3))
    weights, fed = reference.doubles(made.weights()), reference.doubles(made.batch(0))
    (whole,) = reference.evaluate(made.graph, weights, fed).values()
    for dropped in weights:
        (moved,) = reference.evaluate(made.graph, weights | {dropped: 0 * weights[dropped]}, fed).values()
        assert 0.1 * whole.std() < np.abs(moved - whole).max(), dropped


def test_every_node_on_request_and_numpy_equals_torch(torch):
    graph = all_ops()
    weights, inputs = (reference.doubles(each) for each in drawn(graph))
    found = reference.evaluate(graph, weights, inputs, every_node=True)
    assert list(graph.by_name) == list(found)
    assert dict(graph.shapes) == {name: each.shape for name, each in found.items()}
    tensors = ({name: torch.as_tensor(a) for name, a in each.items()} for each in (weights, inputs))
    for name, tensor in reference.evaluate(graph, *tensors, every_node=True).items():
        np.testing.assert_allclose(found[name], tensor.numpy(), atol=1e-10, err_msg=name)
