"""Pipelines: how long each stage takes, how much of the time ranks have nothing to do, and how much they must."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from layermark import pipelines
from layermark.outcome import Run

_WORDS = {"F": "forward", "B": "backward", "W": "weights"}


class Work(NamedTuple):
    """One piece of work of a rank: forward (F), backward (B), or the weights' part of a backward pass (W)."""

    kind: str
    stage: int
    micro_batch: int
    start_ns: int
    end_ns: int


Pass = Sequence[Sequence[Work]]
"""What the ranks did in one pass through the pipeline, each in its order."""


def pipeline_facts(run: Run) -> dict[str, Any] | None:
    """Return the time of every stage, and the bubble: as measured, as schedule and stage times predict it, and ideally.

    The bubble is the share of the time that ranks wait, from the first piece of work to the last. The ideal one is
    (p - 1) / (m + p - 1), for p equal stages on as many ranks and m micro-batches.
    """
    passes = _passes(run)
    if not passes:
        return None
    last, times, stages = passes[-1], stage_times(passes), int((run.pipeline or {})["stages"])
    whole = sum(sum(times.get((kind, stage), 0.0) for kind in _WORDS) for stage in range(stages))
    micro_batches = 1 + max(work.micro_batch for rank in last for work in rank)
    schedule = str((run.pipeline or {})["schedule"])
    return {
        "schedule": schedule,
        "stages": [_stage(stage, last, times, whole) for stage in range(stages)],
        "ranks": len(last),
        "micro_batches": micro_batches,
        "pass_s": statistics.median(_span(each) for each in passes) / 1e9,
        "bubble": statistics.median(_bubble(each) for each in passes),
        "bubble_predicted": predicted_bubble(last, times, pipelines.SCHEDULES[schedule].one_at_a_time),
        "bubble_ideal": (len(last) - 1) / (micro_batches + len(last) - 1),
    }


def lanes(run: Run) -> list[dict[str, Any]] | None:
    """Return what every rank did in the last pass, for a picture; seconds count from its beginning."""
    passes = _passes(run)
    if not passes:
        return None
    began = min(work.start_ns for rank in passes[-1] for work in rank)
    return [
        {
            "lane": f"rank {index}",
            "name": f"{_WORDS[work.kind]} {work.micro_batch} of stage {work.stage}",
            "start_s": (work.start_ns - began) / 1e9,
            "end_s": (work.end_ns - began) / 1e9,
        }
        for index, rank in enumerate(passes[-1])
        for work in rank
    ]


def _passes(run: Run) -> list[Pass]:
    found = [[[Work(*each) for each in rank] for rank in one] for one in (run.pipeline or {}).get("passes", ())]
    return [each for each in found if any(each)]


def stage_times(passes: Sequence[Pass]) -> dict[tuple[str, int], float]:
    """Return the median time of every kind of work on every stage, in nanoseconds."""
    seen: dict[tuple[str, int], list[int]] = {}
    for each in passes:
        for rank in each:
            for work in rank:
                seen.setdefault((work.kind, work.stage), []).append(work.end_ns - work.start_ns)
    return {what: statistics.median(each) for what, each in seen.items()}


def _stage(stage: int, last: Pass, times: Mapping[tuple[str, int], float], whole: float) -> dict[str, Any]:
    own = {f"{word}_s": times.get((kind, stage), 0.0) / 1e9 for kind, word in _WORDS.items()}
    rank = next(index for index, each in enumerate(last) if any(work.stage == stage for work in each))
    return {"stage": stage, "rank": rank, **own, "share": sum(own.values()) * 1e9 / whole if whole else 0.0}


def _span(given: Pass) -> int:
    every = [work for rank in given for work in rank]
    return max(work.end_ns for work in every) - min(work.start_ns for work in every)


def _bubble(given: Pass) -> float:
    busy = sum(work.end_ns - work.start_ns for rank in given for work in rank)
    return 1 - busy / (len(given) * _span(given)) if _span(given) else 0.0


def predicted_bubble(given: Pass, times: Mapping[tuple[str, int], float], one_at_a_time: bool) -> float:
    """Return the bubble if every piece of work took its stage's usual time, and nothing else took any.

    Each rank works in the order of the schedule, and waits only for what a piece of work needs: forward passes for the
    stage before, backward passes for the stage behind and for the forward pass.

    >>> two = [[Work("F", 0, m, 0, 0) for m in range(3)], [Work("F", 1, m, 0, 0) for m in range(3)]]
    >>> predicted_bubble(two, {("F", 0): 1.0, ("F", 1): 1.0}, one_at_a_time=False)
    0.25
    """
    queues, done = [list(rank) for rank in given], dict[tuple[str, int, int], float]()
    exists = {(work.kind, work.stage, work.micro_batch) for rank in given for work in rank}
    free = [0.0] * len(queues)
    while any(queues):
        ready = [
            index
            for index, queue in enumerate(queues)
            if queue and _needs(queue[0], exists, one_at_a_time) <= set(done)
        ]
        if not ready:  # an order that cannot be: nothing is predicted from it
            return 0.0
        for index in ready:
            work = queues[index].pop(0)
            began = max([free[index], *(done[each] for each in _needs(work, exists, one_at_a_time))])
            free[index] = done[work.kind, work.stage, work.micro_batch] = began + times[work.kind, work.stage]
    busy = sum(times[work.kind, work.stage] for rank in given for work in rank)
    return 1 - busy / (len(given) * max(free)) if max(free) else 0.0


def _needs(work: Work, exists: set[tuple[str, int, int]], one_at_a_time: bool) -> set[tuple[str, int, int]]:
    kind, stage, number = work.kind, work.stage, work.micro_batch
    wanted = {
        "F": {("F", stage - 1, number)},
        "B": {("B", stage + 1, number), ("F", stage, number)},
        "W": {("B", stage, number)},
    }[kind]
    if one_at_a_time and number:
        wanted |= {each for each in exists if each[2] == number - 1}
    return wanted & exists
