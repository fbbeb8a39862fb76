"""Checkpoints by name: what torchvision's modules hold comes out of our graphs as their modules compute it."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from layermark import reference, safetensors
from layermark.axes import complete
from layermark.errors import UserError
from layermark.spec import Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task

SIZE = 48
QUICKLY = ("--time-box", "1s", "--block", "100ms", "--execution", "eager")


class Residual(nn.Module):
    """A residual block as the paper draws it, with torchvision's names."""

    def __init__(self, inside, width, outside, stride, *, deep, groups=1):
        super().__init__()
        self.relu = nn.ReLU()
        if deep:
            self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
            self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outside)
        else:
            self.conv1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(width, outside, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if hasattr(self, "conv3"):
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class HandResNet(nn.Module):
    """ResNet and ResNeXt for ImageNet."""

    def __init__(self, blocks, *, deep, groups=1, group_width=64):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        before = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage * groups * group_width // 64
            after = 64 * 2**stage * (4 if deep else 1)
            made = []
            for index in range(count):
                stride = 2 if stage and not index else 1
                made.append(Residual(before, width, after, stride, deep=deep, groups=groups))
                before = after
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.fc = nn.Linear(before, 1000)

    def forward(self, x):
        y = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            y = getattr(self, f"layer{stage}")(y)
        return self.fc(y.mean((2, 3)))


def convolved(inside, out, kernel=1, stride=1, groups=1, activation=None):
    layers = [nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Linear2(nn.Module):
    """MobileNet v2's block."""

    def __init__(self, inside, out, stride, ratio):
        super().__init__()
        wide, self.adds = inside * ratio, stride == 1 and inside == out
        expand = [convolved(inside, wide, activation=nn.ReLU6)] if ratio > 1 else []
        deep = convolved(wide, wide, 3, stride, wide, nn.ReLU6)
        self.conv = nn.Sequential(*expand, deep, nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return x + self.conv(x) if self.adds else self.conv(x)


class HandMobileNet(nn.Module):
    """MobileNet v2."""

    def __init__(self):
        super().__init__()
        layers, before = [convolved(3, 32, 3, 2, 1, nn.ReLU6)], 32
        table = [
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ]
        for ratio, out, repeats, first in table:
            for index in range(repeats):
                layers.append(Linear2(before, out, 1 if index else first, ratio))
                before = out
        self.features = nn.Sequential(*layers, convolved(320, 1280, activation=nn.ReLU6))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class Gate(nn.Module):
    """Squeeze-and-excite."""

    def __init__(self, wide, narrow):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(wide, narrow, 1), nn.Conv2d(narrow, wide, 1)

    def forward(self, x):
        mean = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.fc2(nn.functional.silu(self.fc1(mean))))


class Mbconv(nn.Module):
    """EfficientNet's block."""

    def __init__(self, inside, out, kernel, stride, ratio):
        super().__init__()
        wide, self.adds = inside * ratio, stride == 1 and inside == out
        expand = [convolved(inside, wide, activation=nn.SiLU)] if ratio > 1 else []
        deep = convolved(wide, wide, kernel, stride, wide, nn.SiLU)
        self.block = nn.Sequential(*expand, deep, Gate(wide, inside // 4), convolved(wide, out))

    def forward(self, x):
        return x + self.block(x) if self.adds else self.block(x)


class HandEfficientNet(nn.Module):
    """EfficientNet-B0 with torchvision's names."""

    def __init__(self):
        super().__init__()
        table = [
            (3, 1, 16, 1),
            (3, 2, 24, 2),
            (5, 2, 40, 2),
            (3, 3, 80, 2),
            (5, 3, 112, 1),
            (5, 4, 192, 2),
            (3, 1, 320, 1),
        ]
        stages, before = [convolved(3, 32, 3, 2, 1, nn.SiLU)], 32
        for number, (kernel, repeats, out, first) in enumerate(table):
            made = []
            for index in range(repeats):
                made.append(Mbconv(before, out, kernel, 1 if index else first, 6 if number else 1))
                before = out
            stages.append(nn.Sequential(*made))
        self.features = nn.Sequential(*stages, convolved(320, 1280, activation=nn.SiLU))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


HAND = {
    "resnet18": lambda: HandResNet((2, 2, 2, 2), deep=False),
    "resnet50": lambda: HandResNet((3, 4, 6, 3), deep=True),
    "resnext50": lambda: HandResNet((3, 4, 6, 3), deep=True, groups=32, group_width=4),
    "mobilenet": HandMobileNet,
    "efficientnet-b0": HandEfficientNet,
}


def filled(module):
    """A module whose norms have statistics and gains of every kind, and whose activations neither die nor explode."""
    torch.manual_seed(5)
    module.train()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.5)
    with torch.no_grad():
        module(torch.randn(16, 3, SIZE, SIZE))
    return module.eval()


def saved(module, folder):
    path = folder / "weights.safetensors"
    checkpoint.write(path, [(name, each.float().numpy()) for name, each in module.state_dict().items()])
    return str(path)


def loaded(name, path, **params):
    params = {"image_size": (SIZE, SIZE), **params}
    return task(complete(Spec(workload=name, backend="null", batch_size=2, weights=path, params=params)))


@pytest.mark.parametrize("name", HAND)
def test_the_graph_computes_what_a_module_written_by_hand_computes(name, tmp_path):
    module = filled(HAND[name]())
    made = loaded(name, saved(module, tmp_path))
    fed, weights = reference.doubles(made.batch(0)), reference.doubles(made.weights())
    (actual,) = reference.evaluate(made.graph, weights, fed).values()
    with torch.no_grad():
        expected = module.double()(torch.as_tensor(fed["x"])).numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-9 * np.abs(expected).max())


def test_a_kernel_without_the_channel_of_zeros_fits(tmp_path):
    path = saved(filled(HAND["resnet18"]()), tmp_path)
    three, four = loaded("resnet18", path), loaded("resnet18", path, input_image_padding=True)
    one, other = (
        reference.evaluate(each.graph, reference.doubles(each.weights()), reference.doubles(each.batch(0)))["fc"]
        for each in (three, four)
    )
    np.testing.assert_allclose(one, other)


def test_names_of_other_libraries():
    """timm's, and those of the older EfficientNet package; each must give every parameter exactly once."""
    made = task(complete(Spec(workload="efficientnet-b0", backend="null")))
    shapes = {name: each.shape for name, each in made.graph.parameters.items()}
    words = {"scale": "weight", "shift": "bias", "mean": "running_mean", "variance": "running_var"}
    keys = {
        name: ".".join([*name.split("/")[:-1], words.get(name.split("/")[-1], name.split("/")[-1])]) for name in shapes
    }
    assert "blocks.1.0.conv_pw.weight" in keys.values() and "blocks.1.0.se.conv_reduce.bias" in keys.values()
    squeezed = {
        keys[name]: (*shape, 1, 1) if "/se/" in name and len(shape) == 2 else shape for name, shape in shapes.items()
    }
    assert keys == checkpoint.fitted(made.graph, squeezed, "timm")
    for old, node in {"_conv_stem": "conv_stem", "_bn0": "bn1", "_blocks.1._expand_conv": "blocks/1/0/conv_pw"}.items():
        assert made.graph.aliases[old.replace(".", "/")] == node


def test_what_does_not_fit_is_listed(tmp_path):
    module = filled(HAND["resnet18"]())
    del module.fc
    module.head = nn.Linear(3, 4)
    with pytest.raises(
        UserError, match=r"does not fit: missing: fc.weight, fc.bias; left over: head.weight, head.bias"
    ):
        loaded("resnet18", saved(module, tmp_path))
    module.fc = nn.Linear(512, 10)
    with pytest.raises(UserError, match=r"of another shape: fc.weight \[10, 512\] instead of \[1000, 512\]"):
        loaded("resnet18", saved(module, tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the header does not fit"),
        (b"\xff" * 64, "the header does not fit"),
        ((16).to_bytes(8, "little") + b"not json at all.", "cannot read"),
        (
            (80).to_bytes(8, "little") + b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'.ljust(80),
            "the file is cut short",
        ),
        (
            (80).to_bytes(8, "little") + b'{"a": {"dtype": "F99", "shape": [0], "data_offsets": [0, 0]}}'.ljust(80),
            "type F99 is not known",
        ),
    ],
)
def test_broken_files(content, reason, tmp_path):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        loaded("resnet18", str(path))


@pytest.mark.parametrize(("name", "reason"), [("none.safetensors", "no such file"), ("weights.txt", "ends in")])
def test_other_files(name, reason, tmp_path):
    (tmp_path / "weights.txt").write_text("")
    with pytest.raises(UserError, match=reason):
        loaded("resnet18", str(tmp_path / name))


def test_half_precision_is_widened(tmp_path):
    path = tmp_path / "half.safetensors"
    facts = {
        "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "F16", "shape": [1], "data_offsets": [4, 6]},
    }
    doc = json.dumps(facts).encode()
    raw = np.array([1.5, -2.0], "float32").view("uint32") >> 16
    path.write_bytes(len(doc).to_bytes(8, "little") + doc + raw.astype("uint16").tobytes() + np.float16(0.25).tobytes())
    entries, data = safetensors.header(path), np.fromfile(path, "u1")
    assert [1.5, -2.0, 0.25] == [*checkpoint._array(data, entries["a"]), *checkpoint._array(data, entries["b"])]


class Trap:
    """What a hostile checkpoint holds."""

    def __reduce__(self):
        return print, ("this must never be printed",)


def test_pth_files_are_read_by_a_worker_and_never_run(layermark, tmp_path):
    small = ("--image-size", "32", "--backend", "torch", *QUICKLY)
    torch.save({"state_dict": filled(HAND["resnet18"]()).state_dict()}, tmp_path / "good.pth")
    finished = layermark("run", "resnet18", "--weights", "good.pth", "--json", *small)
    assert 0 == finished.status, finished.stderr
    (document,) = finished.documents
    assert document["verified"]["ok"] and "good.pth" == document["spec"]["weights"]
    torch.save({"conv1.weight": Trap()}, tmp_path / "bad.pth")
    finished = layermark("run", "resnet18", "--weights", "bad.pth", *small)
    assert 2 == finished.status
    assert "weights-only loader refuses it" in finished.stderr
    assert "never be printed" not in finished.stdout + finished.stderr
