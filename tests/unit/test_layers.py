"""The layer workloads: shapes, defaults, items and work as the seed documents have them."""

from __future__ import annotations

import numpy as np
import pytest

from layermark.errors import UserError
from layermark.graph import Graph
from layermark.laws import Integers, Uniform
from layermark.ops import (
    Conv2d,
    CrossEntropy,
    Mean,
    MeanSquaredError,
    NegativeLogLikelihood,
    Softmax,
    SumSquaredError,
)
from layermark.options import options_of, read_record
from layermark.spec import Spec
from layermark.workloads.base import default_params, task, workload
from layermark.workloads.objective import Bits, Shares

NAMES = ("dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi")


def make(name: str, *, batch: int = 2, mode: str = "infer", loss: str = "target", **params: object) -> Graph:
    found = workload(name)
    return found.graph(found.Params(**params), batch_size=batch, mode=mode, loss=loss)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dense", {"size": 1024, "input_size": 0, "include_activation": False}),
        (
            "conv",
            {
                "input_height": 1080,
                "input_width": 1920,
                "channel_size": 4,
                "filter_number": 64,
                "kernel_size": (4, 4),
                "padding": (3, 3),
                "stride": (2, 2),
            },
        ),
        (
            "grouped_conv",
            {
                "filter_in": 64,
                "filter_out": 64,
                "kernel_size": (3, 3),
                "stride": (1, 1),
                "input_size": (56, 56),
                "block_repeats": 10,
                "group_dim": 1,
            },
        ),
        ("rnn", {"timesteps": 5, "hidden_size": 128, "input_size": 0, "cell": "fused", "bias": True}),
        (
            "gru",
            {"timesteps": 5, "hidden_size": 128, "input_size": 0, "cell": "fused", "bias": True, "reset": "after"},
        ),
        (
            "lstm",
            {
                "timesteps": 5,
                "hidden_size": 128,
                "input_size": 0,
                "cell": "fused",
                "bias": True,
                "forget_bias": 0.0,
                "seed_loss": "cross-entropy",
            },
        ),
        (
            "lstm_multi",
            {"timesteps": 200, "input_size": 16, "hidden_size": 256, "num_layers": 2, "cell": "fused"},
        ),
    ],
)
def test_defaults(name, expected):
    assert expected == default_params(workload(name))
    assert list(expected) == [each.name for each in options_of(workload(name).Params)]
    assert (32 if name == "dense" else 1) == workload(name).default_batch_size


@pytest.mark.parametrize(
    ("name", "params", "output", "macs", "parameters"),
    [
        ("dense", {}, (2, 1024), 2 * 1024**2, 1024**2 + 1024),
        ("dense", {"size": 8, "input_size": 3}, (2, 8), 2 * 24, 32),
        ("conv", {}, (2, 64, 542, 962), 2 * 64 * 542 * 962 * 4 * 16, 64 * 64 + 64),
        ("grouped_conv", {}, (2, 64, 56, 56), 2 * 10 * 9 * 64 * 56**2, 10 * 9 * 64),
        ("grouped_conv", {"group_dim": 8}, (2, 64, 56, 56), 2 * 10 * 9 * 8 * 64 * 56**2, 10 * 9 * 8 * 64),
        ("rnn", {"input_size": 16}, (5, 2, 128), 2 * 5 * 128 * 144, 128 * 145),
        ("gru", {"input_size": 16}, (5, 2, 128), 2 * 5 * 3 * 128 * 144, 3 * 128 * 145 + 128),
        ("gru", {"reset": "before"}, (5, 2, 128), 2 * 5 * 3 * 128 * 256, 3 * 128 * 257),
        ("lstm", {"bias": False}, (5, 2, 128), 2 * 5 * 4 * 128 * 256, 4 * 128 * 256),
        ("lstm", {"timesteps": 3, "hidden_size": 6}, (3, 2, 6), 2 * 3 * 4 * 6 * 12, 4 * 6 * 13),
        (
            "lstm_multi",
            {},
            (2, 1),
            2 * 200 * 1024 * (272 + 512) + 2 * 256,
            1024 * (272 + 1 + 512 + 1) + 257,
        ),
    ],
)
def test_shapes_work_and_parameters(name, params, output, macs, parameters):
    graph = make(name, **params)
    assert output == graph.shapes[graph.outputs[0]]
    assert macs == graph.macs
    assert parameters == graph.parameter_count


