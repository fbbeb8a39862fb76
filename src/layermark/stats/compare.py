"""Which is faster: never below the noise of the run, and never without the variance between starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from layermark.errors import UserError
from layermark.outcome import Run
from layermark.stats.rates import RESAMPLES, Array, rates, timed_blocks

START_SPREAD = 0.012
"""By how much two starts of one program differ in 95 of 100 cases, where this machine has not told yet."""

MIN_STARTS = 3
MIN_ROUNDS = 3
PROMISED = 0.02
"""The difference that `compare` means to find within its budget."""
_FOUND = 0.975
"""Quantile of the shift's own error for 95 of 100: the next comparison's half-width is another, often a wider one."""

_SEED = 20240301
_PAIR_95 = 1.96 * math.sqrt(2)
# The assumed spread weighs as much as this many degrees of freedom: three starts a side give only four.
_PRIOR_DF = 8
_MAD_TO_SIGMA = 1.4826
_HALF_WEIGHT = 1.75
"""How many standard deviations from its start and its group a block still counts half (Cauchy's weights).

A block of a busy machine is quiet or far out: clipping what is far out (Huber) left up to a quarter more noise in
recorded gates.
"""
_FIT_STEPS = 10
_LEAST_SCALE = 1e-12
"""Blocks that are all alike have no scale; any will do."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer of `compare`, B relative to A: `ratio` is the rate of B over that of A, within `low` and `high`."""

    answer: Literal["faster", "slower", "cannot tell"]
    ratio: float
    low: float
    high: float
    noise_floor: float
    """The smallest difference that this comparison could have told."""
    starts: tuple[int, int]
    rounds: int
    spread: float | None
    """By how much two starts of one program differ in 95 of 100 cases: what was assumed, corrected by what was seen."""
    confidence: float = 0.99
    detectable: float | None = None
    """The true difference that a comparison with this much noise finds in 95 of 100 cases, as a share of the rate."""

    @property
    def keeps_the_promise(self) -> bool:
        """Whether a difference of 2 % would have been found."""
        return self.detectable is not None and self.detectable <= PROMISED


def noise_floor(run: Run) -> float | None:
    """How far a run lies from itself: its blocks against each other, as if they were two programs.

    Even and odd blocks are resampled as pairs of neighbours, so that drift cancels as it does between
    runs that alternate. Half the blocks a side makes the floor an upper bound. None with fewer than four blocks.
    """
    rate = rates(timed_blocks(run.blocks), run.items_per_batch)
    pairs = len(rate) // 2
    if pairs < 2:
        return None
    halves = rate[: 2 * pairs].reshape(pairs, 2)
    chosen = np.random.default_rng(_SEED).integers(0, pairs, (RESAMPLES, pairs))
    medians = np.median(halves[chosen], axis=1)
    return float(np.quantile(np.abs(medians[:, 0] / medians[:, 1] - 1), 0.95))


def leaders(documents: Sequence[Mapping[str, Any]], start_spread: float | None = None) -> list[int]:
    """Which results of one comparison group may be the fastest; a single one is the winner.

    Each is judged beside the best by the noise of those two alone: a restless third hides nothing. Where a floor is
    not known, or not all clocks are the same, nothing can be told, and all are named.
    """
    floors = [each["noise_floor"] for each in documents]
    if None in floors or len({each["settings"].get("clock") for each in documents}) > 1:
        return list(range(len(documents)))
    values = [each["throughput"]["value"] for each in documents]
    best = int(np.argmax(values))
    return [
        index
        for index, (value, floor) in enumerate(zip(values, floors, strict=True))
        if index == best or value * (1 + margin(max(floor, floors[best]), start_spread)) >= values[best]
    ]


def margin(floor: float, start_spread: float | None = None) -> float:
    """What a difference between two runs of one start each must exceed."""
    return floor + (START_SPREAD if start_spread is None else start_spread)


def compare_starts(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    confidence: float = 0.99,
    *,
    floor: float = 0.0,
    spread: float | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> Verdict:
    """Compare two programs by the block rates of several starts each, measured in alternation in rounds.

    Entry i of every start belongs to round i. `groups`, by start, A's first, numbers the groups of a round: blocks that
    were timed one right after the other, as many of every side in each. What a group has in common (drift,
    a disturbance) cancels; without groups, what a round has. Rounds that not every start has reached are left out. No
    difference up to `floor` is ever reported. `spread` is the start-to-start spread known for this machine.
    """
    logs = _aligned(a, b)
    rounds = logs.shape[-1]
    grouped = None if groups is None else np.array([each[:rounds] for each in groups])
    shift, half, seen = judge(logs, len(a), confidence, spread, grouped)
    d, h = float(shift), max(float(half), math.log1p(floor))
    return Verdict(
        answer=_answer(d, h),
        ratio=math.exp(d),
        low=math.exp(d - float(half)),
        high=math.exp(d + float(half)),
        noise_floor=math.expm1(h),
        starts=(len(a), len(b)),
        rounds=rounds,
        spread=float(seen),
        confidence=confidence,
        detectable=math.expm1(h + slack(float(half), confidence, _PRIOR_DF + len(a) + len(b) - 2)),
    )


def slack(half: float, confidence: float, df: float) -> float:
    """Return how far beyond its interval's half-width a true shift must lie to be found in 95 of 100 comparisons.

    The half-width is so many standard errors of a shift, whose own error may carry it back.
    """
    return half * student_quantile(_FOUND, df) / student_quantile((1 + confidence) / 2, df)


def start_half_width(starts: tuple[int, int], confidence: float) -> float:
    """Return what the half-width of an interval does not fall below, however long one measures so many starts."""
    quantile = student_quantile((1 + confidence) / 2, _PRIOR_DF + sum(starts) - 2)
    return quantile * START_SPREAD / _PAIR_95 * math.sqrt(1 / starts[0] + 1 / starts[1])


def compare_documents(
    a: Mapping[str, Any], b: Mapping[str, Any], spread: float | None = None, confidence: float = 0.99
) -> Verdict:
    """Compare two stored results of one start each, measured at different times.

    Nothing cancels here: the intervals of both sides, the larger noise floor and the start-to-start spread all count.
    """
    if a["settings"].get("clock") != b["settings"].get("clock"):
        raise UserError("a simulated clock never meets a measured one: the two results cannot be compared")
    shift = math.log(b["throughput"]["value"] / a["throughput"]["value"])
    floor = max(each["noise_floor"] or 0.0 for each in (a, b))
    scale = NormalDist().inv_cdf((1 + confidence) / 2) / NormalDist().inv_cdf(0.975)
    noise = scale * math.hypot(_log_half_width(a), _log_half_width(b))
    half = math.log1p(margin(max(floor, math.expm1(noise)), spread))
    return Verdict(
        answer=_answer(shift, half),
        ratio=math.exp(shift),
        low=math.exp(shift - half),
        high=math.exp(shift + half),
        noise_floor=math.expm1(half),
        starts=(1, 1),
        rounds=min(_block_count(a), _block_count(b)),
        spread=None,
        confidence=confidence,
        detectable=math.expm1(half + slack(noise, confidence, math.inf)),
    )


def _answer(shift: float, half: float) -> Literal["faster", "slower", "cannot tell"]:
    if abs(shift) <= half:
        return "cannot tell"
    return "faster" if shift > 0 else "slower"


def _log_half_width(document: Mapping[str, Any]) -> float:
    rate = document["throughput"]
    if rate["low"] is None or rate["high"] is None:
        raise UserError("a result of one block has no interval and cannot be compared; measure it for longer")
    return max(math.log(rate["high"] / rate["value"]), math.log(rate["value"] / rate["low"]))


def _block_count(document: Mapping[str, Any]) -> int:
    return len({sample["block"] for sample in document["samples"]})


def judge(
    logs: Array, count_a: int, confidence: float, spread: float | None = None, groups: Array | None = None
) -> tuple[Array, Array, Array]:
    """Shift of B's log rate, half-width of its interval, and the start-to-start spread as corrected by these starts.

    `logs` is (..., starts, rounds) with A's starts first; leading axes are separate comparisons. `groups` are those of
    `compare_starts`, (starts, rounds) or one for every comparison.

    The variance of a start's centre is estimated from the starts themselves (few degrees of freedom) and, as a
    prior, from the blocks (many) plus the spread assumed between starts; whichever is larger counts.
    """
    count_b, rounds = logs.shape[-2] - count_a, logs.shape[-1]
    near = _Groups(np.zeros(logs.shape[-2:], dtype=int) if groups is None else groups, logs.shape)
    centres, block_variance = _fit(logs, near)
    sides = centres[..., :count_a], centres[..., count_a:]
    df = count_a + count_b - 2
    within = block_variance / rounds
    # Starts are seldom in one group, so that their centres vary more than what the sides differ by, where all are in
    # every group. That is left in: without it equal sides differed in up to 25 of 1000 recorded gates, with it in 15.
    between = sum(np.var(side, axis=-1) * side.shape[-1] for side in sides) / df
    assumed = (START_SPREAD if spread is None else spread) / _PAIR_95
    pooled = (_PRIOR_DF * (within + assumed**2) + df * between) / (_PRIOR_DF + df)
    error = np.sqrt(np.maximum(pooled, between) * (1 / count_a + 1 / count_b))
    shift = sides[1].mean(axis=-1) - sides[0].mean(axis=-1)
    # Moderated by the prior: a few starts alike by chance must not be recorded as a machine without spread.
    by_blocks = within * near.inflation
    seen = (_PRIOR_DF * assumed**2 + df * np.maximum(between - by_blocks, 0)) / (_PRIOR_DF + df)
    return shift, student_quantile((1 + confidence) / 2, _PRIOR_DF + df) * error, _PAIR_95 * np.sqrt(seen)


def _aligned(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Array:
    rounds = min((len(start) for start in (*a, *b)), default=0)
    if min(len(a), len(b)) < MIN_STARTS or rounds < MIN_ROUNDS:
        raise UserError(
            f"compare needs {MIN_STARTS} starts a side and {MIN_ROUNDS} rounds; received {len(a)} and {len(b)} starts, "
            f"{rounds} rounds; measure longer"
        )
    found: Array = np.array([start[:rounds] for start in (*a, *b)], dtype=float)
    if not (np.isfinite(found).all() and found.min() > 0):
        raise UserError("compare needs rates above zero; a block was timed with no rate")
    return np.asarray(np.log(found))


class _Groups:
    """Which blocks of a round belong together; all groups are of one size."""

    def __init__(self, groups: Array, shape: tuple[int, ...]) -> None:
        count = int(groups.max()) + 1
        self.size = shape[-2] // count
        self.inflation = self.size / (self.size - 1) * (1 - 1 / shape[-2])
        """By how much centres of starts vary more than if all were in one group: what incomplete blocks cost."""
        self._together = np.broadcast_to(np.argsort(groups, axis=-2, kind="stable"), shape)
        self._back = np.argsort(self._together, axis=-2)
        self._shape = (*shape[:-2], count, self.size, shape[-1])

    def each(self, reduce: Callable[..., Array], values: Array) -> Array:
        """Return, in the place of every block, what its group's values come to."""
        found = reduce(self._gathered(values), axis=-2, keepdims=True)
        spread = np.broadcast_to(found, self._shape).reshape(values.shape)
        return np.take_along_axis(spread, self._back, axis=-2)

    def _gathered(self, values: Array) -> Array:
        return np.take_along_axis(values, self._together, axis=-2).reshape(self._shape)


def _fit(logs: Array, groups: _Groups) -> tuple[Array, Array]:
    """Robust centres of the starts without what groups have in common, and the variance of a block around them.

    Additive fit (start + group) by means that are weighted anew in every step, from medians on.
    """
    blocks = math.prod(logs.shape[-2:])
    freedom = (blocks - blocks // groups.size - logs.shape[-2] + 1) / blocks
    by_start = np.median(logs - np.median(logs, axis=-2, keepdims=True), axis=-1, keepdims=True)
    by_group = groups.each(np.median, logs - by_start)
    for _ in range(_FIT_STEPS):
        residual = logs - by_start - by_group
        sigma = _MAD_TO_SIGMA * np.median(np.abs(residual), axis=(-2, -1), keepdims=True) / math.sqrt(freedom)
        scale = np.maximum(_HALF_WEIGHT * sigma, _LEAST_SCALE)
        weight = 1 / (1 + (residual / scale) ** 2)
        by_start = (weight * (logs - by_group)).sum(axis=-1, keepdims=True) / weight.sum(axis=-1, keepdims=True)
        by_group = groups.each(np.sum, weight * (logs - by_start)) / groups.each(np.sum, weight)
    residual = logs - by_start - by_group
    weight = 1 / (1 + (residual / scale) ** 2)
    # The variance of such a mean: the influence of a block, over how much the sum of influences moves with the centre.
    slope = (weight**2 * (1 - (residual / scale) ** 2)).mean(axis=(-2, -1))
    variance = ((residual * weight) ** 2).mean(axis=(-2, -1)) / freedom / slope**2
    return by_start[..., 0], variance


def student_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5), good from 4 df on.

    >>> round(student_quantile(0.995, 12), 2)
    3.05
    """
    z = NormalDist().inv_cdf(probability)
    square = z * z
    terms = (
        (square + 1) * z / 4,
        ((5 * square + 16) * square + 3) * z / 96,
        (((3 * square + 19) * square + 17) * square - 15) * z / 384,
        ((((79 * square + 776) * square + 1482) * square - 1920) * square - 945) * z / 92160,
    )
    return z + sum(term / df ** (power + 1) for power, term in enumerate(terms))
