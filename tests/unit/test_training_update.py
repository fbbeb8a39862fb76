"""Whole updates: the order of things, and that different arithmetic gives the same weights."""

import dataclasses

import numpy as np
import pytest

from layermark.errors import UserError
from layermark.options import options_of, read_record
from layermark.training.update import OPTIMISERS, SCALE, STREAK, Update

SHAPES = {"conv/weight": (4, 3), "bn/scale": (4,), "bn/mean": (4,), "fc/bias": (2,)}
COUNTS = {"conv/weight": 12, "bn/scale": 4, "bn/mean": 4, "fc/bias": 2}
RULES = [
    Update(optimiser=name, weight_decay=0.01, rmsprop_decay=0.8, lars_eeta=0.1, lars_epsilon=0.01)
    for name in OPTIMISERS
]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def torch_namespace(torch):
    import array_api_compat.torch

    return array_api_compat.torch


def arrays(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {name: scale * rng.standard_normal(shape) for name, shape in SHAPES.items()}


def train(update, *, updates=5, rate=0.1, scale=1.0, xp=np, convert=lambda each: each):
    weights = {name: convert(each) for name, each in arrays(0).items()}
    state = update.state(weights, xp=xp)
    for number in range(updates):
        gradients = [
            {name: convert(each) for name, each in arrays(100 * number + k + 1, scale).items()}
            for k in range(update.micro_batches)
        ]
        weights, state = update.apply(weights, gradients, state, rate, xp=xp)
    return weights, state


def assert_same(first, second, rtol=1e-11):
    assert first.keys() == second.keys()
    for name, each in first.items():
        np.testing.assert_allclose(second[name], each, rtol=rtol, atol=1e-13, err_msg=name)


def test_the_default_is_plain_sgd():
    weights, gradient = arrays(0), arrays(1)
    update = Update()
    moved, state = update.apply(weights, [gradient], update.state(weights, xp=np), 0.5, xp=np)
    assert {} == state and np.array_equal(weights["bn/mean"], moved["bn/mean"])
    assert_same(
        {name: weights[name] - 0.5 * gradient[name] for name in COUNTS if name != "bn/mean"},
        {name: each for name, each in moved.items() if name != "bn/mean"},
    )
    # As a graph counts it: two operations for every trainable element.
    assert 2 * 18 == update.flops(COUNTS)


def test_an_update_by_hand():
    update = Update(optimiser="momentum", momentum=0.5, weight_decay=0.1, accumulation=2, replicas=2)
    weights = {"fc/weight": np.array([2.0]), "bn/scale": np.array([2.0])}
    gradients = [{name: np.array([value]) for name in weights} for value in (1.0, 2.0, 3.0, 6.0)]
    state = {"fc/weight/momentum": np.array([4.0]), "bn/scale/momentum": np.array([4.0])}
    moved, after = update.apply(weights, gradients, state, 0.1, xp=np)
    # Mean 3; decay 0.1 x 2 but for the norm; v = 0.5 x 4 + g.
    assert pytest.approx(5.2) == after["fc/weight/momentum"][0] and pytest.approx(5.0) == after["bn/scale/momentum"][0]
    assert pytest.approx(2 - 0.52) == moved["fc/weight"][0] and pytest.approx(1.5) == moved["bn/scale"][0]


@pytest.mark.parametrize("update", RULES, ids=OPTIMISERS)
def test_a_static_loss_scale_leaves_no_trace_in_the_weights(update):
    plain, state = train(update)
    scaled, theirs = train(update.replace(loss_scaling=128.0), scale=128.0)
    assert_same(plain, scaled)
    # SGD and momentum divide the rate, so their state is as large as the loss; the others divide the gradient.
    held = 128.0 if update.optimiser == "momentum" else 1.0
    assert_same({name: held * each for name, each in state.items()}, theirs)


@pytest.mark.parametrize("update", RULES, ids=OPTIMISERS)
def test_decay_per_micro_batch_or_per_update_is_the_same(update):
    one, other = (train(update.replace(accumulation=3, decay_per=each)) for each in ("update", "micro-batch"))
    assert_same(one[0], other[0])
    assert_same(one[1], other[1])


@pytest.mark.parametrize("update", RULES, ids=OPTIMISERS)
def test_decay_acts(update):
    weights, _ = train(update)
    without, _ = train(update.replace(weight_decay=0.0))
    assert not np.allclose(weights["conv/weight"], without["conv/weight"])
    assert np.array_equal(weights["bn/scale"], without["bn/scale"])
    # LARS skips biases; the others decay them.
    assert (update.optimiser == "lars") == np.array_equal(weights["fc/bias"], without["fc/bias"])


@pytest.mark.parametrize("update", RULES, ids=OPTIMISERS)
def test_accumulation_and_replicas_average(update):
    many, _ = train(update.replace(accumulation=2, replicas=2))
    weights = arrays(0)
    state = update.state(weights, xp=np)
    for number in range(5):
        each = [arrays(100 * number + k + 1) for k in range(4)]
        mean = {name: sum(one[name] for one in each) / 4 for name in SHAPES}
        weights, state = update.apply(weights, [mean], state, 0.1, xp=np)
    assert_same(weights, many)


@pytest.mark.parametrize("update", RULES, ids=OPTIMISERS)
def test_torch_in_float64_computes_the_same(update, torch, torch_namespace):
    full = update.replace(accumulation=2, clip_norm=1.5, loss_scaling=8.0)
    expected = train(full)
    actual = train(full, xp=torch_namespace, convert=torch.as_tensor)
    for ours, theirs in zip(expected, actual, strict=True):
        assert_same(ours, {name: each.numpy() for name, each in theirs.items()})


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_clipping_bounds_the_true_gradient_whatever_the_loss_scale(optimiser, scale):
    update = Update(optimiser=optimiser, clip_norm=0.25, loss_scaling=scale, weight_decay=0.01)
    gradient = arrays(1)
    norm = np.sqrt(sum((gradient[name] ** 2).sum() for name in SHAPES if name != "bn/mean"))
    shortened = {name: each * 0.25 / norm for name, each in gradient.items()}
    weights = arrays(0)
    actual, _ = update.apply(
        weights, [{name: scale * each for name, each in gradient.items()}], update.state(weights, xp=np), 0.1, xp=np
    )
    free = Update(optimiser=optimiser, weight_decay=0.01)
    expected, _ = free.apply(weights, [shortened], free.state(weights, xp=np), 0.1, xp=np)
    assert_same(expected, actual)


@pytest.mark.parametrize("update", RULES, ids=OPTIMISERS)
def test_a_dynamic_scale_gives_the_same_weights_and_skips_an_overflow(update):
    dynamic = update.replace(dynamic_scaling=True, loss_scaling=16.0)
    plain, state = train(update)
    scaled, theirs = train(dynamic, scale=16.0)
    assert_same(plain, scaled)
    assert_same(state, {name: each for name, each in theirs.items() if name not in (SCALE, STREAK)})
    assert 16.0 == dynamic.loss_scale(theirs) and 5 == theirs[STREAK]
    broken = arrays(1) | {"fc/bias": np.array([1.0, np.inf])}
    kept, after = dynamic.apply(scaled, [broken], theirs, 0.1, xp=np)
    assert_same(scaled, kept)
    assert 8.0 == dynamic.loss_scale(after) and 0 == after[STREAK]


def test_a_filter_trains_only_some():
    update = Update(optimiser="momentum", variable_filter=("gamma", "fc"))
    assert ["bn/scale", "fc/bias"] == update.trained(SHAPES)
    assert ["bn/scale/momentum", "fc/bias/momentum"] == update.state_names(SHAPES)
    weights, _ = train(update)
    assert [False, True, True, False] == [
        name in SHAPES and not np.array_equal(arrays(0)[name], weights[name])
        for name in ("conv/weight", "bn/scale", "fc/bias", "bn/mean")
    ]


def test_a_filter_that_trains_nothing_is_refused():
    Update(variable_filter=("gamma",)).check_filter(SHAPES)
    with pytest.raises(UserError, match=r"--variable-filter mean,word: no weight has .* conv/weight and fc/bias"):
        Update(variable_filter=("mean", "word")).check_filter(SHAPES)


@pytest.mark.parametrize("update", [*RULES, Update(dynamic_scaling=True)])
def test_state_has_the_names_that_were_announced(update):
    assert update.state_names(SHAPES) == list(update.state(arrays(0), xp=np))


def test_flops_count_what_is_done():
    assert 36 + 2 * 14 == Update(weight_decay=0.1).flops(COUNTS)
    assert 36 + 18 * 7 == Update(accumulation=4).flops(COUNTS)
    assert 36 + 18 * 3 == Update(clip_norm=1.0).flops(COUNTS)
    # SGD divides the rate, once; RMSprop every gradient.
    assert 36 == Update(loss_scaling=128.0).flops(COUNTS)
    assert 11 * 18 + 18 == Update(optimiser="rmsprop", loss_scaling=128.0).flops(COUNTS)
    assert 36 + 2 * 14 * 2 + 18 * 3 == Update(weight_decay=0.1, accumulation=2, decay_per="micro-batch").flops(COUNTS)


def test_the_record_survives_json_and_has_a_stable_key():
    update = Update(optimiser="lars", lars_skip=("bias",), accumulation=4, replicas=2)
    assert update == Update.from_json(update.to_json()) and hash(update) == hash(Update.from_json(update.to_json()))
    assert update.key == Update.from_json(update.to_json()).key != Update().key
    changed = {Update().replace(**{name: value}).key for name, value in CHANGES.items()}
    assert len(CHANGES) == len(changed - {Update().key})


CHANGES = {
    "optimiser": "momentum",
    "momentum": 0.8,
    "rmsprop_decay": 0.5,
    "rmsprop_epsilon": 0.1,
    "lars_eeta": 0.1,
    "lars_epsilon": 0.1,
    "lars_skip": (),
    "weight_decay": 0.1,
    "decay_per": "micro-batch",
    "label_smoothing": 0.1,
    "loss_scaling": 2.0,
    "dynamic_scaling": True,
    "clip_norm": 1.0,
    "accumulation": 2,
    "statistics_per": "update",
    "variable_filter": ("fc",),
    "replicas": 2,
}


def test_every_field_is_an_option_but_the_replicas():
    assert list(CHANGES) == [each.name for each in dataclasses.fields(Update)]
    assert set(CHANGES) - {"replicas"} == {each.name for each in options_of(Update)}
    texts = {"optimiser": "rmsprop", "lars_skip": "bias, gamma", "weight_decay": "1e-4", "dynamic_scaling": "on"}
    read = Update(**read_record(Update, texts))
    assert ("bias", "gamma") == read.lars_skip and 1e-4 == read.weight_decay and read.dynamic_scaling
    with pytest.raises(UserError, match="--weight-decay -1: expected zero or a number above"):
        read_record(Update, {"weight_decay": "-1"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimiser": "adam"},
        {"accumulation": 0},
        {"replicas": 0},
        {"optimiser": "momentum", "momentum": 1.0},
        {"optimiser": "rmsprop", "rmsprop_decay": 1.0},
        {"label_smoothing": 1.0},
        {"loss_scaling": 0.0},
        {"clip_norm": 1.0, "decay_per": "micro-batch"},
    ],
)
def test_impossible_updates_are_refused(wrong):
    with pytest.raises(UserError):
        Update(**wrong)


def test_a_wrong_number_of_gradients_is_a_mistake_of_the_program():
    with pytest.raises(ValueError, match="1 gradients for an update of 2 micro-batches"):
        Update(accumulation=2).apply(arrays(0), [arrays(1)], {}, 0.1, xp=np)


def test_labels_for_printing():
    found = Update(optimiser="rmsprop", weight_decay=1e-5, loss_scaling=128.0).describe()
    assert (("Weight Decay", "1e-05"), ("Loss Scaling", "128"), ("RMSprop", "")) == found[:3]
    assert ("Loss Scaling", "dynamic") in Update(dynamic_scaling=True).describe()