def test_the_default_convolution_is_2_136_g_multiply_adds():
    assert 2.136 == round(make("conv", batch=1).macs / 1e9, 3)


def test_flops_of_the_dense_layer_by_hand():
    sizes = {"size": 4, "input_size": 3}
    forward = 2 * 24 + 8
    loss = 3 * 8 + 1
    backward = 8 + 2 * 24 + 8
    assert forward == make("dense", **sizes).flops("infer")
    assert forward + loss == make("dense", mode="eval", **sizes).flops("eval")
    assert forward + loss + backward + 2 * 16 == make("dense", mode="train", **sizes).flops("train")


def test_flops_of_the_lstm_by_hand():
    sizes = {"timesteps": 2, "input_size": 4, "hidden_size": 5}
    forward = 2 * (2 * 3 * 20 * 9) + 30 * (9 + 4)
    loss = 7 * 30 + 2 * 6 + 1
    # The loss; weights and recurrent weights; the state's gradient but not the input's; gates and biases.
    backward = 3 * 30 + 2 * (2 * 3 * 20 * 9) + 2 * (2 * 3 * 20 * 5) + 30 * (22 + 4)
    assert forward == make("lstm", batch=3, **sizes).flops("infer")
    assert forward + loss == make("lstm", batch=3, mode="eval", **sizes).flops("eval")
    assert forward + loss + backward + 2 * 200 == make("lstm", batch=3, mode="train", **sizes).flops("train")


