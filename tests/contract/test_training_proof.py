"""Several updates in a call are proven on every runtime that trains; faults lie far outside the allowance."""

import dataclasses

import numpy as np
import pytest

from contract.covering import FULL, product
from contract.programs import TORCH, TRAINING
from layermark import ops, reference
from layermark.axes import complete
from layermark.backends.base import backend
from layermark.graph import Graph
from layermark.worker import oracle, reference_updates
from layermark.worker.verify import verify
from layermark.workloads.base import task

CIFAR = {"params": {"image_size": (16, 16)}, "batch_size": 8}
NETWORKS = {"dense": {}, "lstm": {}, "resnet8-cifar": CIFAR}
FAR = 3
"""A fault is off by so many times what is allowed, at least."""


def proof(variant, workload, folder, updates=0, **changes):
    """A program, everything it was made from, and the oracle's answer."""
    if not backend(variant.backend).installed:
        pytest.skip(f"{variant.backend} is not installed")
    spec = complete(variant.spec(workload, mode="train", **changes))
    made, path = task(spec), folder / "answer.npz"
    oracle.compute(spec, path, updates)
    runtime = backend(variant.backend)
    runtime.load()
    return runtime.prepare(spec, made), spec, made, path


@pytest.mark.parametrize(("variant", "workload", "ring"), product(TRAINING, NETWORKS, (2, 4)), ids=str)
def test_five_updates_in_one_call_are_those_of_the_reference(variant, workload, ring, tmp_path):
    proven = proof(variant, workload, tmp_path, 5, ring=ring, batches_per_step=5, **NETWORKS[workload])
    found = verify(*proven)
    assert found.ok, found.reason


@pytest.mark.parametrize("updates", [1, 3])
def test_updates_of_the_reference_are_gradient_descent(updates, tmp_path):
    """Anchored by hand: weights less rate times gradient, running statistics a tenth of the way to the batch's."""
    torch = pytest.importorskip("torch")
    spec = complete(TORCH.spec("resnet8-cifar", mode="train", ring=2, **CIFAR))
    made = task(spec)
    held = {name: each.astype("float64") for name, each in made.weights().items()}
    batches = [made.batch(index % 2) for index in range(updates)]
    found = reference_updates.Reference(graph=made.graph, weights=held, batches=batches, torch=torch).descend("32.32")
    before, start = dict(held), held["bn1/mean"]
    for fed in batches:
        loss, gradients = reference.gradients(made.graph, held, fed, torch)
        seen = reference.evaluate(made.graph, held, reference.doubles(fed), every_node=True)["conv1"]
        held = {name: each - found.rates.several * gradients.get(name, 0.0) for name, each in held.items()}
        start = 0.9 * start + 0.1 * seen.mean((0, 2, 3))
    assert found.losses[-1] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(found.several["conv1/weight"], held["conv1/weight"] - before["conv1/weight"], rtol=1e-9)
    np.testing.assert_allclose(found.several["bn1/mean"], start - before["bn1/mean"], rtol=1e-9)


class Faulty:
    """A program one of whose tensors moves only so far, in every call or in those of several batches."""

    def __init__(self, program, name, share, loop_only):
        self.__dict__.update(program=program, name=name, share=share, loop_only=loop_only, wrong=False, start={})

    def __getattr__(self, attribute):
        return getattr(self.program, attribute)

    def __setattr__(self, attribute, value):
        setattr(self.program, attribute, value)

    def load(self, weights):
        self.__dict__.update(start=weights, wrong=False)
        self.program.load(weights)

    def run(self, batches):
        self.__dict__["wrong"] = batches > 1 or not self.loop_only
        return self.program.run(batches)

    def weights(self):
        now = dict(self.program.weights())
        if self.wrong:
            now[self.name] = self.start[self.name] + self.share * (now[self.name] - self.start[self.name])
        return now


DEEP = {name: {"image_size": (16, 16)} for name in ("resnet20-cifar", "resnext29-cifar")}
DEEP |= {"resnet50": {"image_size": (64, 64)}} if FULL else {}


@pytest.fixture(scope="module", params=DEEP)
def deep(request, tmp_path_factory):
    """A deep network with rectified activations, batch norms and ways around."""
    folder = tmp_path_factory.mktemp("oracle")
    return proof(TORCH, request.param, folder, batch_size=8, params=DEEP[request.param])


def test_an_honest_deep_network_is_right(deep):
    found = verify(*deep)
    assert found.ok, found.reason


@pytest.mark.parametrize("loop_only", [False, True], ids=["always", "in-loops"])
@pytest.mark.parametrize("share", [0.0, 0.5], ids=["left-out", "halved"])
def test_a_tensor_that_moves_half_as_far_or_not_at_all_is_caught(deep, share, loop_only):
    program, spec, made, path = deep
    names = [name for name, facts in made.graph.parameters.items() if facts.trainable]
    for name in names[:: max(1, len(names) // 6)]:
        found = verify(Faulty(program, name, share, loop_only), spec, made, path)
        assert not found.ok, name
        assert found.worst.startswith(name if loop_only else f"gradient of {name}")
        assert found.max_error > FAR * found.tolerance, name


@pytest.mark.parametrize("loop_only", [False, True], ids=["always", "in-loops"])
def test_a_stale_running_statistic_is_caught(deep, loop_only):
    program, spec, made, path = deep
    names = [name for name in made.graph.parameters if name.endswith(("/mean", "/variance"))]
    for name in names[:: max(1, len(names) // 6)]:
        found = verify(Faulty(program, name, 0.0, loop_only), spec, made, path)
        assert found.worst.startswith(name)
        assert found.max_error > 30 * found.tolerance


@pytest.mark.parametrize("kind", [ops.Activation, ops.Add], ids=["activation", "skip"])
def test_a_missing_activation_or_way_around_is_caught(deep, kind):
    _, spec, made, path = deep
    graph = made.graph
    names = [node.name for node in graph if isinstance(node.op, kind) and (kind is not ops.Add or around(graph, node))]
    for name in (names[0], names[len(names) // 2], names[-1]):
        wrong = dataclasses.replace(made, graph=without(graph, name))
        program = backend("torch").prepare(spec, wrong)
        found = verify(program, spec, made, path)
        assert not found.ok, name
        assert found.max_error > FAR * found.tolerance


def around(graph, node):
    """Whether one of the sum's terms is the output of the block before, as it is."""
    return any(isinstance(graph.by_name[each].op, ops.Activation) for each in node.inputs)


def without(graph, name):
    """The graph whose nodes read what a node reads instead of the node; of a sum, the term that has weights."""
    inputs = graph.by_name[name].inputs
    instead = next((each for each in inputs if not isinstance(graph.by_name[each].op, ops.Activation)), inputs[0])
    nodes = [
        dataclasses.replace(node, inputs=tuple(instead if each == name else each for each in node.inputs))
        for node in graph
        if node.name != name
    ]
    return Graph(tuple(nodes), graph.outputs, graph.aliases)
