"""Shapes, parameters and counted work of every operation, by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from layermark import ops
from layermark.errors import UserError
from layermark.laws import Constant, Normal, Uniform

IMAGE = (2, 4, 6, 8)
ROWS = (3, 5)
SEQUENCE = (7, 2, 3)


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        (ops.Input((3, 4)), (), (3, 4)),
        (ops.Dense(7), (ROWS,), (3, 7)),
        (ops.Dense(7), (SEQUENCE,), (7, 2, 7)),
        (ops.Conv2d(6, (3, 3)), (IMAGE,), (2, 6, 4, 6)),
        (ops.Conv2d(6, (3, 1), (2, 3), (1, 0, 2, 1)), (IMAGE,), (2, 6, 3, 4)),
        (ops.Conv2d(8, (3, 3), dilation=(2, 3), groups=4), (IMAGE,), (2, 8, 2, 2)),
        (ops.Norm("batch"), (IMAGE,), IMAGE),
        (ops.Norm("group", 2), ((3, 4),), (3, 4)),
        (ops.Activation("relu"), (ROWS,), ROWS),
        (ops.Pool("max", (3, 3), (2, 2), (1, 1, 1, 1)), (IMAGE,), (2, 4, 3, 4)),
        (ops.GlobalPool(), (IMAGE,), (2, 4)),
        (ops.Add(), (ROWS, ROWS, ROWS), ROWS),
        (ops.Multiply(), (IMAGE, (2, 4)), IMAGE),
        (ops.Multiply(), ((2, 4), IMAGE), IMAGE),
        (ops.Concat(), (IMAGE, (2, 3, 6, 8)), (2, 7, 6, 8)),
        (ops.Concat(0), (ROWS, (4, 5)), (7, 5)),
        (ops.Pad((1, 2, 3, 4), (5, 6)), (IMAGE,), (2, 15, 9, 15)),
        (ops.Subsample((4, 3)), (IMAGE,), (2, 4, 2, 3)),
        (ops.Normalise((0.5,) * 4, (0.2,) * 4), (IMAGE,), IMAGE),
        (ops.Dropout(0.5), (ROWS, ROWS), ROWS),
        (ops.StochasticDepth(0.8), (IMAGE, (2,)), IMAGE),
        (ops.Recurrent("lstm", 9), (SEQUENCE,), (7, 2, 9)),
        (ops.TakeLast(), (SEQUENCE,), (2, 3)),
        (ops.Softmax(1), (SEQUENCE,), SEQUENCE),
        (ops.Flatten(), (IMAGE,), (2, 192)),
        (ops.MeanSquaredError(), (ROWS, ROWS), ()),
        (ops.SumSquaredError(), (ROWS, ROWS), ()),
        (ops.CrossEntropy(), (SEQUENCE, (7, 2)), ()),
        (ops.CrossEntropy(), (SEQUENCE, SEQUENCE), ()),
        (ops.Mean(), (IMAGE,), ()),
        (ops.NegativeLogLikelihood(), (SEQUENCE, (7, 2)), ()),
    ],
)
def test_shape(op, inputs, expected):
    assert expected == op.shape(*inputs)


@pytest.mark.parametrize(
    ("make", "inputs", "part"),
    [
        (lambda: ops.Input((1,), role="spy"), (), "unknown input role 'spy'"),
        (lambda: ops.Dense(0), (ROWS,), "units 0, expected units of at least 1"),
        (lambda: ops.Dense(1), ((),), "a scalar"),
        (lambda: ops.Dense(1), (ROWS, ROWS), "2 inputs, expected 1 inputs"),
        (lambda: ops.Conv2d(6, (3, 3), groups=4), (IMAGE,), "groups that do not divide channels: 4 groups"),
        (lambda: ops.Conv2d(6, (3, 3), groups=3), (IMAGE,), "set groups to a divisor of 2"),
        (lambda: ops.Conv2d(6, (7, 3)), (IMAGE,), "a window of 7x3 over 6x8 pixels"),
        (lambda: ops.Conv2d(6, (3, 3), (0, 1)), (IMAGE,), "stride 0"),
        (lambda: ops.Conv2d(6, (3, 3)), (ROWS,), "expected [batch, channels, height, width]"),
        (lambda: ops.Norm("layer"), (IMAGE,), "unknown norm 'layer'"),
        (lambda: ops.Norm("group", 3), (IMAGE,), "3 groups, 4 channels"),
        (lambda: ops.Norm("batch", activation="relu"), (IMAGE,), "add an Activation after it"),
        (lambda: ops.Norm("proxy", activation="gelu"), (IMAGE,), "unknown activation 'gelu'"),
        (lambda: ops.Activation("rely"), (ROWS,), "did you mean relu"),
        (lambda: ops.Pool("min", (2, 2), (2, 2)), (IMAGE,), "unknown pool 'min'"),
        (lambda: ops.Pool("max", (2, 2), (2, 2), (2, 0, 0, 0)), (IMAGE,), "padding below the window's size"),
        (lambda: ops.GlobalPool(), (ROWS,), "shape (3, 5)"),
        (lambda: ops.Add(), (ROWS,), "two or more inputs"),
        (lambda: ops.Add(), (ROWS, (3, 4)), "shapes (3, 5) and (3, 4), expected equal shapes"),
        (lambda: ops.Multiply(), (IMAGE, (2, 3)), "a channel gate"),
        (lambda: ops.Concat(4), (IMAGE, IMAGE), "along axis 4"),
        (lambda: ops.Concat(), (IMAGE, (2, 4, 6, 7)), "equal shapes"),
        (lambda: ops.Pad((-1, 0, 0, 0)), (IMAGE,), "padding -1"),
        (lambda: ops.Subsample((0, 1)), (IMAGE,), "stride 0"),
        (lambda: ops.Normalise((0.5,), (0.0,)), (IMAGE,), "no deviation zero"),
        (lambda: ops.Normalise((0.5,) * 3, (0.2,) * 3), (IMAGE,), "expected 3 channels"),
        (lambda: ops.Dropout(1.0), (ROWS,), "rate 1.0"),
        (lambda: ops.Dropout(0.5), (ROWS, (3,)), "equal shapes"),
        (lambda: ops.StochasticDepth(0.0), (ROWS,), "survival 0.0"),
        (lambda: ops.StochasticDepth(0.5), (IMAGE, (4,)), "a mask of shape (4,), expected shape (2,)"),
        (lambda: ops.Recurrent("elman", 4), (SEQUENCE,), "unknown recurrent cell 'elman'"),
        (lambda: ops.Recurrent("rnn", 4, "slow"), (SEQUENCE,), "unknown recurrent form 'slow'"),
        (lambda: ops.Recurrent("gru", 4, reset="during"), (SEQUENCE,), "unknown gru reset"),
        (lambda: ops.Recurrent("gru", 4), (ROWS,), "expected [time, batch, features]"),
        (lambda: ops.TakeLast(), (ROWS,), "feed it sequences"),
        (lambda: ops.Softmax(2), (ROWS,), "axis 2 of shape (3, 5)"),
        (lambda: ops.Flatten(), ((3,),), "[batch, channels, ...]"),
        (lambda: ops.MeanSquaredError(), (ROWS, (3,)), "equal shapes"),
        (lambda: ops.SumSquaredError(), (ROWS,), "1 inputs, expected 2 inputs"),
        (lambda: ops.CrossEntropy(), (ROWS, (5,)), "expected labels of shape (3,) or (3, 5)"),
        (lambda: ops.CrossEntropy(1.0), (ROWS, (3,)), "smoothing 1.0"),
        (lambda: ops.CrossEntropy(0.1), (ROWS, ROWS), "whole-number labels"),
        (lambda: ops.NegativeLogLikelihood(), (ROWS, ROWS), "expected labels of shape (3,)"),
        (lambda: ops.Mean(), (), "0 inputs"),
    ],
)
def test_misfits_are_one_clear_line(make, inputs, part):
    with pytest.raises(UserError) as caught:
        make().shape(*inputs)
    assert part in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        (ops.Dense(7), (ROWS,), {"weight": (7, 5), "bias": (7,)}),
        (ops.Dense(7, bias=False), (ROWS,), {"weight": (7, 5)}),
        (ops.Conv2d(8, (3, 2), groups=2), (IMAGE,), {"weight": (8, 2, 3, 2)}),
        (ops.Conv2d(8, (3, 2), bias=True), (IMAGE,), {"weight": (8, 4, 3, 2), "bias": (8,)}),
        (ops.Norm("none"), (IMAGE,), {}),
        (ops.Norm("group", 2), (IMAGE,), {"scale": (4,), "shift": (4,)}),
        (ops.Norm("batch"), (IMAGE,), dict.fromkeys(("scale", "shift", "mean", "variance"), (4,))),
        (ops.Norm("proxy"), (IMAGE,), dict.fromkeys(("scale", "shift", "proxy_scale", "proxy_shift"), (4,))),
        (ops.Recurrent("rnn", 9), (SEQUENCE,), {"weight": (9, 3), "recurrent": (9, 9), "bias": (9,)}),
        (ops.Recurrent("lstm", 9, bias=False), (SEQUENCE,), {"weight": (36, 3), "recurrent": (36, 9)}),
        (
            ops.Recurrent("gru", 9),
            (SEQUENCE,),
            {"weight": (27, 3), "recurrent": (27, 9), "bias": (27,), "recurrent_bias": (9,)},
        ),
        (
            ops.Recurrent("gru", 9, reset="before"),
            (SEQUENCE,),
            {"weight": (27, 3), "recurrent": (27, 9), "bias": (27,)},
        ),
        (ops.Recurrent("gru", 9, bias=False), (SEQUENCE,), {"weight": (27, 3), "recurrent": (27, 9)}),
    ],
)
def test_parameters(op, inputs, expected):
    assert expected == {name: each.shape for name, each in op.parameters(*inputs).items()}


def test_statistics_are_state_and_everything_else_is_trained():
    found = ops.Norm("batch").parameters(IMAGE)
    assert ["scale", "shift"] == [name for name, each in found.items() if each.trainable]


def test_laws_can_be_set_and_biases_are_not_zero_by_default():
    default, chosen = ops.Dense(1), ops.Dense(1, weight_law=Constant(2), bias_law=Constant(3))
    assert Uniform(-1.0, 1.0) == default.parameters(ROWS)["weight"].law
    assert Normal(0.5) == default.parameters(ROWS)["bias"].law
    assert [Constant(2), Constant(3)] == [each.law for each in chosen.parameters(ROWS).values()]
    assert Normal(0.5) == ops.Conv2d(8, (1, 1)).parameters(IMAGE)["weight"].law
    assert Uniform(-0.5, 0.5) == ops.Recurrent("lstm", 4).parameters((1, 1, 4))["weight"].law


# Elements: image 384 (8 sample-channels, 4 channels), rows 15, sequence 42.
@pytest.mark.parametrize(
    ("op", "inputs", "macs", "elementwise", "backward"),
    [
        (ops.Dense(7), (ROWS,), 105, 21, 2 * 2 * 105 + 21),
        (ops.Dense(7, bias=False), (SEQUENCE,), 294, 0, 2 * 2 * 294),
        (ops.Conv2d(6, (3, 3)), (IMAGE,), 288 * 36, 0, 4 * 288 * 36),
        (ops.Conv2d(8, (1, 1), groups=4, bias=True), (IMAGE,), 768, 768, 4 * 768 + 768),
        (ops.Norm("none"), (IMAGE,), 0, 0, 0),
        (ops.Norm("batch"), (IMAGE,), 0, 768, 4 * 384 + 12),
        (ops.Norm("batch", training=True), (IMAGE,), 0, 6 * 384 + 52, 7 * 384 + 28),
        (ops.Norm("group", 2), (IMAGE,), 0, 6 * 384 + 20 + 8, 7 * 384 + 48 + 24),
        (ops.Norm("proxy", 2, activation="swish"), (IMAGE,), 0, 10 * 384 + 28, 15 * 384 + 72),
        (
            ops.Norm("proxy", 2, training=True),
            (IMAGE,),
            0,
            8 * 384 + 28 + 200 * 4 * 8 + 24,
            11 * 384 + 72 + 200 * 4 * 11,
        ),
        (ops.Activation("relu"), (ROWS,), 0, 15, 15),
        (ops.Activation("swish"), (ROWS,), 0, 30, 60),
        (ops.Activation("hard-swish"), (ROWS,), 0, 75, 60),
        (ops.Pool("max", (2, 3), (2, 2)), (IMAGE,), 0, 72 * 6, 72),
        (ops.Pool("average", (2, 3), (2, 2)), (IMAGE,), 0, 72 * 7, 72 * 7),
        (ops.GlobalPool(), (IMAGE,), 0, 392, 8),
        (ops.Add(), (ROWS, ROWS, ROWS), 0, 30, 0),
        (ops.Multiply(), (ROWS, ROWS), 0, 15, 30),
        (ops.Multiply(), (IMAGE, (2, 4)), 0, 384, 3 * 384),
        (ops.Concat(), (ROWS, ROWS), 0, 0, 0),
        (ops.Pad((1, 1, 1, 1)), (IMAGE,), 0, 0, 0),
        (ops.Subsample((2, 2)), (IMAGE,), 0, 0, 0),
        (ops.Flatten(), (IMAGE,), 0, 0, 0),
        (ops.TakeLast(), (SEQUENCE,), 0, 0, 0),
        (ops.Normalise((0.5,) * 4, (0.2,) * 4), (IMAGE,), 0, 768, 384),
        (ops.Dropout(0.5), (ROWS,), 0, 0, 0),
        (ops.Dropout(0.5), (ROWS, ROWS), 0, 30, 30),
        (ops.StochasticDepth(0.5), (IMAGE,), 0, 0, 0),
        (ops.StochasticDepth(0.5), (IMAGE, (2,)), 0, 386, 384),
        (ops.Softmax(), (ROWS,), 0, 75, 60),
        (ops.MeanSquaredError(), (ROWS, ROWS), 0, 46, 15),
        (ops.SumSquaredError(), (ROWS, ROWS), 0, 45, 15),
        (ops.Mean(), (ROWS,), 0, 16, 0),
        (ops.CrossEntropy(), (ROWS, (3,)), 0, 4 * 15 + 9 + 1, 15 + 6),
        (ops.CrossEntropy(0.1), (ROWS, (3,)), 0, 5 * 15 + 18 + 1, 30 + 6),
        (ops.CrossEntropy(), (ROWS, ROWS), 0, 7 * 15 + 6 + 1, 45),
        (ops.NegativeLogLikelihood(), (ROWS, (3,)), 0, 9, 3),
        # 14 states of 9 units: rows of the gates times features (3) and units (9).
        (ops.Recurrent("rnn", 9), (SEQUENCE,), 126 * 12, 126 * 2, 4 * 126 * 12 + 126 * 4),
        (ops.Recurrent("lstm", 9), (SEQUENCE,), 504 * 12, 126 * 13, 4 * 504 * 12 + 126 * 26),
        (ops.Recurrent("gru", 9), (SEQUENCE,), 378 * 12, 126 * 12, 4 * 378 * 12 + 126 * 18),
        (ops.Recurrent("gru", 9, reset="before"), (SEQUENCE,), 378 * 12, 126 * 10, 4 * 378 * 12 + 126 * 18),
        (ops.Recurrent("lstm", 9, bias=False), (SEQUENCE,), 504 * 12, 126 * 9, 4 * 504 * 12 + 126 * 22),
        (
            ops.Recurrent("lstm", 9, bias=False, forget_bias=1.0),
            (SEQUENCE,),
            504 * 12,
            126 * 10,
            4 * 504 * 12 + 126 * 23,
        ),
    ],
)
def test_work(op, inputs, macs, elementwise, backward):
    found = op.macs(*inputs), op.elementwise(*inputs), op.backward_flops(*inputs, to_inputs=True)
    assert (macs, elementwise, backward) == found
    assert 2 * macs + elementwise == op.flops(*inputs)


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        (ops.Dense(7), (ROWS,), 2 * 105 + 21),
        (ops.Conv2d(6, (3, 3)), (IMAGE,), 2 * 288 * 36),
        (ops.Recurrent("lstm", 9), (SEQUENCE,), 2 * 504 * (12 + 9) + 126 * 26),
        (ops.Norm("batch", training=True), (IMAGE,), 3 * 384 + 4),
        (ops.Norm("group", 2), (IMAGE,), 3 * 384 + 16),
        (ops.Activation("relu"), (ROWS,), 0),
    ],
)
def test_no_gradient_for_inputs_that_need_none(op, inputs, expected):
    assert expected == op.backward_flops(*inputs, to_inputs=False)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "expected"),
    [
        ((56, 56), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
        ((56, 56), (3, 3), (2, 2), (1, 1), (0, 1, 0, 1)),
        ((112, 7), (3, 4), (3, 1), (1, 1), (1, 1, 1, 2)),
        ((10, 10), (3, 3), (1, 1), (2, 3), (2, 2, 3, 3)),
        ((10, 10), (1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_same_padding_keeps_the_rounded_up_quotient(size, kernel, stride, dilation, expected):
    padding = ops.same_padding(size, kernel, stride, dilation)
    assert expected == padding
    conv = ops.Conv2d(1, kernel, stride, padding, dilation)
    assert (1, 1, -(-size[0] // stride[0]), -(-size[1] // stride[1])) == conv.shape((1, 1, *size))


def test_batch_axes():
    assert 1 == ops.Input((2, 3), batch=1).batch_axis()
    assert 1 == ops.Recurrent("rnn", 4).batch_axis(1)
    assert 0 == ops.TakeLast().batch_axis(1)
    assert -1 == ops.CrossEntropy().batch_axis(1, 1)
    assert 0 == ops.Add().batch_axis(0, 0)


def test_the_vocabulary_starts_without_numpy():
    code = "import sys, layermark.ops, layermark.graph; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()