def test_compulsory_bytes_of_the_dense_layer():
    sizes = {"size": 4, "input_size": 3}
    assert 4 * (6 + 16 + 8) == make("dense", **sizes).compulsory_bytes("infer")
    assert 4 * (6 + 8 + 2 * 16 + 1) == make("dense", mode="train", **sizes).compulsory_bytes("train")
    assert 2 * (6 + 8) + 4 * 16 == make("dense", **sizes).compulsory_bytes("infer", 2, 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", ["target", "seed"])
def test_modes(name, loss):
    infer, evaluated, train = (make(name, mode=mode, loss=loss) for mode in ("infer", "eval", "train"))
    (y,) = infer.outputs
    assert (y, "loss") == evaluated.outputs
    assert ("loss",) == train.outputs
    assert ["x"] == list(infer.inputs)
    assert Uniform(-1, 1) == infer.inputs["x"].law
    assert infer.parameters == train.parameters
    assert () == train.shapes["loss"]


@pytest.mark.parametrize(
    ("name", "params", "loss", "expected"),
    [
        ("dense", {}, "target", [MeanSquaredError()]),
        ("dense", {}, "seed", [Mean()]),
        ("conv", {}, "target", [MeanSquaredError()]),
        ("conv", {}, "seed", [Softmax(1), SumSquaredError()]),
        ("grouped_conv", {}, "target", [MeanSquaredError()]),
        ("grouped_conv", {}, "seed", [Mean()]),
        ("rnn", {}, "target", [CrossEntropy()]),
        ("gru", {}, "seed", [CrossEntropy()]),
        ("lstm", {"seed_loss": "popart"}, "target", [CrossEntropy()]),
        ("lstm", {}, "seed", [CrossEntropy()]),
        ("lstm", {"seed_loss": "popart"}, "seed", [Softmax(1), NegativeLogLikelihood()]),
        ("lstm_multi", {}, "target", [MeanSquaredError()]),
        ("lstm_multi", {}, "seed", [MeanSquaredError()]),
    ],
)
def test_losses(name, params, loss, expected):
    forward, whole = make(name, **params), make(name, mode="train", loss=loss, **params)
    added = [node.op for node in whole if node.name not in forward.by_name]
    assert expected == [op for op in added if op not in whole.inputs.values()]


def test_targets():
    assert Shares() == make("rnn", mode="train").inputs["target"].law
    assert (5, 2, 128) == make("gru", mode="train").inputs["target"].dims
    assert (2, 1) == make("lstm_multi", mode="train").inputs["target"].dims
    assert Bits() == make("conv", mode="train", loss="seed").inputs["target"].law
    labels = make("lstm", mode="train", loss="seed", seed_loss="popart").inputs["target"]
    assert (Integers(0, 2), (5, 2), 1, 4) == (labels.law, labels.dims, labels.batch, labels.item_bytes)


def test_laws_of_targets():
    rng = np.random.default_rng(0)
    shares, bits = Shares().draw(rng, (3, 4, 50)), Bits().draw(rng, (100,))
    assert ["float32", "float32"] == [shares.dtype.name, bits.dtype.name]
    np.testing.assert_allclose(np.ones((3, 4)), shares.sum(-1), rtol=1e-6)
    assert {0.0, 1.0} == set(bits.tolist())


@pytest.mark.parametrize("name", NAMES)
def test_items(name):
    made = task(Spec(workload=name, backend="null", batch_size=3))
    assert (30 if name == "grouped_conv" else 3) == made.items
    assert 1 == made.graph.inputs["x"].batch if name in ("rnn", "gru", "lstm", "lstm_multi") else True


def test_the_forms_of_recurrent_layers_reach_the_operation():
    loop = make("gru", cell="loop", reset="before").by_name["gru"].op
    assert ("loop", "before") == (loop.form, loop.reset)
    assert {"loop"} == {make("lstm_multi", cell="loop").by_name[name].op.form for name in ("lstm1", "lstm2")}
    assert 3 == sum(name.startswith("lstm") for name in make("lstm_multi", num_layers=3).by_name)


def test_include_activation():
    assert ("relu",) == make("dense", include_activation=True).outputs


def convolutions(graph: Graph) -> list[Conv2d]:
    return [node.op for node in graph if isinstance(node.op, Conv2d)]


def test_grouped_convolutions_are_depthwise_by_default():
    assert [64] * 10 == [op.groups for op in convolutions(make("grouped_conv"))]
    assert [8] * 10 == [op.groups for op in convolutions(make("grouped_conv", group_dim=8))]


def test_later_kernels_keep_the_width_of_the_first():
    graph = make("grouped_conv", filter_in=32, filter_out=16, input_size=(112, 112), stride=(3, 3), block_repeats=4)
    assert [16, 8, 8, 8] == [op.groups for op in convolutions(graph)]
    assert {(16, 2, 3, 3)} == {each.shape for each in graph.parameters.values()}
    assert (2, 16, 2, 2) == graph.shapes["conv4"]


@pytest.mark.parametrize(
    "params",
    [
        {"group_dim": 3},
        {"filter_in": 10},
        {"filter_in": 96, "filter_out": 16, "group_dim": 2},
        {"group_dim": 128},
    ],
)
def test_groups_that_do_not_divide_channels(params):
    with pytest.raises(UserError, match=r"groups that do not divide channels.*--group-dim"):
        make("grouped_conv", **params)


def test_sizes_may_be_height_by_width():
    typed = {"kernel_size": "3x5", "stride": "2x1", "padding": "1x2", "input_height": "20", "input_width": "30"}
    params = read_record(workload("conv").Params, typed)
    assert {"kernel_size": (3, 5), "stride": (2, 1), "padding": (1, 2)}.items() <= params.items()
    graph = make("conv", **params)
    assert (2, 64, 10, 30) == graph.shapes["conv"]
    assert (1, 1, 2, 2) == graph.by_name["conv"].op.padding
    picture = read_record(workload("grouped_conv").Params, {"input_size": "7x9", "kernel_size": "3x1", "stride": "2"})
    assert (2, 64, 1, 1) == make("grouped_conv", **picture).shapes["conv10"]


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("dense", {"size": "0"}),
        ("conv", {"kernel_size": "0x3"}),
        ("conv", {"stride": "2x"}),
        ("rnn", {"cell": "slow"}),
        ("gru", {"reset": "during"}),
        ("lstm", {"seed_loss": "mean"}),
        ("lstm_multi", {"num_layers": "two"}),
    ],
)
def test_wrong_options_are_refused(name, typed):
    with pytest.raises(UserError, match="expected"):
        read_record(workload(name).Params, typed)


def test_a_kernel_larger_than_the_picture_is_refused():
    with pytest.raises(UserError, match="a window of 9x9 over 8x8 pixels"):
        make("conv", input_height=2, input_width=2, kernel_size=(9, 9))


def test_the_same_spec_draws_the_same_values():
    spec = Spec(workload="lstm", backend="null", batch_size=2, mode="train", params={"hidden_size": 4})
    first, second = task(spec), task(spec)
    for one, other in ((first.weights(), second.weights()), (first.batch(1), second.batch(1))):
        for name, expected in one.items():
            np.testing.assert_array_equal(expected, other[name])
    assert not np.array_equal(first.batch(0)["x"], first.batch(1)["x"])
