"""Pictures and labels that are mixed: every runtime that trains, against the float64 reference."""

import dataclasses
import functools

import numpy as np
import pytest

from contract.programs import TRAINING, each_of
from contract.test_updates import RING, moves, network, prepared, same
from layermark import ops, reference
from layermark.errors import UserError
from layermark.training.mixing import MIXED, Mixing
from layermark.training.update import Update
from layermark.worker.reference_updates import Reference

MIXINGS = {
    "mixup": Mixing(mixup_alpha=0.2),
    "cutmix": Mixing(cutmix_lambda=0.6),
    "cutmix-inside": Mixing(cutmix_lambda=0.6, cutmix_version=2),
    "four-labels": Mixing(mixup_alpha=0.2, cutmix_lambda=0.6),
    "on-the-host": Mixing(mixup_alpha=0.2, cutmix_lambda=0.6, mixing_place="host"),
}
RULE = Update(optimiser="momentum", label_smoothing=0.1, accumulation=2)


def mixed_task(mixing):
    plain = network(RULE)
    return dataclasses.replace(plain, graph=plain.graph.mixed(mixing), mixing=mixing)


@functools.cache
def expected(name):
    torch, made = pytest.importorskip("torch"), mixed_task(MIXINGS[name]) if name else network(RULE)
    batches = [reference.doubles(made.batch(index % RING)) for index in range(4)]
    weights = reference.doubles(made.weights())
    return Reference(graph=made.graph, weights=weights, batches=batches, torch=torch, update=RULE).walk([0.2, 0.2])


@each_of(TRAINING)
@pytest.mark.parametrize("name", MIXINGS)
def test_mixing_moves_weights_as_the_reference_does(variant, name):
    program, wanted = prepared(variant, mixed_task(MIXINGS[name])), expected(name)
    same(moves(program, network().weights(), [4], 0.2), wanted.arrays, 1e-8)
    assert program.outputs()["loss"] == pytest.approx(wanted.losses[-1], rel=1e-8)
    plain = expected("")
    assert max(np.abs(wanted.weights[each] - held).max() for each, held in plain.weights.items()) > 1e-4


@each_of(TRAINING)
def test_answers_are_scored_by_the_picture_s_own_label(variant):
    """With weights that move nowhere, mixing of labels alone must not change how many are right."""
    hosted = mixed_task(MIXINGS["on-the-host"])
    program = prepared(variant, hosted)
    moves(program, network().weights(), [4], 0.0)
    right = 0
    for index in range(4):
        fed = reference.doubles(hosted.batch(index))
        values = reference.evaluate(hosted.graph, reference.doubles(hosted.weights()), fed, every_node=True)
        right += int((values["dense"].argmax(-1) == fed["labels"]).sum())
    assert right == program.totals().right


def test_the_host_and_the_network_mix_alike():
    host, device = (mixed_task(MIXINGS[name]).batch(1) for name in ("on-the-host", "four-labels"))
    assert {"x", "labels", "mix_shares"} == set(host) and MIXED < set(device)
    op = next(node.op for node in mixed_task(MIXINGS["four-labels"]).graph if isinstance(node.op, ops.MixPictures))
    inside = reference.value(op, np, {}, *(device[name].astype("float64") for name in ("x", "mix_own", "mix_pasted")))
    np.testing.assert_allclose(host["x"], inside, atol=1e-6)
    np.testing.assert_allclose(host["mix_shares"].sum(1), 1, atol=1e-6)


def test_bytes_that_the_host_mixes_stay_bytes():
    pictures = np.arange(4 * 3 * 4 * 4, dtype="uint8").reshape(4, 3, 4, 4)
    found = MIXINGS["on-the-host"].fed({"x": pictures}, "x", seed=1, index=3)["x"]
    assert found.dtype == np.uint8 and found.shape == pictures.shape and not np.array_equal(found, pictures)


def test_what_has_no_pictures_or_no_classes_is_not_mixed():
    build = network().graph
    with pytest.raises(UserError, match="class labels"):
        build.with_outputs("dense").mixed(MIXINGS["mixup"])
