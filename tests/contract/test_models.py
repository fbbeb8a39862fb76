"""Models with seeded weights: calibrated, the same for everybody, and such that verification notices any change."""

import os

import numpy as np
import pytest
import torch
from torch.nn import functional

from layermark import ops, reference
from layermark.axes import complete
from layermark.spec import Spec
from layermark.worker.verify import output_tolerance
from layermark.workloads.base import task

SMALL = {
    "resnet18": 96,
    "resnet50": 64,
    "resnet20-cifar": 32,
    "resnext50": 64,
    "resnext29-cifar": 32,
    "efficientnet-b0": 96,
    "efficientnet-cifar": 32,
    "mobilenet": 96,
    "mobilenet-v3-small": 96,
    "mobilenet-v3-large": 96,
    "squeezenet": 96,
    "squeezenet-v1.1": 96,
}
MODEL_VARIANTS = [
    ("resnet18", {"norm_type": "group"}),
    ("resnet18", {"norm_type": "group", "norm_strided": True}),
    ("resnet18", {"norm_type": "none"}),
    ("efficientnet-b0", {"norm_type": "proxy", "norm_num_groups": 4}),
    ("efficientnet-b0", {"group_dim": 16, "expand_ratio": 4, "convention": "tensorflow"}),
]
CASES = [(name, {}) for name in SMALL] + MODEL_VARIANTS


def described(case):
    name, params = case
    return "-".join([name, *map(str, params.values())])


@pytest.fixture(scope="module", params=CASES, ids=described)
def made(request):
    name, params = request.param
    size = (SMALL[name], SMALL[name])
    return task(complete(Spec(workload=name, backend="null", batch_size=1, params={"image_size": size, **params})))


class Sweep:
    """Evaluates a network once, with one more row of the batch for every parameter that could have been zero.

    Row 0 is the honest network; a row that begins at a node has honest values before it.
    """

    def __init__(self):
        self.rows = ["nothing"]

    def apply(self, node, xp, own, *inputs):
        full = [self._extended(x) for x in inputs]
        spoilt = [{**own, name: each * 0} for name, each in own.items()]
        first = [x[:1] for x in full]
        self.rows += [f"{node.name}/{name}" for name in own]
        return torch.cat([value(node.op, xp, own, *full), *(value(node.op, xp, each, *first) for each in spoilt)])

    def _extended(self, x):
        """What was made before some rows began is honest in them."""
        return torch.cat([x, x[:1].expand(len(self.rows) - len(x), *x.shape[1:])])


def value(op, xp, own, *inputs):
    """The reference's rules, but for convolutions, which torch computes faster."""
    if not isinstance(op, ops.Conv2d):
        return reference.value(op, xp, own, *inputs)
    top, bottom, left, right = op.padding
    padded = functional.pad(inputs[0], (left, right, top, bottom))
    return functional.conv2d(padded, own["weight"], own.get("bias"), op.stride, 0, op.dilation, op.groups)


def tensors(arrays):
    return {name: torch.as_tensor(each) for name, each in arrays.items()}


def test_zeroing_any_parameter_moves_the_output_by_more_than_ten_tolerances(made):
    sweep, tolerance = Sweep(), output_tolerance("32.32", made.graph)
    with torch.inference_mode():
        found = reference.evaluate(made.graph, tensors(made.weights()), tensors(made.batch(0)), apply=sweep.apply)
    rows = found[made.graph.outputs[0]]
    moved = ((rows - rows[0]).abs().amax(1) / rows[0].std(correction=0)).tolist()
    assert len(sweep.rows) == 1 + len(made.graph.parameters)
    assert {} == {name: by for name, by in zip(sweep.rows[1:], moved[1:], strict=True) if not by > 10 * tolerance}


def test_every_nodes_output_varies_by_about_one(made):
    weights = tensors(made.weights())
    outputs = []
    for index in (0, 1):
        with torch.inference_mode():
            values = reference.evaluate(
                made.graph,
                weights,
                tensors(made.batch(index)),
                every_node=True,
                apply=lambda node, xp, own, *inputs: value(node.op, xp, own, *inputs),
            )
        spreads = {name: float(each.var(correction=0)) for name, each in values.items()}
        assert {} == {name: spread for name, spread in spreads.items() if not 1e-3 < spread < 1e2}
        outputs.append(values[made.graph.outputs[0]])
    # A program that gives every picture the same answer is far from right.
    assert float((outputs[0] - outputs[1]).abs().max() / outputs[0].std()) > 10 * output_tolerance("32.32", made.graph)


def test_weights_are_the_same_in_every_mode_and_process():
    one = task(complete(Spec(workload="resnet8-cifar", backend="null", batch_size=1)))
    other = task(complete(Spec(workload="resnet8-cifar", backend="torch", batch_size=4, mode="train")))
    first = one.weights()
    for found in (other.weights(), calibrated_again(one)):
        assert list(first) == list(found)
        assert all(np.array_equal(first[name], found[name]) for name in first)
    seeded = task(complete(Spec(workload="resnet8-cifar", backend="null", seed=7))).weights()
    assert not np.array_equal(first["bn1/mean"], seeded["bn1/mean"])


def calibrated_again(made):
    """As a process finds them that has no cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", os.environ["XDG_CACHE_HOME"] + "-other")
        return made.initial_weights.weights()
