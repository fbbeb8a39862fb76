"""The oracle against independent loops."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from layermark import ops, reference
from layermark.laws import random_generator


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def rng(name: str = "test") -> np.random.Generator:
    return random_generator(7, name)


def run(op: ops.Op, *inputs: np.ndarray) -> tuple[np.ndarray, dict]:
    """What the reference gives for one operation, and the weights it used."""
    shapes = [each.shape for each in inputs]
    weights = {n: p.law.draw(rng(n), p.shape).astype("float64") for n, p in op.parameters(*shapes).items()}
    found = reference.value(op, np, weights, *inputs)
    assert op.shape(*shapes) == found.shape
    return found, weights


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def naive_conv(op: ops.Conv2d, weights: dict, x: np.ndarray) -> np.ndarray:
    out = np.zeros(op.shape(x.shape))
    share_in, share_out = x.shape[1] // op.groups, op.filters // op.groups
    for b, f, r, c in np.ndindex(*out.shape):
        for k, i, j in np.ndindex(share_in, *op.kernel):
            row = r * op.stride[0] + i * op.dilation[0] - op.padding[0]
            column = c * op.stride[1] + j * op.dilation[1] - op.padding[2]
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                channel = f // share_out * share_in + k
                out[b, f, r, c] += weights["weight"][f, k, i, j] * x[b, channel, row, column]
        out[b, f, r, c] += weights["bias"][f] if op.bias else 0.0
    return out


@pytest.mark.parametrize(
    "op",
    [
        ops.Conv2d(6, (3, 3)),
        ops.Conv2d(16, (3, 2), (2, 1), (2, 0, 1, 3), bias=True),
        ops.Conv2d(4, (3, 3), padding=(1, 1, 1, 1), groups=4),
        ops.Conv2d(8, (2, 3), (1, 2), (0, 1, 2, 0), (2, 2), groups=2, bias=True),
        ops.Conv2d(2, (1, 1), (3, 2), groups=2),
        ops.Conv2d(2, (7, 6)),
    ],
    ids=str,
)
def test_convolution(op):
    x = rng().standard_normal((2, 4, 7, 6))
    found, weights = run(op, x)
    np.testing.assert_allclose(naive_conv(op, weights, x), found, atol=1e-12)


def naive_gru(op: ops.Recurrent, w: dict, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    wr, wz, wn = np.split(w["weight"], 3)
    rr, rz, rn = np.split(w["recurrent"], 3)
    br, bz, bn = np.split(w["bias"], 3)
    r, z = sigmoid(wr @ x + rr @ h + br), sigmoid(wz @ x + rz @ h + bz)
    inner = rn @ (r * h) if op.reset == "before" else r * (rn @ h + w["recurrent_bias"])
    return (1 - z) * np.tanh(wn @ x + bn + inner) + z * h


def naive_lstm(op: ops.Recurrent, w: dict, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple:
    i, f, g, o = np.split(w["weight"] @ x + w["recurrent"] @ h + w["bias"], 4)
    c = sigmoid(f + op.forget_bias) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@pytest.mark.parametrize("reset", ["after", "before"])
def test_gru(reset):
    op, x = ops.Recurrent("gru", 5, reset=reset), rng().standard_normal((4, 3, 2))
    found, weights = run(op, x)
    for b in range(3):
        h = np.zeros(5)
        for t in range(4):
            h = naive_gru(op, weights, x[t, b], h)
            np.testing.assert_allclose(h, found[t, b], atol=1e-12)


@pytest.mark.parametrize("forget_bias", [0.0, 1.0])
def test_lstm(forget_bias):
    op, x = ops.Recurrent("lstm", 5, forget_bias=forget_bias), rng().standard_normal((4, 3, 2))
    found, weights = run(op, x)
    for b in range(3):
        h, c = np.zeros(5), np.zeros(5)
        for t in range(4):
            h, c = naive_lstm(op, weights, x[t, b], h, c)
            np.testing.assert_allclose(h, found[t, b], atol=1e-12)


def test_rnn_and_take_last():
    x = rng().standard_normal((4, 3, 2))
    found, w = run(ops.Recurrent("rnn", 5), x)
    h = np.zeros((3, 5))
    for t in range(4):
        h = np.tanh(x[t] @ w["weight"].T + h @ w["recurrent"].T + w["bias"])
    np.testing.assert_allclose(h, run(ops.TakeLast(), found)[0], atol=1e-12)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_without_bias_is_the_one_with_zeros(cell):
    x = rng().standard_normal((4, 3, 2))
    bare, weights = run(ops.Recurrent(cell, 5, bias=False), x)
    full = ops.Recurrent(cell, 5)
    zeros = {name: np.zeros(each.shape) for name, each in full.parameters(x.shape).items()}
    np.testing.assert_array_equal(bare, reference.value(full, np, zeros | weights, x))


def naive_norm(x: np.ndarray, members: list, op: ops.Norm) -> np.ndarray:
    """Each element less the mean of its members, over their deviation."""
    out = np.empty_like(x)
    for chosen in members:
        values = [x[place] for place in chosen]
        mean, variance = statistics.fmean(values), statistics.pvariance(values)
        for place in chosen:
            out[place] = (x[place] - mean) / math.sqrt(variance + op.epsilon)
    return out


def column(vector: np.ndarray) -> np.ndarray:
    return vector.reshape(1, -1, 1, 1)


def grouped_places(op: ops.Norm, shape: tuple) -> list:
    def group(channel: int) -> int:
        return channel % op.groups if op.strided else channel // (shape[1] // op.groups)

    places = list(np.ndindex(*shape))
    return [[p for p in places if p[0] == b and group(p[1]) == g] for b in range(shape[0]) for g in range(op.groups)]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups, strided):
    op, x = ops.Norm("group", groups, strided), rng().standard_normal((2, 6, 3, 2))
    found, w = run(op, x)
    expected = naive_norm(x, grouped_places(op, x.shape), op) * column(w["scale"]) + column(w["shift"])
    np.testing.assert_allclose(expected, found, atol=1e-12)


def test_batch_norm_of_a_training_batch():
    op, x = ops.Norm("batch", training=True), rng().standard_normal((3, 2, 2, 2))
    found, w = run(op, x)
    members = [[place for place in np.ndindex(*x.shape) if place[1] == c] for c in range(2)]
    expected = naive_norm(x, members, op) * column(w["scale"]) + column(w["shift"])
    np.testing.assert_allclose(expected, found, atol=1e-12)


def test_batch_norm_with_stored_statistics_and_none():
    x = rng().standard_normal((3, 2))
    found, w = run(ops.Norm("batch", epsilon=0.1), x)
    np.testing.assert_allclose((x - w["mean"]) / np.sqrt(w["variance"] + 0.1) * w["scale"] + w["shift"], found)
    np.testing.assert_array_equal(x, run(ops.Norm("none"), x)[0])


def test_proxy_norm():
    op, x = ops.Norm("proxy", 2, activation="swish"), rng().standard_normal((2, 4, 3, 3))
    found, w = run(op, x)
    grouped = naive_norm(x, grouped_places(op, x.shape), op)
    points = [statistics.NormalDist().inv_cdf((i + 0.5) / 200) for i in range(200)]
    for c in range(4):
        plain = grouped[:, c] * w["scale"][c] + w["shift"][c]
        t = [((1 + w["proxy_scale"][c]) * q + w["proxy_shift"][c]) * w["scale"][c] + w["shift"][c] for q in points]
        proxy = [each * sigmoid(each) for each in t]
        deviation = math.sqrt(statistics.pvariance(proxy) + 0.03)
        expected = (plain * sigmoid(plain) - statistics.fmean(proxy)) / deviation
        np.testing.assert_allclose(expected, found[:, c], atol=1e-12)


@pytest.mark.parametrize("kind", ["max", "average"])
def test_pool(kind):
    op, x = ops.Pool(kind, (3, 2), (2, 2), (1, 2, 0, 1)), rng().standard_normal((2, 3, 6, 5)) - 5
    found, _ = run(op, x)
    for b, c, r, s in np.ndindex(*found.shape):
        window = x[b, c, max(0, 2 * r - 1) : 2 * r + 2, 2 * s : 2 * s + 2]
        assert (window.max() if kind == "max" else window.mean()) == pytest.approx(found[b, c, r, s])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("relu", [0, 0, 0, 1, 4, 7]),
        ("relu6", [0, 0, 0, 1, 4, 6]),
        ("hard-sigmoid", [0, 1 / 3, 0.5, 2 / 3, 1, 1]),
        ("hard-swish", [0, -1 / 3, 0, 2 / 3, 4, 7]),
        ("sigmoid", sigmoid(np.array([-4.0, -1, 0, 1, 4, 7]))),
        ("tanh", np.tanh([-4, -1, 0, 1, 4, 7])),
        ("swish", sigmoid(np.array([-4.0, -1, 0, 1, 4, 7])) * [-4, -1, 0, 1, 4, 7]),
    ],
)
def test_activation(kind, expected):
    np.testing.assert_allclose(expected, run(ops.Activation(kind), np.array([-4.0, -1, 0, 1, 4, 7]))[0], atol=1e-15)


def test_activation_has_no_slope_at_its_bounds(torch):
    """As the frameworks have it, so that exact zeros (padding, other activations) agree."""
    x = torch.tensor([0.0, 6.0], dtype=torch.float64, requires_grad=True)
    xp = reference.array_namespace(x)
    total = reference.value(ops.Activation("relu6"), xp, {}, x).sum()
    assert [0.0, 0.0] == torch.autograd.grad(total, x)[0].tolist()


def test_moves_and_joins():
    x, gate = rng("x").standard_normal((2, 3, 4, 5)), rng("gate").standard_normal((2, 3))
    np.testing.assert_array_equal(np.pad(x, ((0, 0), (1, 2), (1, 0), (0, 3))), run(ops.Pad((1, 0, 0, 3), (1, 2)), x)[0])
    np.testing.assert_array_equal(x[:, :, ::2, ::3], run(ops.Subsample((2, 3)), x)[0])
    np.testing.assert_array_equal(3 * x, run(ops.Add(), x, x, x)[0])
    for pair in ((x, gate), (gate, x)):
        np.testing.assert_array_equal(np.einsum("bchw,bc->bchw", x, gate), run(ops.Multiply(), *pair)[0])
    np.testing.assert_array_equal(np.concatenate([x, x], 1), run(ops.Concat(), x, x)[0])
    np.testing.assert_array_equal(x.reshape(2, 60), run(ops.Flatten(), x)[0])
    np.testing.assert_allclose(x.mean((2, 3)), run(ops.GlobalPool(), x)[0])


def test_masks():
    x, bits = rng().standard_normal((2, 3)), np.array([[1.0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(x, run(ops.Dropout(0.2), x)[0])
    np.testing.assert_allclose(x * bits / 0.8, run(ops.Dropout(0.2), x, bits)[0])
    np.testing.assert_array_equal(x, run(ops.StochasticDepth(0.8), x)[0])
    np.testing.assert_allclose([x[0] / 0.8, x[1] * 0], run(ops.StochasticDepth(0.8), x, np.array([1.0, 0]))[0])


def test_eight_bit_pictures_are_cast_and_normalised():
    x = rng().integers(0, 256, (1, 2, 3, 3), dtype="uint8")
    found, _ = run(ops.Normalise((0.5, 0.4), (0.2, 0.3)), x)
    assert "float64" == found.dtype
    np.testing.assert_allclose((x[:, 1] / 255.0 - 0.4) / 0.3, found[:, 1])


def test_softmax_joins_all_later_axes():
    x = rng().standard_normal((3, 2, 4)) + 1000
    found, _ = run(ops.Softmax(1), x)
    np.testing.assert_allclose(np.ones(3), found.sum((1, 2)))
    np.testing.assert_allclose(np.exp(x[0] - 1000) / np.exp(x[0] - 1000).sum(), found[0])
    np.testing.assert_allclose(np.ones((3, 2)), run(ops.Softmax(2), x)[0].sum(2))


def test_losses():
    y, labels = rng("y").standard_normal((2, 3, 4)), np.array([[0, 3, 1], [2, 2, 0]])
    target = rng("t").random((2, 3, 4))
    p = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
    chosen = [p[i, j, labels[i, j]] for i, j in np.ndindex(2, 3)]
    np.testing.assert_allclose(((y - target) ** 2).sum(), run(ops.SumSquaredError(), y, target)[0])
    np.testing.assert_allclose(((y - target) ** 2).mean(), run(ops.MeanSquaredError(), y, target)[0])
    np.testing.assert_allclose(y.mean(), run(ops.Mean(), y)[0])
    np.testing.assert_allclose(-np.log(chosen).mean(), run(ops.CrossEntropy(), y, labels)[0])
    np.testing.assert_allclose(-(target * np.log(p)).sum() / 6, run(ops.CrossEntropy(), y, target)[0])
    np.testing.assert_allclose(-np.log(np.array(chosen) + 0.1).sum(), run(ops.NegativeLogLikelihood(0.1), p, labels)[0])


def test_smoothing_shares_among_the_other_classes():
    y = rng().standard_normal((2, 4))
    p = np.log(np.exp(y) / np.exp(y).sum(-1, keepdims=True))
    shares = np.array([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]])
    np.testing.assert_allclose(-(shares * p).sum() / 2, run(ops.CrossEntropy(0.3), y, np.array([1, 3]))[0])


def test_an_operation_without_a_rule_says_so():
    class Strange(ops.Op):
        def shape(self, *inputs):
            return inputs[0]

    with pytest.raises(NotImplementedError, match="Strange"):
        reference.value(Strange(), np, {}, np.zeros(1))


def test_doubles_leave_whole_numbers_alone():
    found = reference.doubles({"a": np.zeros(1, "float32"), "b": np.zeros(1, "int32"), "c": np.zeros(1, "uint8")})
    assert ["float64", "int32", "uint8"] == [each.dtype.name for each in found.values()]
