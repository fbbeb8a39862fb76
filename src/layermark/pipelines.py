"""Pipelines as plain facts: which schedules there are, which rank holds which stages, what a plan must fulfil."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from layermark.errors import UserError

AUTO = "auto"
"""Instead of names: have the cuts chosen so that stages take equally long."""

STAGE_SHARE = 3
"""A stage that computes its activations again does so block by block where those of one micro-batch take more than
this part (one in three) of the memory that is meant for its rank."""

MOST_AT_ONCE = 64
"""Micro-batches of one pass in inference: a rank keeps a buffer for each."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order in which ranks work on micro-batches."""

    engine: str
    """What `torch.distributed.pipelining` calls it."""
    stages_per_rank: int = 1
    v_shaped: bool = False
    """Whether the last stage is back on the first rank."""
    one_at_a_time: bool = False
    """Whether no two stages ever work at the same time."""
    in_rounds: bool = False
    """Whether micro-batches come in rounds of equal size."""
    cuts_backward: bool = False
    """Whether the gradients of weights are computed separately from those that the stage before waits for."""
    keeps_all: bool = False
    """Whether all forward passes of an update come before its first backward pass."""


SCHEDULES = {
    "Interleaved": Schedule(engine="1F1B"),
    "Grouped": Schedule(engine="GPipe", keeps_all=True),
    "Sequential": Schedule(engine="GPipe", one_at_a_time=True),
    "Interleaved1F1B": Schedule(engine="Interleaved1F1B", stages_per_rank=2, in_rounds=True),
    "LoopedBFS": Schedule(engine="LoopedBFS", stages_per_rank=2, keeps_all=True),
    "InterleavedZeroBubble": Schedule(
        engine="InterleavedZeroBubble", stages_per_rank=2, in_rounds=True, cuts_backward=True
    ),
    "ZBVZeroBubble": Schedule(engine="ZBVZeroBubble", stages_per_rank=2, v_shaped=True, cuts_backward=True),
    "DualPipeV": Schedule(engine="DualPipeV", stages_per_rank=2, v_shaped=True, cuts_backward=True),
}
"""The seeds' three words, and further schedules of torch by their own names."""


def rank_count(schedule: str, stages: int) -> int:
    """Return how many ranks hold these stages.

    >>> rank_count("Grouped", 4), rank_count("ZBVZeroBubble", 4), rank_count("ZBVZeroBubble", 1)
    (4, 2, 1)
    """
    return max(1, stages // SCHEDULES[schedule].stages_per_rank)


def placement(schedule: str, stages: int) -> tuple[tuple[int, ...], ...]:
    """Return the stages of each rank, counted from 0.

    >>> placement("Interleaved1F1B", 4), placement("DualPipeV", 4)
    (((0, 2), (1, 3)), ((0, 3), (1, 2)))
    """
    ranks = rank_count(schedule, stages)
    if SCHEDULES[schedule].stages_per_rank == 1:
        return tuple((index,) for index in range(stages))
    if SCHEDULES[schedule].v_shaped:
        return tuple((index, stages - 1 - index) for index in range(ranks))
    return tuple((index, index + ranks) for index in range(ranks))


def in_flight(schedule: str, stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return of how many micro-batches each stage keeps its activations at the same time, at most.

    >>> in_flight("Grouped", 3, 8), in_flight("Interleaved", 3, 8), in_flight("Sequential", 3, 8)
    ((8, 8, 8), (3, 2, 1), (1, 1, 1))
    """
    found, ranks = SCHEDULES[schedule], rank_count(schedule, stages)
    if found.one_at_a_time or found.keeps_all:
        return (1 if found.one_at_a_time else micro_batches,) * stages
    if found.in_rounds:
        a_round = micro_batches // max(1, micro_batches // ranks)
        most = [a_round * (found.stages_per_rank - index // ranks) for index in range(stages)]
    else:
        most = [stages - index for index in range(stages)]
    return tuple(min(micro_batches, each) for each in most)


def check_stages(schedule: str, stages: int) -> None:
    """Raise `UserError` unless the stages can be spread over ranks by this schedule."""
    each = SCHEDULES[schedule].stages_per_rank
    if stages % each or stages < 2 * each:
        raise UserError(
            f"--pipeline-schedule {schedule}: {stages} stages cannot be spread over ranks of {each} stages each; "
            f"cut the network into {each * 2}, {each * 3}, ... stages"
        )


def check_inference(schedule: str) -> None:
    """Raise `UserError` unless the schedule can be used without a backward pass."""
    each = SCHEDULES[schedule].stages_per_rank
    if each > 1:
        able = ", ".join(name for name, found in SCHEDULES.items() if found.stages_per_rank == 1)
        raise UserError(
            f"--pipeline-schedule {schedule}: its {each} stages in a process are for training; "
            f"add --mode train, or use one of {able}"
        )


def check_micro_batches(schedule: str, stages: int, micro_batches: int, option: str = "--accumulation") -> None:
    """Raise `UserError` unless an update has enough micro-batches for the stages."""
    if micro_batches < stages:
        raise UserError(
            f"{option} {micro_batches}: a pipeline of {stages} stages needs at least one micro-batch for each; "
            f"set {option} {stages} or more"
        )
    whole = in_whole_rounds(schedule, stages, micro_batches)
    if whole != micro_batches:
        ranks = rank_count(schedule, stages)
        raise UserError(
            f"{option} {micro_batches}: {schedule} works in rounds of {ranks} micro-batches; set {option} {whole}"
        )


def in_whole_rounds(schedule: str, stages: int, micro_batches: int) -> int:
    """Return the most micro-batches of an update, so many at most, that the schedule can divide into its rounds.

    >>> in_whole_rounds("Interleaved1F1B", 4, 7), in_whole_rounds("Interleaved", 4, 7)
    (6, 7)
    """
    ranks = rank_count(schedule, stages)
    divides = not SCHEDULES[schedule].in_rounds or micro_batches % max(1, micro_batches // ranks) == 0
    return micro_batches if divides else micro_batches - micro_batches % ranks


def balanced(pieces: Sequence[tuple[str, float]], stages: int) -> tuple[str, ...]:
    """Return the names at which stages begin, so that the longest stage is as short as can be.

    `pieces` follow each other: where each begins, and how long it takes. Raise `UserError` if they are too few.

    >>> balanced([("", 3.0), ("b", 1.0), ("c", 1.0), ("d", 2.0)], 2)
    ('b',)
    """
    if len(pieces) < stages:
        raise UserError(
            f"--pipeline-splits auto: {stages} stages, and the network can be cut into {len(pieces)} at most"
        )
    times = [seconds for _, seconds in pieces]
    sums = list(itertools.accumulate(times, initial=0.0))
    # best[n][i]: the longest stage, and where the last begins, if the first i pieces make n + 1 stages
    best = [[(total, 0) for total in sums]]
    for _ in range(stages - 1):
        known = best[-1]
        best.append(
            [
                min(((max(known[cut][0], sums[end] - sums[cut]), cut) for cut in range(1, end)), default=(math.inf, 0))
                for end in range(len(sums))
            ]
        )
    end, cuts = len(times), list[int]()
    for row in reversed(best[1:]):
        end = row[end][1]
        cuts.append(end)
    return tuple(pieces[cut][0] for cut in reversed(cuts))
