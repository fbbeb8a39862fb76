"""Statistical proof: does a chain follow the law that its settings imply?

Two kinds of figures, each a number of standard errors:

- of the chain as a whole: mean, variance and acceptance rate against those of the normal law. Their standard errors
  come from the effective sample size of the NumPy reference, so that a wrong chain cannot widen its own tolerance.
- of the single transition: how often and how far it moves from where it is, against the exact expectation at that
  place. These need no mixing, so they also hold where the leapfrog resonates with the density (with step size 1
  every even number of moves turns the trajectory back on itself, and the chain never reaches its law).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from layermark.outcome import Verification
from layermark.workloads.programs.base import Runs
from layermark.workloads.programs.hmc import MEAN, START, VARIANCE, HmcParams, reference

TOLERANCE = 5.0
"""Standard errors; chance alone exceeds them about once in 300,000 verifications."""
AGAINST = "normal law with mean -0.5 and variance 0.5"
AGAINST_TRANSITIONS = "law of one transition; the chain is too short, or mixes too slowly, to reach its own"

TRANSITIONS = 20_000
BURN_IN = 100
CHAINS_CHECKED = 64
SLOWEST = 20.0
"""A chain whose states are correlated over more transitions than this is judged by its transitions alone."""
_MOST_CALLS = 200
_FARTHEST = 20.0
_REFERENCE_STEPS = 500
_REFERENCE_CHAINS = 256

Array = np.ndarray[Any, Any]
Figure = tuple[str, float]
"""What was compared, and how many standard errors it is off."""


def verify(program: Runs, params: HmcParams) -> Verification:
    """Run as many calls as it takes to tell, and judge their states; the program is as new afterwards."""
    program.load({})
    calls = []
    for _ in range(calls_needed(params)):
        program.run(1)
        states = program.outputs()["states"].astype("float64")
        calls.append(states.reshape(params.hmc_steps, -1)[:, :CHAINS_CHECKED])
    program.load({})
    return judge(np.concatenate(calls, axis=1), params)


def calls_needed(params: HmcParams) -> int:
    """Two at least, so that a program that repeats itself is found out."""
    a_call = params.hmc_steps * min(params.chains, CHAINS_CHECKED)
    return min(_MOST_CALLS, max(2, math.ceil(TRANSITIONS / a_call)))


def judge(states: Array, params: HmcParams) -> Verification:
    """The verdict on independent chains `[transition, chain]` that all started from 1.0."""
    mixing = mixing_of(params)
    whole = len(states) >= 2 * BURN_IN and mixing.slowest <= SLOWEST
    figures = list(_figures(states, params, mixing if whole else None))
    name, worst = max(figures, key=lambda each: each[1])
    against = AGAINST if whole else AGAINST_TRANSITIONS
    reason = "" if worst <= TOLERANCE else f"wrong chain: {name} is {worst:.3g} standard errors off"
    return Verification(
        ok=worst <= TOLERANCE,
        max_error=min(worst, 1e308),
        tolerance=TOLERANCE,
        against=against,
        worst=name,
        reason=reason,
    )


def _figures(states: Array, params: HmcParams, mixing: Mixing | None) -> Iterator[Figure]:
    if not (np.isfinite(states).all() and np.abs(states).max() < _FARTHEST):
        yield "a state beyond anything the law allows", math.inf
        return
    yield from transition_figures(states, params)
    if mixing is not None:
        yield from chain_figures(states[BURN_IN:], params, mixing)
        yield "a chain that repeats another", 0.0 if _all_differ(states) else math.inf


def _all_differ(states: Array) -> bool:
    seen = {each.tobytes() for each in np.ascontiguousarray(states.T)}
    return len(seen) == int(states.shape[1])


class Mixing(NamedTuple):
    """Transitions that one independent draw is worth, for each figure of the whole chain."""

    mean: float
    variance: float
    acceptance: float

    @property
    def slowest(self) -> float:
        """The largest of them."""
        return max(self)


def mixing_of(params: HmcParams) -> Mixing:
    """From many short chains of the reference, whose true means are known."""
    states = reference.chain(dataclasses.replace(params, hmc_steps=_REFERENCE_STEPS, chains=_REFERENCE_CHAINS), 0, 0)
    y, moved = states[BURN_IN:] - MEAN, np.diff(states, axis=0)[BURN_IN - 1 :] != 0
    return Mixing(
        correlation_time(y),
        correlation_time(y * y - VARIANCE),
        correlation_time(moved - expected_acceptance(params)),
    )


def correlation_time(values: Array) -> float:
    """1 + 2 x the autocorrelations of series with mean 0, `[time, series]`, summed in pairs while these are positive.

    Never below 1: chains that are better than independent draws are judged as those.
    """
    size, total = np.mean(values * values), -1.0
    if size == 0:
        return 1.0
    for lag in range(0, len(values) - 1, 2):
        pair = [np.mean(values[: len(values) - each] * values[each:]) / size for each in (lag, lag + 1)]
        if sum(pair) <= 0:
            break
        total += 2 * sum(pair)
    return max(1.0, float(total))


def chain_figures(states: Array, params: HmcParams, mixing: Mixing) -> Iterator[Figure]:
    """Mean, variance (about the true mean) and acceptance rate of a chain that has forgotten its start."""
    y = states - MEAN
    rate = expected_acceptance(params)
    moved = np.mean(np.diff(states, axis=0) != 0)
    yield "mean", _off(np.mean(y), VARIANCE * mixing.mean / y.size)
    # The fourth central moment of a normal law is three times its squared variance.
    yield "variance", _off(np.mean(y * y) - VARIANCE, 2 * VARIANCE**2 * mixing.variance / y.size)
    yield "acceptance rate", _off(moved - rate, (rate * (1 - rate) * mixing.acceptance + 1e-6) / y.size)


def expected_acceptance(params: HmcParams, directions: int = 100_000) -> float:
    """The acceptance rate of a chain that follows its law, exact but for rounding.

    Position and momentum in units of their deviations are a direction and a radius; the leapfrog is linear here, so
    the energy lost grows with the square of the radius, and the integral over the radius has a closed form.
    """
    angle = 2 * math.pi * (np.arange(directions) + 0.5) / directions
    x, momentum = MEAN + math.sqrt(VARIANCE) * np.cos(angle), np.sin(angle)
    lost = reference.log_acceptance(x, momentum, *reference.leapfrog(x, momentum, params))
    return float(np.mean(1 / (1 + 2 * np.maximum(0, -lost))))


def transition_figures(states: Array, params: HmcParams) -> Iterator[Figure]:
    """How often, how far, and how much further out the transitions moved, against what was to be expected of each."""
    start = np.full_like(states[:1], START)
    before = np.concatenate([start, states[:-1]]).ravel()
    after = states.ravel()
    seen = (after != before, after - before, (after - MEAN) ** 2 - (before - MEAN) ** 2)
    names = ("how often it moves", "how far it moves", "how it moves outwards")
    # Rounding in float32, which grows with the trajectory; it only counts where chance plays no part.
    rounding = (1e-4 + 1e-6 * params.leapfrog_steps) ** 2
    for name, value, (mean, variance) in zip(names, seen, _expectations(before, params), strict=True):
        if name == names[0]:
            # A move onto the very same float is not seen as one, which happens where a trajectory returns.
            returns = np.abs(_farthest_move(before, params)) < 1e-3
            value, mean, variance = value[~returns], mean[~returns], variance[~returns]
        yield name, _off(np.sum(value - mean), np.sum(variance + rounding)) if value.size else 0.0


def _farthest_move(x: Array, params: HmcParams) -> Array:
    ends = [reference.leapfrog(x, np.full_like(x, momentum), params)[0] - x for momentum in (-1.0, 1.0)]
    return np.maximum(*map(np.abs, ends))


def _expectations(x: Array, params: HmcParams) -> Iterator[tuple[Array, Array]]:
    """Mean and variance of each figure of one transition from x, read from a table over the places that were seen."""
    places = np.linspace(x.min() - 1e-3, x.max() + 1e-3, 301)[:, None]
    momentum = np.linspace(-8, 8, 2001)[None, :]
    weight = np.exp(-(momentum**2) / 2)
    end, end_momentum = reference.leapfrog(places, momentum, params)
    lost = reference.log_acceptance(places, momentum, end, end_momentum)
    accepted = weight / weight.sum() * np.exp(np.minimum(0, lost))
    for gain in (np.ones_like(end), end - places, (end - MEAN) ** 2 - (places - MEAN) ** 2):
        first, second = (accepted * gain).sum(1), (accepted * gain**2).sum(1)
        yield np.interp(x, places[:, 0], first), np.interp(x, places[:, 0], np.maximum(0, second - first**2))


def _off(difference: Any, variance: Any) -> float:
    return float(abs(difference) / math.sqrt(variance))
