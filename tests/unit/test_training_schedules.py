"""Learning rates worked out by hand from the commands of the seed documents."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermark.errors import UserError
from layermark.seeds.cnns.train_defaults import EXPONENTS, SMALL_EXPONENT
from layermark.training.lengths import CIFAR_PICTURES, Lengths
from layermark.training.schedule import (
    Constant,
    Cosine,
    Exponential,
    LearningRate,
    Polynomial,
    Stepped,
    exponent_of,
    peak_rate,
    schedule_class,
)

SCHEDULES = [Constant(), Stepped(), Cosine(), Exponential(), Polynomial()]
COMMANDS = {
    "S10": (Lengths(micro_batch=16, accumulation=1024, epochs=1), "resnet", "momentum", 8.0),
    "S11": (Lengths(micro_batch=16, accumulation=256, replicas=4, epochs=1), "resnet", "momentum", 8.0),
    "S12": (Lengths(micro_batch=6, accumulation=64, replicas=2, epochs=2), "resnext", "momentum", 0.375),
    "S14": (Lengths(micro_batch=5, accumulation=40, epochs=2), "efficientnet", "RMSprop", 0.01220703125),
    "S15": (Lengths(micro_batch=5, accumulation=40, replicas=4, epochs=1), "efficientnet", "RMSprop", 0.048828125),
}


def rates(peak, schedule, *, total=100, epochs=10.0, warmup_epochs=0.0):
    return LearningRate(peak=peak, schedule=schedule, total=total, epochs=epochs, warmup_epochs=warmup_epochs)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_peaks_of_the_documents(name):
    lengths, family, optimiser, peak = COMMANDS[name]
    assert peak == peak_rate(EXPONENTS[family][optimiser], lengths.global_batch)


def test_the_line_of_the_documents():
    """`step: 3, iteration: 12, ... lr: 0.1641`: S10's third call begins at update 8 of a warm-up of 390."""
    lengths = COMMANDS["S10"][0]
    rate = LearningRate(peak=8.0, schedule=Stepped(), total=lengths.target, epochs=1, warmup_epochs=5)
    assert 390 == rate.warmup_updates
    calls = list(lengths.call_plan)
    assert 12 == calls[2].last and "0.1641" == f"{rate.of_call(calls[2].first):.4f}"
    assert 0.0 == rate.of_call(calls[0].first)
    assert pytest.approx(8 * 76 / 390 * 0.1**4) == rate.of_call(calls[-1].first)


def test_the_first_and_last_rates_of_the_cifar_tests():
    for batch, first, last, fractions in (
        (32, 0.5, 0.0005, (0.5, 0.75, 0.875)),
        (8, 0.125, 0.000125, (0.5, 0.75, 0.875)),
    ):
        lengths = Lengths(micro_batch=batch, pictures=CIFAR_PICTURES, epochs=10)
        peak = peak_rate(SMALL_EXPONENT, batch)
        rate = LearningRate(peak=peak, schedule=Stepped(fractions=fractions), total=lengths.target, epochs=10)
        *_, end = lengths.call_plan
        assert first == rate.of_call(0) and pytest.approx(last) == rate.of_call(end.first)
    assert 1.0 == peak_rate(-4, 16)


def test_cosine():
    rate = rates(2.0, Cosine())
    assert [2.0, 1.0, 0.0] == [pytest.approx(rate.at(i), abs=1e-15) for i in (0, 50, 100)]
    assert pytest.approx(1 + math.cos(math.pi / 4)) == rate.at(25)


def test_stepped_drops_when_a_fraction_is_reached():
    rate = rates(1.0, Stepped(decay=0.5, fractions=(0.3, 0.7)), total=10)
    assert [1.0, 0.5, 0.5, 0.25] == [rate.at(i) for i in (2, 3, 6, 7)]


def test_exponential_drops_in_equal_parts_of_the_epochs():
    rate = rates(1.0, Exponential(decay_rate=0.5, drops=4), total=100, epochs=2)
    assert [1.0, 0.5, 0.5, 0.125] == [rate.at(i) for i in (24, 25, 49, 75)]
    # S14: 146 drops in two epochs, so 73 in one; update 88 is at epoch 0.01374 and has passed one.
    lengths = COMMANDS["S14"][0]
    exact = LearningRate(
        peak=1.0, schedule=Exponential(), total=lengths.target, epochs=2, epochs_per_update=lengths.epochs_per_update
    )
    assert [1.0, 0.97] == [exact.at(i) for i in (87, 88)]
    assert pytest.approx(0.97**73) == exact.at(6406)


def test_polynomial_falls_after_warm_up():
    rate = rates(1.0, Polynomial(power=2, end_ratio=0.01), total=100, epochs=10, warmup_epochs=2)
    assert [0.0, 0.5, 1.0] == [rate.at(i) for i in (0, 10, 20)]
    assert pytest.approx(0.99 * 0.25 + 0.01) == rate.at(60) and pytest.approx(0.01) == rate.at(100)
    squeezenet = rates(0.1, Polynomial(end_rate=0.0001))
    assert 0.1 == squeezenet.at(0) and pytest.approx(0.0001) == squeezenet.at(100)


def test_warm_up_multiplies():
    plain, warm = (rates(1.0, Cosine(), warmup_epochs=each) for each in (0, 4))
    assert 0.0 == warm.at(0) and pytest.approx(plain.at(10) / 4) == warm.at(10) and plain.at(40) == warm.at(40)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: type(each).__name__)
@given(update=st.integers(0, 1200), warmup_epochs=st.floats(0, 200))
def test_rates_lie_between_zero_and_the_peak(schedule, update, warmup_epochs):
    rate = rates(0.5, schedule, total=1000, epochs=100, warmup_epochs=warmup_epochs)
    assert 0 <= rate.at(update) <= 0.5


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: type(each).__name__)
@given(update=st.integers(0, 999))
def test_rates_never_rise_without_warm_up(schedule, update):
    rate = rates(0.5, schedule, total=1000, epochs=100)
    assert rate.at(update) >= rate.at(update + 1)


@given(rate=st.floats(1e-6, 100), batch=st.integers(1, 10**6))
def test_an_absolute_rate_is_the_peak(rate, batch):
    assert pytest.approx(rate) == peak_rate(exponent_of(rate, batch), batch)


def test_schedules_have_the_names_of_the_documents():
    names = ("constant", "stepped", "cosine", "exponential", "polynomial_decay_lr")
    assert [type(each) for each in SCHEDULES] == [schedule_class(name) for name in names]
    with pytest.raises(UserError, match="unknown schedule 'cosin'; did you mean cosine"):
        schedule_class("cosin")


def test_labels_for_printing():
    warm = rates(1.0, Stepped(), warmup_epochs=5).describe()
    assert (("Stepped LR schedule", ""), ("Warmup", "5 epochs"), ("Drops at", "0.3, 0.6, 0.8, 0.9")) == warm[:3]
    assert ("No warmup", "") in rates(1.0, Exponential()).describe()
    assert ("Decay Rate", "0.97") in rates(1.0, Exponential()).describe()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stepped(fractions=(0.5, 1.5)),
        lambda: Exponential(drops=0),
        lambda: rates(1.0, Cosine(), total=0),
        lambda: rates(1.0, Cosine(), warmup_epochs=-1),
        lambda: exponent_of(0.0, 16),
    ],
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(UserError, match="expected"):
        make()
