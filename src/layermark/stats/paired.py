"""Comparisons by pairs: what both of a pair have in common cancels, and only the differences within pairs count."""

from __future__ import annotations

import math

import numpy as np

from layermark.stats.compare import START_SPREAD, Verdict, slack, student_quantile
from layermark.stats.rates import Array

CONFIDENCE = 0.99

_PAIR_95 = 1.96 * math.sqrt(2)
_PRIOR_DF = 8
_MAD_TO_SIGMA = 1.4826
_CLIP = 2.5
_LEAST_KEPT = 4
_ENOUGH_TO_CLIP = 6

_SEED = 20240302
_ALL_SIGNS = 13
"""Up to so many pairs every choice of signs is looked at, beyond that `_SIGNS` drawn ones."""
_SIGNS = 20_000


def paired(shifts: Array, weight: float, starts: tuple[int, int], confidence: float = CONFIDENCE) -> Verdict:
    """Compare by the differences within rounds, in which what a round has in common cancels.

    `weight` is the variance of a difference in units of a single start's. Two intervals are made, by the spread that
    starts are known to have, corrected by what was seen, and by what was seen alone; the wider counts.
    """
    rounds, middle = len(shifts), float(np.median(shifts))
    assumed = math.sqrt(weight) * START_SPREAD / _PAIR_95
    scale = max(_MAD_TO_SIGMA * float(np.median(np.abs(shifts - middle))), assumed)
    clipped = np.clip(shifts, middle - _CLIP * scale, middle + _CLIP * scale)
    shift, seen = float(clipped.mean()), float(clipped.var(ddof=1))
    pooled = (_PRIOR_DF * assumed**2 + (rounds - 1) * seen) / (_PRIOR_DF + rounds - 1)
    tail = (1 + confidence) / 2
    known = student_quantile(tail, _PRIOR_DF + rounds - 1) * math.sqrt(pooled / rounds)
    # Tukey and McLaughlin: a mean of clipped values knows as much as the values that were left alone.
    kept = max(int((clipped == shifts).sum()), _LEAST_KEPT)
    half = max(known, student_quantile(tail, kept - 1) * math.sqrt(seen * rounds) / kept)
    return verdict(shift, half, starts, rounds, confidence)


def verdict(shift: float, half: float, starts: tuple[int, int], rounds: int, confidence: float = CONFIDENCE) -> Verdict:
    """Return the verdict on a shift of the log rate within an interval of this half-width."""
    return Verdict(
        answer="cannot tell" if abs(shift) <= half else "faster" if shift > 0 else "slower",
        ratio=math.exp(shift),
        low=math.exp(shift - half),
        high=math.exp(shift + half),
        noise_floor=math.expm1(half),
        starts=starts,
        rounds=rounds,
        spread=None,
        confidence=confidence,
        detectable=math.expm1(half + slack(half, confidence, _PRIOR_DF + rounds - 1)),
    )


def against_nothing(shifts: Array, others: Array, confidence: float) -> Verdict:
    """Compare two parts of one result by pairs of their blocks: is there more than chance?

    `others` are pairs of the same blocks in another arrangement, which know the noise as well. The floor is what the
    mean reaches when the sign of every pair is chance, and never less than Student's interval (a few pairs have too few
    signs) or what two starts of one program may differ by.
    """
    clipped, beside = _clipped(shifts), _clipped(others)
    count = len(clipped)
    noise = (clipped.var() * count + beside.var() * len(beside)) / (count + len(beside) - 2)
    kept = int((clipped == shifts).sum()), int((beside == others).sum())
    quantile = _quantile((1 + confidence) / 2, sum(kept) - 2)
    by_student = quantile * math.sqrt(noise * count) / max(kept[0], 1)
    floor = max(permuted_floor(clipped, confidence), by_student, math.log1p(START_SPREAD))
    return verdict(float(clipped.mean()), floor, (1, 1), count, confidence)


def _quantile(probability: float, df: int) -> float:
    """Student's quantile; below three degrees of freedom that of two, which has a formula of its own."""
    if df > 2:
        return student_quantile(probability, df)
    return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))


def _clipped(shifts: Array) -> Array:
    """Without outliers, symmetrically around zero, which leaves every sign as likely as before; of a few, all count."""
    if len(shifts) < _ENOUGH_TO_CLIP:
        return shifts
    most = _CLIP * _MAD_TO_SIGMA * float(np.median(np.abs(shifts)))
    return np.asarray(np.clip(shifts, -most, most))


def permuted_floor(shifts: Array, confidence: float) -> float:
    """Return what the mean's size stays below in this share of all choices of the shifts' signs.

    Zero where there are too few shifts: then all of one sign is nothing rare.

    >>> permuted_floor(np.array([1.0, 1.0]), 0.99)
    0.0
    """
    count = len(shifts)
    if (1 - confidence) * 2 ** (count - 1) < 1:
        return 0.0
    if count <= _ALL_SIGNS:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.random.default_rng(_SEED).choice((-1, 1), (_SIGNS, count))
    # A value that stands in the list, not one between two: else all of one sign would not exceed it.
    return float(np.quantile(np.abs(signs @ shifts) / count, confidence, method="lower"))
