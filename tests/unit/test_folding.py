"""Norms folded into what stands before them: the same function."""

import numpy as np

from layermark import ops, reference
from layermark.axes import complete
from layermark.graph import Builder
from layermark.spec import Spec
from layermark.workloads.base import task
from layermark.workloads.folding import folded, products
from layermark.workloads.weights import Seeded


def answers(graph, weights, fed):
    return reference.evaluate(graph, reference.doubles(weights), reference.doubles(fed))


def same(graph, weights, fed):
    before, after = answers(graph, weights, fed), answers(*folded(graph, weights), fed)
    return all(np.allclose(each, after[name], rtol=1e-5, atol=1e-5) for name, each in before.items())


def test_a_model_computes_the_same_without_its_norms():
    made = task(complete(Spec(workload="resnet8-cifar", backend="null", batch_size=2)))
    graph, held = folded(made.graph, made.weights())
    assert {"weight", "bias"} == {name.rpartition("/")[2] for name in held}
    assert list(held) == list(graph.parameters)
    assert len(products(graph)) == 8
    assert same(made.graph, made.weights(), made.batch(0))


def test_what_somebody_else_reads_is_not_folded():
    build = Builder()
    x = build.input("x", (2, 3, 4, 4))
    conv = build.add("conv", ops.Conv2d(3, (1, 1)), x)
    norm = build.add("norm", ops.Norm("batch"), conv)
    graph = build.graph(build.add("sum", ops.Add(), conv, norm))
    weights = Seeded(graph, 1).weights()
    kept, held = folded(graph, weights)
    assert graph == kept and weights.keys() == held.keys()


def test_a_bias_and_a_dense_layer_are_folded_too():
    build = Builder()
    x = build.input("x", (4, 6))
    dense = build.add("dense", ops.Dense(5, bias=True), x)
    graph = build.graph(build.add("norm", ops.Norm("batch"), dense))
    fed = {"x": np.random.default_rng(0).standard_normal((4, 6), "float32")}
    assert same(graph, Seeded(graph, 1).weights(), fed)
