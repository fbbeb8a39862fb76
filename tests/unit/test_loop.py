"""The measuring loop on a clock that only moves when the program says so."""

import hashlib
import itertools
import threading
import time

import pytest

from layermark.backends.base import Program, Timeline
from layermark.worker import loop
from layermark.worker.loop import MeasuringLoop, latencies_of, unfinished_share, watched


class Scripted(Program):
    """A program whose calls take the given times (the last one repeats)."""

    clock_name = "perf_counter"

    def __init__(self, *call_ns):
        self.times = itertools.chain(call_ns, itertools.repeat(call_ns[-1]))
        self.now = 0
        self.batches = 0
        self.clock = lambda: self.now

    settings = {}

    def run(self, batches):
        began = self.now
        self.now += next(self.times) * batches
        self.batches += batches
        return Timeline([began], [self.now])

    def outputs(self):
        return {}

    def load(self, weights):
        pass

    def weights(self):
        return {}


MS = 1_000_000


def test_first_step_is_separate_from_the_steady_ones():
    warmed = MeasuringLoop(Scripted(900 * MS, 2 * MS), 1).warm_up()
    assert 0.9 == warmed.first_step_s
    assert 2 * MS == warmed.step_ns
    assert warmed.steady


def test_warm_up_goes_on_until_two_windows_agree():
    slow_start = [10 * MS] * (1 + loop.WINDOW_CALLS) + [5 * MS] * loop.WINDOW_CALLS + [2 * MS]
    warmed = MeasuringLoop(Scripted(*slow_start), 1).warm_up()
    assert 2 * MS == warmed.step_ns
    assert warmed.steady


def test_a_program_that_never_settles_is_said_to_be_unsteady():
    growing = [int(MS * 1.2 ** (i // 5)) for i in range(200)]
    assert not MeasuringLoop(Scripted(*growing), 1).warm_up().steady


@pytest.mark.parametrize(("call_ns", "calls"), [(1_000, 10_000), (3 * MS, 4), (50 * MS, 1)])
def test_short_calls_are_grouped_into_samples_of_ten_milliseconds(call_ns, calls):
    measured = MeasuringLoop(Scripted(call_ns), 1)
    measured.warm_up()
    block = measured.block(0.3, 5)
    assert calls == block.calls
    assert all(loop.SAMPLE_NS <= sample for sample in block.samples_ns)


def test_calls_are_joined_where_one_call_of_many_batches_is_the_same():
    class Seamless(Scripted):
        seamless = True
        asked = []

        def run(self, batches):
            self.asked.append(batches)
            step = next(self.times)
            stamps = [self.now + step * number for number in range(batches + 1)]
            self.now = stamps[-1]
            return Timeline(stamps[:-1], stamps[1:])

    program = Seamless(MS // 100)
    measured = MeasuringLoop(program, 1)
    measured.warm_up()
    alone, joined = program.asked[: -loop.JOINED_SAMPLES], program.asked[-loop.JOINED_SAMPLES :]
    assert ({1}, {1000}) == (set(alone), set(joined))
    program.asked.clear()
    block = measured.block(0.3, 5)
    assert {1000} == set(program.asked)
    assert (1000, 1000, 30) == (block.calls, block.batches, len(block.samples_ns))
    assert {MS // 100} == set(block.latencies_ns)


def test_a_sample_is_filled_by_calls_as_long_as_they_are_one_after_the_other():
    class Hurrying(Scripted):
        seamless = True

        def run(self, batches):
            began, self.now = self.now, self.now + next(self.times) * (1 if batches == 1 else batches // 2)
            return Timeline([began], [self.now])

    measured = MeasuringLoop(Hurrying(MS), 1)
    measured.warm_up()
    block = measured.block(0.3, 5)
    assert (20, {loop.SAMPLE_NS}) == (block.calls, set(block.samples_ns))


def test_a_disturbance_does_not_decide_how_many_calls_fill_a_sample():
    alone = 1 + 2 * loop.WINDOW_CALLS
    program = Scripted(*[2 * MS] * alone, *[2 * MS] * 5, *[9 * MS] * 10, 2 * MS)
    measured = MeasuringLoop(program, 1)
    measured.warm_up()
    assert 5 == measured.block(0.3, 5).calls


def test_block_lasts_as_long_as_asked_and_has_the_steps_asked_for():
    quick, slow = MeasuringLoop(Scripted(1 * MS), 1), MeasuringLoop(Scripted(400 * MS), 1)
    quick.warm_up()
    slow.warm_up()
    assert sum(quick.block(0.3, 5).samples_ns) >= 300 * MS
    assert 5 == len(slow.block(0.3, 5).samples_ns)


def test_samples_count_every_batch_of_a_step():
    measured = MeasuringLoop(Scripted(1 * MS), 7)
    measured.warm_up()
    block = measured.block(0.1, 1)
    assert 7 * block.calls == block.batches
    assert all(block.batches * MS == sample for sample in block.samples_ns)


def test_block_opens_with_untimed_calls_until_two_agree():
    program = Scripted(*[20 * MS] * 42, 80 * MS, 40 * MS, 20 * MS)
    measured = MeasuringLoop(program, 1)
    measured.warm_up()
    program.times = itertools.chain([80 * MS, 40 * MS], itertools.repeat(20 * MS))
    assert {20 * MS} == set(measured.block(0.5, 5).samples_ns)


def test_latencies_are_thinned_not_cut():
    timelines = [Timeline([0], [i]) for i in range(3 * loop.LATENCIES_KEPT)]
    kept = latencies_of(timelines)
    assert len(kept) <= loop.LATENCIES_KEPT
    assert kept[-1] > 2.9 * loop.LATENCIES_KEPT


class Ticking:
    """A CPU clock on which a background thread may still be working."""

    def __init__(self, background_ns):
        self.now, self.left = 0, background_ns

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        worked = min(self.left, int(seconds * 1e9))
        self.now += worked
        self.left -= worked


def test_honest_program_leaves_nothing_for_after_the_return():
    clock = Ticking(background_ns=90 * MS)  # a pool that spins
    program = Scripted(1)
    program.run = lambda batches: setattr(clock, "now", clock.now + 400 * MS)
    assert 0 == unfinished_share(program, 1, 1, clock, clock.sleep)


def test_program_that_returns_early_is_found_out():
    clock = Ticking(background_ns=0)
    program = Scripted(1)
    program.run = lambda batches: setattr(clock, "left", clock.left + batches * 200 * MS)
    assert 0.25 < unfinished_share(program, 1, 1, clock, clock.sleep)


def spinning(threads, *, together):
    """How many are busy while so many threads work for a while, all together or each when it is its turn."""
    stop, data = threading.Event(), bytes(1 << 21)
    turns = [threading.Semaphore(int(together or index == 0)) for index in range(threads)]

    def work(index):
        while not stop.is_set():
            turns[index].acquire()
            hashlib.sha256(data).digest()  # works without holding the interpreter
            turns[index if together else (index + 1) % threads].release()

    workers = [threading.Thread(target=work, args=(each,)) for each in range(threads)]
    for each in workers:
        each.start()
    with watched() as context:
        time.sleep(0.4)
    stop.set()
    for each in workers:
        each.join()
    return context["busy_threads"]


def test_threads_that_work_at_the_same_time_are_all_busy():
    assert 2 < spinning(3, together=True) < 3.5


def test_threads_that_take_turns_count_as_one():
    assert 0.5 < spinning(3, together=False) < 2.5
