"""The measuring loop: warm-up until steady, then blocks of samples. It knows a program and a clock, no framework."""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from layermark.backends.base import Program, Timeline
from layermark.devices import cpu
from layermark.outcome import Block

SAMPLE_NS = 10_000_000
"""What one sample should last; shorter calls are grouped."""
WINDOW_CALLS = 20
WINDOW_SAMPLES = 50
JOINED_SAMPLES = 5
AGREE = 0.05
LATENCIES_KEPT = 4096
_LONG_CALL_NS = 1_000_000_000
WARM_UP_LIMIT_S = 5.0
"""A program that is not steady by then is measured as it is, and the result says so."""
_KEPT_OF_A_SAMPLE = 256


@dataclass(frozen=True)
class WarmUp:
    """How a program reached its steady state."""

    first_step_s: float
    warm_up_s: float
    step_ns: float
    steady: bool


class MeasuringLoop:
    """Drives one program: every call runs `batches_per_step` batches of the ring."""

    def __init__(
        self,
        program: Program,
        batches_per_step: int,
        sample_ns: int = SAMPLE_NS,
        counters: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._counters = counters
        self._program = program
        self._sample_ns = sample_ns
        # A program that has several batches in flight is never full in a call of one, and would only seem slow.
        # One that accumulates gradients makes whole updates.
        self._steps = math.ceil(program.least_batches / batches_per_step)
        while (self._steps * batches_per_step) % program.micro_batches:
            self._steps += 1
        self._batches = batches_per_step * self._steps
        self._clock = program.clock
        self._calls = 1

    def on(self, program: Program) -> MeasuringLoop:
        """The same loop over a copy of its program; the calls that open a block are all the warm-up that it needs."""
        other = MeasuringLoop(program, self._batches // self._steps, self._sample_ns, self._counters)
        other._calls = self._calls
        return other

    def warm_up(self, limit_s: float = WARM_UP_LIMIT_S) -> WarmUp:
        """Drop the first step, then run windows until two that follow each other agree, or so long."""
        with self._program.running():
            first = self._sample(1)
            began = self._clock()
            step_ns, steady = self._settle(began + int(limit_s * 1e9))
            self._calls = self._filling(step_ns)
            if self._calls > 1:  # one after the other, calls may be shorter than alone
                joined = statistics.median(self._sample(self._calls) for _ in range(JOINED_SAMPLES))
                self._calls = self._filling(joined / self._calls)
        return WarmUp(first / 1e9, (self._clock() - began) / 1e9, step_ns, steady)

    def _filling(self, step_ns: float) -> int:
        """How many calls of this length fill a sample."""
        return max(1, math.ceil(self._sample_ns / max(step_ns, 1)))

    def _settle(self, until: int) -> tuple[float, bool]:
        """The median call of the last window, and whether it agreed with the one before."""
        previous, steady = self._window(), False
        while not steady and self._clock() < until:
            current = self._window()
            steady = agree(previous, current, AGREE)
            previous = current
        return previous, steady

    def _window(self) -> float:
        """The median call of up to `WINDOW_CALLS` calls, or as many as last `WINDOW_SAMPLES` samples."""
        began, calls = self._clock(), [self._sample(1)]
        while len(calls) < WINDOW_CALLS and self._clock() - began < WINDOW_SAMPLES * self._sample_ns:
            calls.append(self._sample(1))
        return statistics.median(calls)

    def _sample(self, calls: int) -> int:
        began = self._clock()
        self._run(calls)
        return self._clock() - began

    def _run(self, calls: int) -> list[Timeline]:
        """So many calls, joined where that is the same."""
        run, batches = self._program.run, self._batches
        if self._program.seamless:
            return [run(calls * batches)]
        return [run(batches) for _ in range(calls)]

    def block(self, seconds: float, min_steps: int) -> Block:
        """One turn in the alternation: untimed calls until two samples agree, then samples until it is long enough."""
        wanted_ns = int(seconds * 1e9)
        with self._program.running():
            self._open(wanted_ns // 2)
            with watched(self._counters) as context:
                samples, latencies = self._timed(wanted_ns, min_steps)
        return Block(
            calls=self._calls * self._steps,
            batches=self._calls * self._batches,
            samples_ns=tuple(samples),
            latencies_ns=tuple(latencies),
            context=context,
        )

    def _open(self, limit_ns: int) -> None:
        began = self._clock()
        previous = self._sample(self._calls)
        while self._clock() - began < limit_ns:
            current = self._sample(self._calls)
            if agree(previous, current, AGREE):
                return
            previous = current

    def _timed(self, wanted_ns: int, min_steps: int) -> tuple[list[int], list[int]]:
        clock, calls = self._clock, self._calls
        needed = math.ceil(min_steps / (calls * self._steps))
        samples: list[int] = []
        timelines: list[Timeline] = []
        total = 0
        while total < wanted_ns or len(samples) < needed:
            began = clock()
            made = self._run(calls)
            samples.append(clock() - began)
            total += samples[-1]
            timelines += _thinned(made)
        return samples, latencies_of(timelines)


def _thinned(timelines: list[Timeline]) -> list[Timeline]:
    """Of many calls some, or of one call some batches."""
    if len(timelines) > 1:
        return timelines[:: max(1, len(timelines) // _KEPT_OF_A_SAMPLE)]
    (only,) = timelines
    stride = max(1, len(only.done) // _KEPT_OF_A_SAMPLE)
    return [Timeline(*(each[::stride] for each in only))]


def latencies_of(timelines: list[Timeline]) -> list[int]:
    """Hand-over to result of every batch, thinned evenly to what is kept."""
    every = [done - handed for each in timelines for handed, done in zip(each.handed_over, each.done, strict=True)]
    return every[:: max(1, math.ceil(len(every) / LATENCIES_KEPT))]


def agree(one: float, other: float, share: float) -> bool:
    """Whether two times differ by at most this share of the smaller."""
    return abs(one - other) <= share * min(one, other)


@contextmanager
def watched(counters: Callable[[], Mapping[str, float]] = dict) -> Iterator[Mapping[str, float]]:
    """What else happens to this process and its machine while something runs, and by how much counters grow."""
    counted = counters()
    context: dict[str, float] = {}
    usage, waited, steal, began = _usage(), cpu.waited_ns(), cpu.steal_s(), time.perf_counter()
    yield context
    wall = time.perf_counter() - began
    context |= {name: value - counted[name] for name, value in counters().items()}
    context |= {name: value - usage[name] for name, value in _usage().items()}
    context |= {"steal_s": cpu.steal_s() - steal, "wall_s": wall, "cpus": len(os.sched_getaffinity(0))}
    context["busy_threads"] = busy_threads(context["cpu_s"], (cpu.waited_ns() - waited) / 1e9, wall)


def busy_threads(cpu_s: float, waited_s: float, wall_s: float) -> float:
    """How many threads had work at a time, on average: those on a CPU and those in line for one.

    Threads that take turns count as one, and other programs on the machine hardly matter: who has to wait for a CPU
    still has work. So it shows, too, if there are more of them than CPUs.
    """
    return (cpu_s + max(0.0, waited_s)) / wall_s


def _usage() -> dict[str, float]:
    now = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "voluntary_switches": now.ru_nvcsw,
        "involuntary_switches": now.ru_nivcsw,
        "minor_faults": now.ru_minflt,
        "major_faults": now.ru_majflt,
        "cpu_s": now.ru_utime + now.ru_stime,
    }


def unfinished_share(
    program: Program,
    batches: int,
    threads: int,
    cpu_clock: Callable[[], int] = time.process_time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """The share of a call's CPU time that falls after the call has returned; near 0 for an honest program.

    Thread pools spin for up to a tenth of a second after work; that is allowed for each thread. A call that takes long
    with little CPU time, since it waits for data, is long enough.
    """
    wanted_ns, spin_ns = threads * 300_000_000, threads * 100_000_000
    batches = program.whole(batches)
    while True:
        began, entered = cpu_clock(), program.clock()
        program.run(batches)
        returned, left = cpu_clock(), program.clock()
        still = _stand_still(cpu_clock, sleep)
        waited = left - entered >= _LONG_CALL_NS
        if still - began >= wanted_ns or waited or batches >= 1 << 16 or program.clock_name != "perf_counter":
            return max(0, still - returned - spin_ns) / max(1, still - began)
        wanted = math.ceil(1.1 * batches * _LONG_CALL_NS / max(1, left - entered))
        batches = program.whole(max(batches + 1, min(4 * batches, wanted)))


def _stand_still(cpu_clock: Callable[[], int], sleep: Callable[[float], None]) -> int:
    """The CPU clock once it has stopped (or after five seconds)."""
    now = cpu_clock()
    for _ in range(250):
        before = now
        sleep(0.02)
        now = cpu_clock()
        if now - before < 1_000_000:
            break
    return now
