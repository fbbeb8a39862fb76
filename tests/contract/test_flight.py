"""Latency and throughput: one batch in flight or several, each with its own time, on the runtimes that can."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from contract.programs import ONNXRUNTIME, OPENVINO, TORCH, Variant, close, each_of, oracle
from layermark.axes import complete
from layermark.backends.base import Timeline, backend
from layermark.errors import Unsupported
from layermark.worker.loop import MeasuringLoop
from layermark.worker.service import Service

BOTH = each_of((ONNXRUNTIME, OPENVINO))
BIG: dict[str, Any] = {"batch_size": 64, "params": {"size": 1536}}
"""Long enough that handing over takes no time beside it."""
SEVERAL: dict[str, Any] = {"execution": "throughput", "threads": 2}


def most_at_once(timeline: Timeline) -> int:
    """How many batches were in flight together at the worst moment."""
    ends = sorted([(when, 1) for when in timeline.handed_over] + [(when, -1) for when in timeline.done])
    flying = most = 0
    for _, step in ends:
        flying += step
        most = max(most, flying)
    return most


@BOTH
@pytest.mark.parametrize("data", ["synthetic", "generated"])
def test_throughput_walks_the_ring_and_waits_for_all(variant: Variant, data: str) -> None:
    program, task = variant.prepared("dense", **SEVERAL, data=data, ring=3)
    for index in (0, 1, 2, 0):
        program.run(1)
        close(program.outputs(), oracle(task, index))
    assert len(program.run(7).done) == 7
    close(program.outputs(), oracle(task, 1))
    assert program.settings["execution"] == "throughput"
    program.load({name: each * 2 for name, each in task.weights().items()})
    program.run(2)
    close(program.outputs(), oracle(task, 1, {name: each * 2 for name, each in task.weights().items()}))
    program.close()


@BOTH
def test_several_batches_are_in_flight_within_the_budget(variant: Variant) -> None:
    program, _ = variant.prepared(**SEVERAL, **BIG)
    timeline = program.run(40)
    assert all(handed < done for handed, done in zip(*timeline, strict=True))
    assert list(timeline.handed_over) == sorted(timeline.handed_over)
    assert 2 == most_at_once(timeline)
    assert 8 == program.least_batches


@BOTH
def test_one_batch_is_in_flight_for_latency(variant: Variant) -> None:
    program, _ = variant.prepared(execution="latency", **BIG)
    assert (1, 1) == (most_at_once(program.run(20)), program.least_batches)
    assert program.settings["execution"] == "latency"


@BOTH
def test_calls_are_as_long_as_the_program_needs(variant: Variant) -> None:
    program, _ = variant.prepared(**SEVERAL, **BIG)
    loop = MeasuringLoop(program, 1)
    loop.warm_up()
    block = loop.block(0.02, 5)
    assert block.batches % 8 == 0 and block.batches == block.calls
    assert len(block.latencies_ns) >= 8


def test_other_runtimes_have_no_throughput() -> None:
    if not backend("torch").installed:
        pytest.skip("torch is not installed")
    spec = complete(TORCH.spec(execution="throughput"))
    with pytest.raises(Unsupported, match="torch has no --execution throughput; it knows auto, eager"):
        Service().prepare(spec.to_json())


def test_what_is_loaded_is_taken_in_order() -> None:
    threaded = pytest.importorskip("layermark.backends.onnxruntime.threaded")
    stream, held = itertools.count(), [-1, -1]

    def bound(caller: int) -> Any:
        def take() -> None:
            held[caller] = next(stream)

        return threaded.BoundCall(lambda: time.sleep(0.001 * (held[caller] % 3)), take)

    runner = threaded.ThreadedRunner([[bound(0)], [bound(1)]], None)
    for batches in range(1, 12):
        handed_over = runner.run(batches).handed_over
        assert handed_over == sorted(handed_over)
        assert held[runner.last] == runner._done - 1 == max(held)
    runner.close()
