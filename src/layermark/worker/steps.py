"""Whole host calls: how long a batch takes, and one timed call of a given number of batches."""

from __future__ import annotations

import dataclasses
from typing import Any

from layermark.backends.base import Program
from layermark.outcome import Block
from layermark.worker.loop import latencies_of, watched

LONG_ENOUGH_NS = 200_000_000
_MOST_BATCHES = 1 << 16


def seconds_per_batch(program: Program) -> float:
    """About how long one batch takes: calls grow until one is long enough to trust."""
    batches, taken = 1, _call_ns(program, 1)
    while taken < LONG_ENOUGH_NS and batches < _MOST_BATCHES:
        wanted = batches * LONG_ENOUGH_NS // max(taken, 1)
        batches = min(_MOST_BATCHES, max(2 * batches, wanted))
        taken = _call_ns(program, batches)
    return taken / 1e9 / batches


def timed_call(program: Program, batches: int) -> dict[str, Any]:
    """One call of so many batches, as a block of one sample, and when it began on the program's clock."""
    clock = program.clock
    with watched() as context:
        began = clock()
        timeline = program.run(batches)
        ended = clock()
    # A loop inside the runtime gives one entry for the whole call, which is no latency of a batch.
    latencies = latencies_of([timeline]) if len(timeline.done) == batches else []
    block = Block(calls=1, batches=batches, samples_ns=(ended - began,), latencies_ns=tuple(latencies), context=context)
    return {"block": dataclasses.asdict(block), "began_ns": began}


def _call_ns(program: Program, batches: int) -> int:
    began = program.clock()
    program.run(batches)
    return program.clock() - began
