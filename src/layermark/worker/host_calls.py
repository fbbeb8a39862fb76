"""Whole host calls: how long a batch takes, and one timed call of a given number of batches."""

from __future__ import annotations

import dataclasses
from typing import Any

from layermark.backends.base import Program, Timeline
from layermark.outcome import Block
from layermark.worker.loop import latencies_of, watched
from layermark.workloads.base import InputStream

LONG_ENOUGH_NS = 200_000_000
_MOST_BATCHES = 1 << 16


def seconds_per_batch(program: Program) -> float:
    """About how long one batch takes: calls grow until one is long enough to trust."""
    batches = program.whole(1)
    taken = _call_ns(program, batches)
    while taken < LONG_ENOUGH_NS and batches < _MOST_BATCHES:
        wanted = batches * LONG_ENOUGH_NS // max(taken, 1)
        batches = program.whole(min(_MOST_BATCHES, max(2 * batches, wanted)))
        taken = _call_ns(program, batches)
    return taken / 1e9 / batches


def timed_call(program: Program, batches: int, calls: int = 1, stream: InputStream | None = None) -> dict[str, Any]:
    """Some calls of so many batches, as a block of one sample, and when it began on the program's clock."""
    clock = program.clock
    with watched(stream.counters if stream else dict) as context:
        taken = stream.watch() if stream else []
        began = clock()
        timelines = [program.run(batches) for _ in range(calls)]
        ended = clock()
    block = Block(
        calls=calls,
        batches=calls * batches,
        samples_ns=(ended - began,),
        latencies_ns=tuple(_latencies(timelines, calls * batches, taken)),
        context=context,
    )
    return {"block": dataclasses.asdict(block), "began_ns": began}


def _latencies(timelines: list[Timeline], batches: int, taken: list[int]) -> list[int]:
    """Hand-over to result of batches. Waiting for pictures is no part of it: they are handed over once loaded."""
    done = [each for timeline in timelines for each in timeline.done]
    if len(done) < batches:
        # A loop inside the runtime gives one entry for the whole call, which is no latency of a batch.
        alone = len(done) > len(timelines) and not taken
        return latencies_of(timelines) if alone else []
    return latencies_of([Timeline(taken, done)] if len(taken) == batches else timelines)


def single_latencies(program: Program, seconds: float, most: int) -> list[int]:
    """The time of single batches, each handed over alone; as many as fit, at least one.

    Where several make one update, it is that of whole updates.
    """
    began, alone = program.clock(), program.whole(1)
    found = [_call_ns(program, alone)]
    while len(found) < most and program.clock() - began < seconds * 1e9:
        found.append(_call_ns(program, alone))
    return found


def _call_ns(program: Program, batches: int) -> int:
    began = program.clock()
    program.run(batches)
    return program.clock() - began
