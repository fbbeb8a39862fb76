"""Optimisers against numbers worked out by hand, and against other people's implementations."""

import numpy as np
import pytest

from layermark.errors import UserError
from layermark.training import names
from layermark.training.optimiser import LARS, SGD, Momentum, Optimiser, RMSprop, rmsprop_decay

RULES = [SGD(), Momentum(), RMSprop(decay=0.9), LARS(weight_decay=1e-4)]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def torch_namespace(torch):
    import array_api_compat.torch

    return array_api_compat.torch


def run(rule: Optimiser, weight, gradients, rate, *, xp=np, name="fc/weight"):
    state = {slot: xp.full_like(weight, value) for slot, value in rule.slots.items()}
    for gradient in gradients:
        weight, state = rule.apply(weight, gradient, state, rate, xp=xp, name=name)
    return weight, state


def test_sgd():
    weight, state = run(SGD(), np.array([1.0, -2.0]), [np.array([0.5, 1.0])], 0.1)
    assert np.array_equal([0.95, -2.1], weight) and {} == state


def test_momentum_gathers_gradients():
    weight, state = run(Momentum(momentum=0.5), np.array([1.0]), [np.array([2.0]), np.array([4.0])], 0.1)
    # v = 2, then 0.5 x 2 + 4 = 5; w = 1 - 0.2 - 0.5.
    assert pytest.approx(0.3) == weight[0] and 5.0 == state["momentum"][0]


def test_rmsprop_starts_at_one_with_epsilon_inside_the_root_and_the_rate_in_the_momentum():
    rule = RMSprop(decay=0.75, momentum=0.5, epsilon=0.25)
    state = {"mean_square": np.array([1.0]), "momentum": np.array([0.0])}
    weight, state = rule.apply(np.array([3.0]), np.array([1.0]), state, 0.5, xp=np)
    # s = 0.75 + 0.25 = 1; v = 0.5 / sqrt(1.25).
    first = 0.5 / 1.25**0.5
    assert 1.0 == state["mean_square"][0] and pytest.approx(first) == state["momentum"][0]
    weight, state = rule.apply(weight, np.array([2.0]), state, 0.0, xp=np)
    # The rate has become zero, but the momentum holds the old one; s = 0.75 + 0.25 x 4 = 1.75.
    assert pytest.approx(3 - first - first / 2) == weight[0] and 1.75 == state["mean_square"][0]


def test_lars_by_hand():
    rule = LARS(momentum=0.9, eeta=0.01, epsilon=1.0, weight_decay=0.1)
    weight, state = run(rule, np.array([3.0, 4.0]), [np.array([0.6, 0.8])], 2.0)
    # |w| = 5, |g| = 1: factor 0.01 x 5 / (1 + 0.5 + 1) = 0.02; g' = (0.9, 1.2).
    assert pytest.approx([0.9, 1.2]) == state["momentum"]
    assert pytest.approx([3 - 2 * 0.02 * 0.9, 4 - 2 * 0.02 * 1.2]) == weight


@pytest.mark.parametrize("name", ["bn/scale", "bn/shift", "fc/bias"])
def test_lars_leaves_what_it_skips_to_momentum(name):
    rule, weight, gradient = LARS(weight_decay=0.1), np.array([3.0, 4.0]), np.array([0.6, 0.8])
    assert np.array_equal(
        run(Momentum(), weight, [gradient] * 2, 0.1)[0], run(rule, weight, [gradient] * 2, 0.1, name=name)[0]
    )


@pytest.mark.parametrize(("weight", "gradient"), [(np.zeros(2), np.ones(2)), (np.ones(2), np.zeros(2))])
def test_lars_has_the_factor_one_where_a_norm_is_zero(weight, gradient):
    with np.errstate(all="raise"):
        assert 1.0 == LARS().trust(weight, gradient, xp=np)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_numpy_and_torch_compute_the_same(rule, torch, torch_namespace):
    rng = np.random.default_rng(1)
    weight, *gradients = rng.standard_normal((6, 4, 3))
    expected, state = run(rule, weight, gradients, 0.05)
    actual, theirs = run(
        rule, torch.as_tensor(weight), [torch.as_tensor(each) for each in gradients], 0.05, xp=torch_namespace
    )
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-13)
    for slot, values in state.items():
        np.testing.assert_allclose(theirs[slot].numpy(), values, rtol=1e-13)


def test_sgd_and_momentum_are_those_of_pytorch(torch):
    rng = np.random.default_rng(2)
    start, *gradients = rng.standard_normal((7, 5))
    for rule, momentum in ((SGD(), 0.0), (Momentum(momentum=0.9), 0.9)):
        weight = torch.nn.Parameter(torch.as_tensor(start.copy()))
        optimiser = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
        for gradient in gradients:
            weight.grad = torch.as_tensor(gradient)
            optimiser.step()
        np.testing.assert_allclose(run(rule, start, gradients, 0.1)[0], weight.detach().numpy(), rtol=1e-12)


def test_the_state_has_a_slot_per_weight():
    weights = {"a/weight": np.zeros((2, 3)), "b/bias": np.zeros(3, "float32")}
    state = RMSprop(decay=0.9).state(weights, xp=np)
    assert ["a/weight/mean_square", "a/weight/momentum", "b/bias/mean_square", "b/bias/momentum"] == list(state)
    assert np.array_equal(np.ones((2, 3)), state["a/weight/mean_square"]) and not state["a/weight/momentum"].any()
    assert "float32" == state["b/bias/mean_square"].dtype


def test_flops():
    assert [2000, 4000, 11000, 10008] == [rule.flops(1000, "fc/weight") for rule in RULES]
    assert 4000 == LARS().flops(1000, "bn/scale")


def test_labels_for_printing():
    assert ["SGD", "SGD with Momentum", "RMSprop", "LARS"] == [rule.label for rule in RULES]
    assert (("Momentum", "0.9"), ("Decay", "0.98"), ("Epsilon", "0.001")) == RMSprop(decay=0.98).describe()
    assert () == SGD().describe() and (("Momentum", "0.9"),) == Momentum().describe()
    assert ("Decay", "0.0001") in LARS(weight_decay=1e-4).describe()


def test_the_decays_of_the_documents():
    assert 0.98779 == round(rmsprop_decay(-14, 200), 5) and 0.95117 == round(rmsprop_decay(-14, 800), 5)
    with pytest.raises(UserError, match="expected from 0 to below 1"):
        RMSprop(decay=rmsprop_decay(-14, 20000))


@pytest.mark.parametrize("make", [Momentum, LARS, lambda momentum: RMSprop(decay=0.9, momentum=momentum)])
def test_a_momentum_of_one_is_refused(make):
    with pytest.raises(UserError, match="momentum 1: expected from 0 to below 1"):
        make(momentum=1.0)


def test_words_of_both_vocabularies_find_a_parameter():
    assert names.holds("layer1/0/bn1/scale", ["gamma"]) and names.holds("layer1/0/bn1/scale", ["layer1"])
    assert not names.holds("layer1/0/conv1/weight", ["gamma", "beta", "bias"])
    assert names.is_statistic("bn/variance") and not names.is_statistic("mean/weight")
