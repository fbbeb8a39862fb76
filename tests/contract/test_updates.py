"""Whole updates: every optimiser on every runtime that trains, against the float64 reference."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from contract.covering import FULL
from contract.programs import RUNTIMES, TORCH, TRAINING, Variant, each_of
from layermark import ops, reference
from layermark.backends.base import backend
from layermark.errors import Unsupported
from layermark.graph import Builder
from layermark.laws import Integers
from layermark.training.schedule import Cosine, Exponential, LearningRate, Polynomial, Stepped
from layermark.training.update import OPTIMISERS, SCALE, STREAK, Update
from layermark.worker import oracle, reference_updates
from layermark.worker.verify import verify
from layermark.workloads.base import Task
from layermark.workloads.models.base import Kept

PICTURES, CLASSES, RING = 4, 5, 4
RATES = {"sgd": 0.5, "momentum": 0.2, "rmsprop": 0.02, "lars": 10.0}
UPDATES = 10
COMPILED = Variant("torch", "compile")
"""Compiles whole steps, updates included, which makes another program of them."""
FIRST = TRAINING if FULL else tuple(each for each in RUNTIMES if each.trains)
"""Every runtime in its first execution; XLA takes seconds to compile each of these programs."""


@functools.cache
def network(rule=None, norm="batch", pictures=PICTURES, masked=False):
    """Two convolutions with a norm and an activation between, and a classifier; masked: some of it is dropped."""
    build = Builder()
    x = build.input("x", (pictures, 3, 6, 6))
    x = build.add("conv", ops.Conv2d(8, (3, 3), padding=(1, 1, 1, 1), bias=False), x)
    x = build.add("norm", ops.Norm(norm, groups=4, training=True), x)
    x = build.add("swish", ops.Activation("swish"), x)
    narrow = build.add("narrow", ops.Conv2d(8, (1, 1)), x)
    if masked:
        kept = build.input("depth/mask", (pictures,), law=Kept(0.5), role="mask")
        narrow = build.add("sum", ops.Add(), x, build.add("depth", ops.StochasticDepth(0.5), narrow, kept))
    pooled = build.add("pool", ops.GlobalPool(), narrow)
    if masked:
        kept = build.input("drop/mask", (pictures, 8), law=Kept(0.75), role="mask")
        pooled = build.add("drop", ops.Dropout(0.25), pooled, kept)
    logits = build.add("dense", ops.Dense(CLASSES), pooled)
    labels = build.input("labels", (pictures,), law=Integers(0, CLASSES), role="target", item_bytes=4)
    graph = build.graph(build.add("loss", ops.CrossEntropy(), logits, labels))
    update = rule or Update()
    return Task(graph.smoothed(update.label_smoothing), 7, pictures, update=update)


def prepared(variant, made, **changes):
    """A program of a task in float64, where the runtime is installed."""
    if not backend(variant.backend).installed:
        pytest.skip(f"{variant.backend} is not installed")
    facts = {"precision": "64.64", "ring": RING, "batch_size": made.items, "update": made.update, **changes}
    runtime = backend(variant.backend)
    runtime.load()
    return runtime.prepare(variant.spec(mode="train", **facts), made)


@functools.cache
def expected(rule, updates=2, schedule=None, masked=False):
    """Weights, state and losses of the reference after so many updates."""
    torch, made = pytest.importorskip("torch"), network(rule, masked=masked)
    rates = rates_of(rule, updates, schedule)
    batches = [reference.doubles(made.batch(index % RING)) for index in range(updates * rule.micro_batches)]
    weights = reference.doubles(made.weights())
    walk = reference_updates.Reference(graph=made.graph, weights=weights, batches=batches, torch=torch, update=rule)
    return walk.walk(rates)


def rates_of(rule, updates, schedule=None):
    """The rate of every update: all the same, or those of a schedule with a warm-up."""
    if schedule is None:
        return [RATES[rule.optimiser]] * updates
    peak = RATES[rule.optimiser]
    found = LearningRate(peak=peak, schedule=schedule, total=updates, epochs=2.0, warmup_epochs=0.5)
    return [found.of_call(update) for update in range(updates)]


def moves(program, weights, calls, rate):
    """Make calls from these weights, and return where parameters and state have come to."""
    program.load(weights)
    program.learning_rate = rate
    for batches in calls:
        program.run(batches)
    return {**program.weights(), **program.state()}


def same(found, wanted, within):
    """The same names, and arrays that differ by no more than a share of their largest value."""
    assert set(found) == set(wanted)
    for name, each in wanted.items():
        assert np.abs(found[name] - each).max() <= within * max(np.abs(each).max(), 1e-3), name


@each_of((*TRAINING, COMPILED))
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_ten_updates_are_the_same_everywhere(variant, optimiser):
    rule = Update(optimiser=optimiser, weight_decay=1e-2, accumulation=2)
    program, wanted = prepared(variant, network(rule), batches_per_step=4), expected(rule, UPDATES)
    same(moves(program, network().weights(), [2, 2 * (UPDATES - 3), 4], RATES[optimiser]), wanted.arrays, 1e-8)
    assert program.outputs()["loss"] == pytest.approx(wanted.losses[-1], rel=1e-8)
    batches, loss, right = program.totals()
    assert batches == 2 * UPDATES and loss == pytest.approx(sum(wanted.losses), rel=1e-8)
    assert right is not None and 0 < right < batches * PICTURES
    assert program.totals() == (0, 0.0, 0)


@each_of(TRAINING)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_ten_updates_of_every_schedule_are_the_same_everywhere(variant, optimiser):
    rule = Update(optimiser=optimiser, weight_decay=1e-2)
    program, seen = prepared(variant, network(rule)), []
    for schedule in (Stepped(), Cosine(), Exponential(), Polynomial()):
        program.load(network().weights())
        for rate in rates_of(rule, UPDATES, schedule):
            program.learning_rate = rate
            program.run(1)
        found = {**program.weights(), **program.state()}
        same(found, expected(rule, UPDATES, schedule).arrays, 1e-8)
        seen.append(found["conv/weight"])
    assert all(np.abs(each - seen[0]).max() > 1e-5 for each in seen[1:])


OPTIONS = {
    "clipped": Update(optimiser="momentum", clip_norm=0.1, weight_decay=1e-2),
    "scaled": Update(optimiser="momentum", loss_scaling=128.0, weight_decay=1e-2),
    "scaled-rmsprop": Update(optimiser="rmsprop", loss_scaling=128.0, weight_decay=1e-2, accumulation=2),
    "smoothed": Update(label_smoothing=0.1),
    "filtered": Update(optimiser="momentum", variable_filter=("conv",)),
    "decayed-often": Update(optimiser="rmsprop", weight_decay=1e-2, decay_per="micro-batch", accumulation=2),
    "decayed-once": Update(weight_decay=1e-2, decay_per="micro-batch"),
    "clipped-scaled": Update(clip_norm=0.1, loss_scaling=64.0, accumulation=2),
    "statistics-once": Update(optimiser="momentum", accumulation=3, statistics_per="update"),
    "skipping": Update(optimiser="lars", lars_skip=("conv",), lars_epsilon=0.1, weight_decay=1e-2),
}


@each_of(FIRST)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_an_update_acts_as_in_the_reference(variant, option):
    rule = OPTIONS[option]
    program, wanted = prepared(variant, network(rule)), expected(rule)
    same(moves(program, network().weights(), [2 * rule.micro_batches], RATES[rule.optimiser]), wanted.arrays, 1e-8)
    plain = expected(Update(optimiser=rule.optimiser, accumulation=rule.accumulation))
    if option != "scaled":  # which comes to the same weights, by another state
        assert max(np.abs(wanted.weights[name] - each).max() for name, each in plain.weights.items()) > 1e-5


NUMBERS = {
    "momentum-momentum": Update(optimiser="momentum", momentum=0.5),
    "rmsprop-momentum": Update(optimiser="rmsprop", momentum=0.5),
    "rmsprop-decay": Update(optimiser="rmsprop", rmsprop_decay=0.5),
    "rmsprop-epsilon": Update(optimiser="rmsprop", rmsprop_epsilon=0.5),
    "lars-momentum": Update(optimiser="lars", momentum=0.5),
    "lars-eeta": Update(optimiser="lars", lars_eeta=0.01),
    "lars-epsilon": Update(optimiser="lars", lars_epsilon=0.1),
    **{f"{name}-weight-decay": Update(optimiser=name, weight_decay=1e-2) for name in OPTIMISERS},
}
"""Each differs from plain updates of its optimiser in one number."""


NUMBERED = itertools.product(TRAINING, NUMBERS) if FULL else zip(itertools.cycle(FIRST), NUMBERS, strict=False)


@pytest.mark.parametrize(("variant", "number"), NUMBERED, ids=str)
def test_every_number_of_an_optimiser_acts_as_in_the_reference(variant, number):
    rule = NUMBERS[number]
    assert 2 == len({*rule.changed, "optimiser"})
    found = moves(prepared(variant, network(rule)), network().weights(), [2], RATES[rule.optimiser])
    same(found, expected(rule).arrays, 1e-8)
    plain = expected(Update(optimiser=rule.optimiser)).weights
    assert max(np.abs(found[name] - each).max() for name, each in plain.items()) > 1e-5


def test_no_option_of_an_update_is_left_out():
    elsewhere = {"dynamic_scaling", "replicas"}  # DYNAMIC below, and test_replicas.py
    acting = {name for rule in (*OPTIONS.values(), *NUMBERS.values()) for name in rule.changed}
    assert {item.name for item in dataclasses.fields(Update)} == acting | elsewhere


@each_of(TRAINING)
def test_dropout_and_stochastic_depth_act_as_in_the_reference(variant):
    """Every micro-batch has masks of its own, which the runtime must take and not draw."""
    rule = Update(optimiser="momentum", accumulation=2, weight_decay=1e-2)
    made = network(rule, masked=True)
    assert not np.array_equal(made.batch(0)["depth/mask"], made.batch(1)["depth/mask"])
    found = moves(prepared(variant, made, batches_per_step=4), made.weights(), [4], 0.2)
    same(found, expected(rule, masked=True).arrays, 1e-8)
    unmasked = expected(rule).arrays
    assert max(np.abs(found[name] - each).max() for name, each in unmasked.items()) > 1e-3


def test_statistics_wait_for_the_last_micro_batch_in_a_compiled_step_too():
    rule = OPTIONS["statistics-once"]
    program = prepared(COMPILED, network(rule), batches_per_step=6)
    same(moves(program, network().weights(), [6], RATES["momentum"]), expected(rule).arrays, 1e-8)


class Quarters(Task):
    """A task whose batches are parts of one of another."""

    def drawn(self, index):
        fed = network(None, "group", 32).batch(0)
        return {name: each[8 * index : 8 * index + 8] for name, each in fed.items()}


@each_of(FIRST)
def test_accumulating_micro_batches_is_a_large_batch(variant):
    """4 x 8 pictures move every weight as 32 at once do, where no norm looks across pictures."""
    rule = Update(optimiser="momentum", accumulation=4, weight_decay=1e-2)
    whole = network(rule.replace(accumulation=1), "group", 32)
    part = network(rule, "group", 8)
    quarters = Quarters(**{item.name: getattr(part, item.name) for item in dataclasses.fields(part)})
    found = moves(prepared(variant, quarters), whole.weights(), [4], 0.2)
    same(found, moves(prepared(variant, whole), whole.weights(), [1], 0.2), 1e-10)


@each_of(TRAINING)
def test_state_goes_on_between_calls_and_through_load(variant):
    made = network(Update(optimiser="momentum", accumulation=2))
    program, weights = prepared(variant, made, ring=2, batches_per_step=2), made.weights()
    wanted = moves(program, weights, [6], 0.2)
    same(moves(program, weights, [2, 2, 2], 0.2), wanted, 1e-12)
    moves(program, weights, [4], 0.2)
    weights, state = program.weights(), program.state()
    program.load(weights, state)
    program.run(2)
    same({**program.weights(), **program.state()}, wanted, 1e-12)
    forgotten = moves(program, weights, [2], 0.2)
    assert np.abs(forgotten["conv/weight"] - wanted["conv/weight"]).max() > 1e-6


@each_of(TRAINING)
def test_a_call_makes_whole_updates(variant):
    program = prepared(variant, network(Update(accumulation=3)))
    with pytest.raises(ValueError, match="4 batches in a call: expected a multiple of 3"):
        program.run(4)
    assert program.whole(4) == 6


@each_of([each for each in TRAINING if each.backend != "torch"])
def test_a_dynamic_loss_scale_is_refused(variant):
    with pytest.raises(Unsupported, match="no dynamic loss scale") as refused:
        prepared(variant, network(Update(dynamic_scaling=True)))
    assert {"backend": "torch"} == refused.value.instead


DYNAMIC = {
    "one": Update(optimiser="momentum", dynamic_scaling=True, weight_decay=1e-2),
    "several": Update(dynamic_scaling=True, accumulation=2, clip_norm=0.1, weight_decay=1e-2),
    "rmsprop": Update(optimiser="rmsprop", dynamic_scaling=True, accumulation=2, decay_per="micro-batch"),
}


@pytest.mark.parametrize("rule", DYNAMIC.values(), ids=DYNAMIC)
def test_without_an_overflow_a_dynamic_loss_scale_changes_nothing(rule):
    program, wanted = prepared(TORCH, network(rule), execution="eager"), expected(rule, 3)
    found = moves(program, network().weights(), [3 * rule.micro_batches], RATES[rule.optimiser])
    same(found, wanted.arrays, 1e-8)
    assert (65536.0, 3) == (found[SCALE], found[STREAK])
    still = expected(rule.replace(dynamic_scaling=False), 3)
    same({name: found[name] for name in still.weights}, still.weights, 1e-8)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_after_an_overflow_weights_stand_still_and_the_scale_is_halved(accumulation):
    rule = Update(optimiser="momentum", dynamic_scaling=True, loss_scaling=1e308, accumulation=accumulation)
    program, weights = prepared(TORCH, network(rule, "group"), execution="eager"), network(rule, "group").weights()
    weights["dense/weight"] = 1000 * weights["dense/weight"]
    found = moves(program, weights, [accumulation], 1e-9)
    assert (5e307, 0) == (found[SCALE], found[STREAK])
    assert all(np.array_equal(found[name], each) for name, each in weights.items())
    program.run(20 * accumulation)
    after = {**program.weights(), **program.state()}
    halved = round(np.log2(1e308 / after[SCALE]))
    assert 0 < after[STREAK] == 21 - halved
    assert all(np.all(np.isfinite(each)) for each in after.values())
    assert not np.array_equal(after["conv/weight"], weights["conv/weight"])
    program.load(weights, {name: after[name] for name in program.state()})
    assert (after[SCALE], after[STREAK]) == (program.state()[SCALE], program.state()[STREAK])


def test_a_dynamic_loss_scale_is_not_compiled_into_a_step():
    with pytest.raises(Unsupported, match="no compiled step does") as refused:
        prepared(COMPILED, network(DYNAMIC["one"]))
    assert {"execution": "eager"} == refused.value.instead


def test_losses_without_class_labels_have_no_right_answers():
    program, _ = TORCH.prepared("dense", mode="train")
    program.run(2)
    assert program.totals().right is None


PROVEN = {
    "momentum": Update(optimiser="momentum", weight_decay=1e-2, accumulation=2, loss_scaling=128.0),
    "rmsprop": Update(optimiser="rmsprop", weight_decay=1e-2, accumulation=8),
    "lars": Update(optimiser="lars", weight_decay=1e-2, clip_norm=1.0),
}


@functools.cache
def answer(rule):
    """What the oracle says of two updates in fp32."""
    pytest.importorskip("torch")
    return oracle.expected_updates(TORCH.spec(mode="train", update=rule, ring=RING), network(rule), 2)


def proof(variant, rule, folder, made=None):
    """What the proof says of a program in fp32, which may make another update than it should."""
    spec, path = variant.spec(mode="train", update=rule, ring=RING), folder / "answer.npz"
    np.savez(path, **answer(rule))
    program = prepared(variant, network(made or rule), precision="32.32")
    return verify(program, spec, network(rule), path)


@each_of(TRAINING)
@pytest.mark.parametrize("name", PROVEN)
def test_updates_are_proven_in_full_precision(variant, name, tmp_path):
    found = proof(variant, PROVEN[name], tmp_path)
    assert found.ok, found.reason


RULE = PROVEN["momentum"]
FAULTS = {
    "momentum forgotten": RULE.replace(momentum=0.0),
    "decay forgotten": RULE.replace(weight_decay=0.0),
    "loss scale left in": RULE.replace(loss_scaling=1.0),
    "clipped": RULE.replace(clip_norm=1e-3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_update_is_caught(fault, tmp_path):
    found = proof(TORCH, RULE, tmp_path, FAULTS[fault])
    assert not found.ok and found.max_error > 3 * found.tolerance


def test_decay_on_norms_is_caught(tmp_path, monkeypatch):
    from layermark.backends.torch import updating

    assert proof(TORCH, RULE, tmp_path).ok
    monkeypatch.setattr(updating.names, "is_decayed", lambda name: True)
    found = proof(TORCH, RULE, tmp_path)
    assert not found.ok and "norm/" in found.worst
    assert found.max_error > 3 * found.tolerance


def test_a_rate_that_is_used_twice_is_caught(tmp_path, monkeypatch):
    from layermark.backends.torch import updating

    honest = updating.RULES["momentum"]
    twice = {**updating.RULES, "momentum": lambda update, site, slopes, rate: honest(update, site, slopes, 2 * rate)}
    monkeypatch.setattr(updating, "RULES", twice)
    found = proof(TORCH, RULE, tmp_path)
    assert not found.ok and found.max_error > 3 * found.tolerance


@each_of(FIRST)
def test_a_program_of_a_thousand_micro_batches_is_built_with_few(variant):
    """An update of S10 has 1024 of them; nobody waits for two whole updates before the first call."""
    program = prepared(variant, network(Update(accumulation=1000)))
    assert program.micro_batches == 1000
    program.micro_batches = 2
    wanted = prepared(variant, network(Update(accumulation=2)))
    same(moves(program, network().weights(), [4], 0.2), moves(wanted, network().weights(), [4], 0.2), 1e-12)
