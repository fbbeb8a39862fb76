"""Batches one after the other: which of them are watched, and which result is kept."""

import itertools
import statistics

import pytest

from layermark.backends.base import one_by_one

US = 1_000


class Machine:
    """Calls that take their time on a clock of their own, and remember which input each had."""

    def __init__(self, ring, took_ns):
        self.now, self.seen, self.took_ns = 0, [], took_ns
        self.calls = itertools.cycle([self.call(place) for place in range(ring)])

    def call(self, place):
        def run():
            self.seen.append(place)
            self.now += self.took_ns
            return len(self.seen)

        return run

    def run(self, batches):
        return one_by_one(self.calls, batches, lambda: self.now)


@pytest.mark.parametrize("batches", [1, 2, 7, 64, 65, 66, 76, 1000])
@pytest.mark.parametrize("took_ns", [5 * US, 1100 * US])
def test_all_batches_run_in_the_order_of_the_ring_and_the_last_result_is_answered(batches, took_ns):
    machine = Machine(4, took_ns)
    for times in (1, 2):
        timeline, last = machine.run(batches)
        assert last == times * batches == len(machine.seen)
        assert timeline.done[-1] == machine.now
    assert machine.seen == [number % 4 for number in range(2 * batches)]


@pytest.mark.parametrize(("batches", "took_ns"), [(8, 5 * US), (1000, 1100 * US)])
def test_few_batches_are_all_watched_and_long_ones_too(batches, took_ns):
    timeline, _ = Machine(4, took_ns).run(batches)
    assert len(timeline.handed_over) == len(timeline.done) == batches
    assert all(done - began == took_ns for began, done in zip(*timeline, strict=True))


@pytest.mark.parametrize("ring", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("took_ns", [5 * US, 70 * US, 300 * US])
def test_of_many_short_batches_one_in_two_to_five_milliseconds_is_watched_and_of_those_every_input(ring, took_ns):
    timeline, _ = Machine(ring, took_ns).run(10_000)
    assert all(done - began == took_ns for began, done in zip(*timeline, strict=True))
    gaps = [later - earlier for earlier, later in itertools.pairwise(timeline.handed_over)]
    assert 2000 * US < statistics.median(gaps) == max(gaps) <= 5000 * US
    assert {done // took_ns % ring for done in timeline.done} == set(range(ring))


def test_batches_too_short_for_the_clock_are_watched_now_and_then():
    timeline, _ = Machine(4, 0).run(10_000)
    assert 10 < len(timeline.done) < 100
