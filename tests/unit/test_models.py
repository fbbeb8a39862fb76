"""The CNN models: parameters, multiply-adds, names and variants as the seed documents have them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from layermark.axes import complete, expand
from layermark.cli.describe import describe
from layermark.errors import UserError
from layermark.graph import Graph
from layermark.ops import Activation, Conv2d, CrossEntropy, Dropout, Norm, Pool, StochasticDepth
from layermark.registry import modules
from layermark.spec import Spec
from layermark.worker.distance import Comparison
from layermark.worker.verify import judged, output_tolerance
from layermark.workloads.base import task, workload
from layermark.workloads.models.base import Model, ModelParams, Net

MODELS = sorted(name for name in modules("workloads") if isinstance(workload(name), Model))
TENSORFLOW = {"convention": "tensorflow"}
G16 = {"group_dim": 16, "expand_ratio": 4}


def make(name: str, *, batch: int = 1, mode: str = "infer", **params: object) -> Graph:
    found = workload(name)
    return found.graph(found.Params(**params), batch_size=batch, mode=mode, loss="target")


@pytest.mark.parametrize(
    ("name", "params", "parameters", "with_statistics", "macs"),
    [
        ("resnet18", {}, 11_689_512, None, "1.81"),
        ("resnet18", TENSORFLOW, 11_693_736, 11_703_464, "1.83"),
        ("resnet34", {}, 21_797_672, None, "3.66"),
        ("resnet34", TENSORFLOW, 21_801_896, 21_819_048, "3.68"),
        ("resnet50", {}, 25_557_032, 25_610_152, "4.09"),
        ("resnet101", {}, 44_549_160, 44_654_504, "7.80"),
        ("resnet152", {}, 60_192_808, 60_344_232, "11.51"),
        ("resnext14", {}, 9_411_880, 9_435_048, "1.59"),
        ("resnext50", {}, 25_028_904, 25_097_128, "4.23"),
        ("resnext101-32x4d", {}, 44_177_704, 44_315_560, "7.97"),
        ("resnext101", {}, 88_791_336, None, "16.41"),
        ("efficientnet-b0", {}, 5_288_548, 5_330_564, "0.386"),
        ("efficientnet-b1", {}, 7_794_184, 7_856_232, "0.687"),
        ("efficientnet-b2", {}, 9_109_994, 9_177_562, "0.994"),
        ("efficientnet-b3", {}, 12_233_232, 12_320_528, "1.83"),
        ("efficientnet-b4", {}, 19_341_616, 19_466_816, "4.39"),
        ("efficientnet-b5", {}, 30_389_784, None, "10.3"),
        ("efficientnet-b6", {}, 43_040_704, None, "19.1"),
        ("efficientnet-b7", {}, 66_347_960, None, "37.7"),
        ("efficientnet-b0", G16, 5_913_796, 5_943_908, "0.635"),
        ("efficientnet-b4", G16, 19_328_168, 19_416_312, "6.18"),
        ("mobilenet", {}, 3_504_872, None, "0.301"),
        ("mobilenet-v3-small", {}, 2_945_288, None, "0.057"),
        ("mobilenet-v3-large", {}, 5_481_752, None, "0.217"),
        ("mobilenet-v3-small", {"head_width": 1024, "head_bias": True}, 2_542_856, None, "0.057"),
        ("mobilenet-v3-large", {"head_bias": True}, 5_483_032, None, "0.217"),
        ("squeezenet", {}, 1_248_424, None, "0.82"),
        ("squeezenet-v1.1", {}, 1_235_496, None, "0.35"),
    ],
)
def test_parameters_and_multiply_adds(name, params, parameters, with_statistics, macs):
    facts = describe(complete(Spec(workload=name, backend="null", params=params)))
    assert parameters == facts["parameters"]
    assert with_statistics in (None, facts["parameters_and_statistics"])
    digits = len(macs.split(".")[1])
    assert macs == f"{facts['macs'] / 1e9:.{digits}f}"


def test_both_conventions_of_a_bottleneck_net_have_the_same_parameters():
    assert make("resnet50").parameters == make("resnet50", **TENSORFLOW).parameters


@pytest.mark.parametrize("name", MODELS)
def test_modes(name):
    batch, classes = 2, 10 if "cifar" in name else 1000
    infer, evaluated, train = (make(name, batch=batch, mode=mode) for mode in ("infer", "eval", "train"))
    (y,) = infer.outputs
    assert (batch, classes) == infer.shapes[y]
    assert (y, "loss") == evaluated.outputs
    assert ("loss",) == train.outputs
    assert CrossEntropy() == train.by_name["loss"].op
    assert infer.parameters == train.parameters
    assert ["x"] == list(infer.inputs)
    assert not any(getattr(node.op, "training", False) for node in evaluated)
    assert all(node.op.training for node in train if isinstance(node.op, Norm))
    assert batch == task(complete(Spec(workload=name, backend="null", batch_size=batch))).items


def test_training_masks_are_inputs():
    train = make("efficientnet-b0", batch=3, mode="train")
    depths = [node.op.survival for node in train if isinstance(node.op, StochasticDepth)]
    assert 9 == len(depths) == sum(isinstance(node.op, StochasticDepth) for node in train)
    assert depths == sorted(depths, reverse=True) and 1 > depths[0] > depths[-1] > 0.8
    assert [0.2] == [node.op.rate for node in train if isinstance(node.op, Dropout)]
    assert (3, 1280) == train.inputs["dropout/mask"].dims
    masks = [op for op in train.inputs.values() if op.role == "mask"]
    assert 10 == len(masks)


@pytest.mark.parametrize(
    ("name", "params", "splits", "shares", "parameters"),
    [
        ("resnet50", {}, "b1/2/relu,b2/3/relu,b3/3/relu", [19, 25, 25, 31], [0.23, 1.22, 4.86, 19.25]),
        ("resnext101-32x4d", {}, "b3/3/relu", [37, 63], [6.18, 38.0]),
        ("efficientnet-b4", G16, "block2c,block4c,block6a", [17, 26, 30, 27], [0.07, 0.76, 3.68, 14.82]),
    ],
)
def test_stages_of_the_seeds_splits(name, params, splits, shares, parameters):
    stages = make(name, **(TENSORFLOW | params)).cut(splits.split(","))
    total = sum(stage.macs for stage in stages)
    assert shares == [round(100 * stage.macs / total) for stage in stages]
    assert parameters == [round(stage.parameter_count / 1e6, 2) for stage in stages]


@pytest.mark.parametrize(
    ("name", "split", "first"),
    [
        ("resnet50", "b1/0", "layer1/0/conv1"),
        ("resnet50", "b4/2/relu", "layer4/2/relu"),
        ("resnet50", "reduce_mean", "avgpool"),
        ("resnet50", "fc1", "fc"),
        ("resnet50", "layer1/0/conv1", "layer1/0/conv1"),
        ("resnet50", "layer3/2", "layer3/2/conv1"),
        ("resnet50", "layer4", "layer4/0/conv1"),
        ("efficientnet-b0", "block1a/b", "blocks/0/0/conv_dw"),
        ("efficientnet-b0", "block1a/SE", "blocks/0/0/se/pool"),
        ("efficientnet-b0", "block1a/c", "blocks/0/0/conv_pw"),
        ("efficientnet-b0", "block2a", "blocks/1/0/conv_pw"),
        ("efficientnet-b0", "block2a/b", "blocks/1/0/conv_dw"),
        ("efficientnet-b0", "block2b", "blocks/1/1/conv_pw"),
        ("efficientnet-b0", "block7a/c", "blocks/6/0/conv_pwl"),
        ("efficientnet-b0", "Top", "conv_head"),
        ("efficientnet-b0", "_blocks/4/_bn1", "blocks/2/1/bn2"),
        ("efficientnet-b0", "_fc", "classifier"),
        ("efficientnet-b0", "blocks/2/1", "blocks/2/1/conv_pw"),
        ("efficientnet-b0", "features/3/1", "blocks/2/1/conv_pw"),
        ("mobilenet", "features/7", "blocks/3/0/conv_pw"),
        ("mobilenet-v3-large", "features/16", "blocks/6/0/conv"),
        ("squeezenet", "fire5", "features/7/squeeze"),
    ],
)
def test_split_names_of_every_vocabulary(name, split, first):
    graph = make(name)
    assert split in graph.splits
    assert first == graph.aliases.get(split, split)
    assert 2 == len(graph.cut([split]))


def test_a_block_with_an_identity_path_is_one_name():
    assert not {"block2b/b", "block2b/SE", "block2b/c", "block1a"} & set(make("efficientnet-b0").splits)


def test_splits_are_checked_with_the_request():
    (spec,) = expand(["resnet18"], {"backend": "null", "pipeline_splits": "layer3/0, fc"}).specs
    assert ("layer3/0", "fc") == spec.splits
    with pytest.raises(UserError, match=r"resnet18: unknown split 'layer3/7'; did you mean layer3/\d"):
        expand(["resnet18"], {"backend": "null", "pipeline_splits": "layer3/7"})


@pytest.mark.parametrize(("same", "message"), [(True, ""), (False, "32 groups, 24 channels")])
def test_the_tensorflow_programs_have_at_most_as_many_groups_as_channels(same, message):
    net = Net(ModelParams(norm_type="group", norm_num_groups=32), training=False, same=same)
    x = net.input("x", (1, 24, 4, 4))
    with pytest.raises(UserError, match=message) if message else nullcontext():
        assert 24 == net.build.graph(net.norm("bn", x)).by_name["bn"].op.groups


def test_group_dim_and_expand_ratio():
    twice = make("efficientnet-b0", expand_ratio=2).shapes
    assert 2 * 16 == twice["blocks/1/0/conv_pw"][1]
    pairs = make("efficientnet-b0", group_dim=2).by_name["blocks/1/0/conv_dw"].op
    assert 2 * pairs.groups == pairs.filters == 96
    assert 1 == make("efficientnet-b4", **G16).by_name["blocks/0/1/conv_dw"].op.groups
    with pytest.raises(UserError, match="groups that do not divide channels"):
        make("efficientnet-b6", **G16)


def test_conventions_pad_differently():
    assert (1, 1, 1, 1) == make("resnet50").by_name["maxpool"].op.padding
    assert (0, 1, 0, 1) == make("resnet50", **TENSORFLOW).by_name["maxpool"].op.padding
    assert (1, 1, 1, 1) == make("resnet50", **TENSORFLOW).by_name["layer2/0/conv2"].op.padding
    assert (1, 1, 1, 1) == make("efficientnet-b0").by_name["conv_stem"].op.padding
    assert (0, 1, 0, 1) == make("efficientnet-b0", **TENSORFLOW).by_name["conv_stem"].op.padding
    assert (1, 2, 1, 2) == make("efficientnet-b0", **TENSORFLOW).by_name["blocks/2/0/conv_dw"].op.padding


def test_the_stride_of_a_bottleneck_is_in_its_middle():
    strides = [make("resnet50").by_name[f"layer2/0/conv{k}"].op.stride for k in (1, 2, 3)]
    assert [(1, 1), (2, 2), (1, 1)] == strides


def test_norms():
    group = make("resnet18", norm_type="group", norm_num_groups=4, norm_strided=True, norm_eps=1e-3).by_name["bn1"].op
    assert ("group", 4, True, 1e-3) == (group.kind, group.groups, group.strided, group.epsilon)
    bare = make("resnet18", norm_type="none")
    assert 11_689_512 - 2 * 4800 == bare.parameter_count
    proxy = make("efficientnet-b0", norm_type="proxy", norm_num_groups=4)
    assert "swish" == proxy.by_name["bn1"].op.activation
    assert "group" == proxy.by_name["blocks/0/0/bn2"].op.kind
    assert not any(node.op == Activation("swish") for node in proxy if "/se/" not in node.name)
    with pytest.raises(UserError, match="groups that do not divide channels"):
        make("efficientnet-b0", norm_type="group")


@pytest.mark.parametrize(("pictures", "item_bytes", "first"), [("float", 0, "normalise"), ("8-bit", 1, "normalise")])
def test_pictures_that_the_model_normalises(pictures, item_bytes, first):
    graph = make("resnet18", pictures=pictures)
    assert item_bytes == graph.inputs["x"].item_bytes
    assert (first,) == graph.by_name["conv1"].inputs


def test_a_fourth_channel():
    assert (1, 4, 224, 224) == make("mobilenet", input_image_padding=True).shapes["pad"]


def test_cifar_sizes():
    basic, bottleneck = make("resnet20-cifar"), make("resnet29-cifar")
    assert (1, 3, 32, 32) == basic.inputs["x"].dims
    assert not any(isinstance(node.op, Pool) for node in basic)
    assert 19 == sum(isinstance(node.op, Conv2d) for node in basic)
    assert ("layer2/0/downsample/pad",) == basic.by_name["layer2/0/add"].inputs[1:]
    assert "layer1/0/downsample/0" in bottleneck.by_name
    assert (1, 256, 8, 8) == bottleneck.shapes["layer3/2/add"]
    assert make("resnext29-cifar", widenet=True).parameter_count > make("resnext29-cifar").parameter_count
    with pytest.raises(UserError, match="--widenet is for the CIFAR sizes"):
        make("resnext50", widenet=True)


def test_sizes_and_classes_can_be_changed():
    graph = make("resnet18", image_size=(64, 96), classes=7)
    assert (1, 3, 64, 96) == graph.inputs["x"].dims
    assert (1, 7) == graph.shapes["fc"]
    with pytest.raises(UserError, match="a window"):
        make("squeezenet", image_size=(8, 8))


def test_depth_and_what_is_live_at_once():
    assert [18, 50, 101, 53] == [make(name).depth for name in ("resnet18", "resnet50", "resnext101", "mobilenet")]
    graph = make("resnet18")
    # The worst moment is the stem: its convolution's output and that of the norm after it.
    assert 2 * 64 * 112 * 112 == graph.most_live
    assert 8 * graph.most_live == make("resnet18", batch=8).most_live


def test_deep_networks_are_allowed_more():
    assert 1e-4 == output_tolerance("32.32", make("resnet18"))
    assert pytest.approx(2e-4) == output_tolerance("32.32", make("resnet50"))
    assert pytest.approx(101 / 25e4) == output_tolerance("32.32", make("resnext101"))
    assert 0.5 == output_tolerance("bf16.bf16", make("resnet152"))


@pytest.mark.parametrize(
    ("precision", "partials", "error", "reason"),
    [
        ("16.16", "full", 0.09, "--partials half accepts such sums"),
        ("16.16", "full", 0.9, "wrong result"),
        ("16.16", "half", 0.09, "wrong result"),
        ("32.32", "full", 0.09, "computes in another type"),
        ("16.16", "full", 0.05, ""),
    ],
)
def test_sums_in_sixteen_bits_are_named(precision, partials, error, reason):
    spec = Spec(workload="mobilenet", backend="null", batch_size=1, precision=precision, partials=partials)
    found = judged(spec, [Comparison("classifier", error, 0.06)])
    assert reason in found.reason
    assert found.ok == (reason == "")


@pytest.mark.parametrize(
    ("pictures", "inside", "expected"),
    [
        ("raw", "full", (1 / 255, 0.485, 0.229)),
        ("8-bit", "full", (1 / 255, 0.485, 0.229)),
        ("float", "full", (1.0, 0.485, 0.229)),
        ("8-bit", "mean", (1.0, 123.68, 1.0)),
        ("raw", "mean", (1.0, 123.68, 1.0)),
        ("float", "mean", (1.0, 123.68 / 255, 1.0)),
        ("8-bit", "none", (1.0, 0.0, 1.0)),
    ],
)
def test_what_the_model_does_to_pictures(pictures, inside, expected):
    op = make("resnet18", pictures=pictures, normalise_inside=inside).by_name["normalise"].op
    assert pytest.approx(expected) == (op.scale, op.mean[0], op.deviation[0])


def test_parts_of_efficientnet_can_be_changed():
    plain = make("efficientnet-b0")
    assert not any("/se/" in node.name for node in make("efficientnet-b0", squeeze_excite=False))
    assert "block3a/SE" not in make("efficientnet-b0", squeeze_excite=False).aliases
    assert {"relu", "sigmoid"} == {
        node.op.kind for node in make("efficientnet-b0", activation="relu") if isinstance(node.op, Activation)
    }
    bare = make("efficientnet-b0", top_width=0)
    assert "conv_head" not in bare.by_name and (1, 320) == bare.shapes["global_pool"]
    assert "global_pool" == bare.aliases["Top"]
    wide = make("efficientnet-b0", width_coefficient=1.4, depth_coefficient=1.8)
    assert make("efficientnet-b4").parameter_count == wide.parameter_count
    assert make("efficientnet-b0", depth_divisor=16, width_coefficient=1.1).parameters != plain.parameters
    trained = make("efficientnet-b0", mode="train", dropout_rate=0.4, block_survival_prob=0.5)
    assert 0.4 == trained.by_name["dropout"].op.rate
    assert make("efficientnet-b0", mode="train") != trained
    proxy = make("efficientnet-b0", norm_type="proxy", norm_num_groups=4, proxy_epsilon=0.1)
    assert 0.1 == proxy.by_name["bn1"].op.proxy_epsilon
