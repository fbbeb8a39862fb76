"""A number carries its meaning: every known metric is found in a document, with unit, interval and direction."""

import dataclasses

import pytest

from layermark import stats
from layermark.metric import KNOWN, metric, metrics
from layermark.outcome import Skipped

from .samples import a_run, a_spec


@pytest.fixture
def document():
    blocks = tuple(dataclasses.replace(block, latencies_ns=(10_000_000,) * 50) for block in a_run().blocks)
    return stats.document(a_run(blocks=blocks), session="s")


def test_every_known_metric_has_a_number_in_a_full_document(document):
    assert [] == [each.tag for each in metrics(document) if each.value is None]


def test_throughput_carries_its_interval_and_the_unit_of_the_document(document):
    found = metric("throughput").read(document)
    numbers = document["throughput"]
    assert (numbers["value"], numbers["low"], numbers["high"]) == (found.value, found.low, found.high)
    assert "sequences/s" == found.unit


def test_a_number_without_an_interval_keeps_its_own_unit(document):
    found = metric("compile_s").read(document)
    assert (0.5, None, None, "s") == (found.value, found.low, found.high, found.unit)


def test_what_is_missing_is_none():
    document = stats.document(Skipped(spec=a_spec(), reason="no"), session="s")
    assert {None} == {each.value for each in metrics(document)}


def test_tags_are_unique_and_explained():
    assert len(KNOWN) == len({each.tag for each in KNOWN})
    assert all(each.help for each in KNOWN)


def test_better_follows_the_direction(document):
    rate, compile_s = metric("throughput").read(document), metric("compile_s").read(document)
    assert dataclasses.replace(rate, value=rate.value + 1).better_than(rate)
    assert not dataclasses.replace(compile_s, value=compile_s.value + 1).better_than(compile_s)
    assert not rate.better_than(metric("throughput"))
    assert not metric("throughput").better_than(rate)
