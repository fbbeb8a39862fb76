"""Weight decay, soft labels, loss scales, clipping and running statistics."""

import numpy as np
import pytest

from layermark import ops, reference
from layermark.errors import UserError
from layermark.training import regularisation
from layermark.training.regularisation import DynamicScale


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_decay_spares_the_norms():
    names = ["conv/weight", "fc/bias", "se/conv_reduce/bias", "bn/scale", "bn/shift", "bn/proxy_scale"]
    weights = {name: np.array([2.0]) for name in names}
    found = regularisation.decayed({name: np.array([1.0]) for name in names}, weights, 0.25)
    assert [1.5, 1.5, 1.5, 1.0, 1.0, 1.5] == [float(found[name][0]) for name in names]


def test_smoothed_rows_are_what_the_loss_of_the_graph_means():
    logits, labels = np.random.default_rng(0).standard_normal((4, 7)), np.array([0, 6, 3, 3])
    rows = np.where(labels[:, None] == np.arange(7), 1 - 0.2, 0.2 / 6)
    op = ops.CrossEntropy(smoothing=0.2)
    assert pytest.approx(reference.value(op, np, {}, logits, labels)) == reference.value(op, np, {}, logits, rows)


@pytest.mark.parametrize(("smoothing", "classes"), [(1.0, 10), (-0.1, 10), (0.1, 1)])
def test_impossible_smoothing(smoothing, classes):
    with pytest.raises(UserError, match="label smoothing"):
        regularisation.check_smoothing(smoothing, classes)


def test_clipping_shortens_all_gradients_by_one_factor():
    gradients = {"a": np.array([3.0]), "b": np.array([[4.0]])}
    assert 5.0 == regularisation.global_norm(gradients, xp=np)
    found = regularisation.clipped(gradients, 1.0, xp=np)
    assert pytest.approx([0.6, 0.8]) == [found["a"][0], found["b"][0, 0]]
    assert gradients == regularisation.clipped(gradients, 5.0, xp=np)
    assert 0.0 == regularisation.clipped({"a": np.zeros(1)}, 1.0, xp=np)["a"][0]


def test_clipping_is_that_of_pytorch(torch):
    gradients = {name: np.random.default_rng(3).standard_normal(4) for name in "ab"}
    parameters = [torch.nn.Parameter(torch.zeros(4, dtype=torch.float64)) for _ in gradients]
    for parameter, each in zip(parameters, gradients.values(), strict=True):
        parameter.grad = torch.as_tensor(each.copy())
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    for parameter, each in zip(parameters, regularisation.clipped(gradients, 0.5, xp=np).values(), strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(), each, rtol=1e-5)  # PyTorch adds 1e-6 to the norm


def test_a_dynamic_scale_halves_at_once_and_doubles_later():
    rule, scale, streak = DynamicScale(initial=8.0, interval=3), 8.0, 0
    seen = []
    for finite in (True, True, True, False, True, False, False, False, False):
        scale, streak = rule.after(scale, streak, finite=finite)
        seen.append(scale)
    assert [8, 8, 16, 8, 8, 4, 2, 1, 1] == seen
    assert 2.0**24 == DynamicScale(interval=1).after(2.0**24, 0, finite=True)[0]


def test_finiteness():
    assert regularisation.all_finite({"a": np.ones(2)}, xp=np)
    assert not regularisation.all_finite({"a": np.ones(2), "b": np.array([np.inf])}, xp=np)


def test_survival_of_the_blocks():
    assert 1.0 == regularisation.survival(0, 32) and pytest.approx(1 - 0.2 * 31 / 32) == regularisation.survival(31, 32)


def test_running_statistics_move_once_or_with_every_micro_batch():
    seen = [np.array([2.0]), np.array([4.0])]
    together = regularisation.statistics_after(np.array([1.0]), seen, 0.97, together=True)
    assert pytest.approx(0.97 * 1 + 0.03 * 3) == together[0]
    separate = regularisation.statistics_after(np.array([1.0]), seen, 0.97, together=False)
    assert pytest.approx(0.97 * (0.97 * 1 + 0.03 * 2) + 0.03 * 4) == separate[0]
