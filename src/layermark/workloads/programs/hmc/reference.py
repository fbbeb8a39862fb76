"""The chain in NumPy float64: what the lowerings are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from layermark.laws import random_generator
from layermark.workloads.programs.hmc import START, HmcParams

Array = np.ndarray[Any, Any]


def log_density(x: Array) -> Array:
    """Up to a constant."""
    value: Array = -x - x * x
    return value


def gradient(x: Array) -> Array:
    """Of the log density."""
    return -1 - 2 * x


def leapfrog(x: Array, momentum: Array, params: HmcParams) -> tuple[Array, Array]:
    """Where a trajectory ends; half a kick, moves with whole kicks between them, half a kick."""
    step = params.step_size
    momentum = momentum + step / 2 * gradient(x)
    for _ in range(params.leapfrog_steps - 1):
        x = x + step * momentum
        momentum = momentum + step * gradient(x)
    x = x + step * momentum
    return x, momentum + step / 2 * gradient(x)


def log_acceptance(x: Array, momentum: Array, end: Array, end_momentum: Array) -> Array:
    """The energy that a trajectory lost; at least 0 is always accepted."""
    lost: Array = log_density(end) - log_density(x) + (momentum**2 - end_momentum**2) / 2
    return lost


def transition(x: Array, momentum: Array, log_uniform: Array, params: HmcParams) -> Array:
    """The next state."""
    end, end_momentum = leapfrog(x, momentum, params)
    return np.where(log_uniform < log_acceptance(x, momentum, end, end_momentum), end, x)


def chain(params: HmcParams, seed: int, number: int) -> Array:
    """The states of one call, all its random numbers drawn first."""
    rng = random_generator(seed, "hmc", number)
    shape = (params.hmc_steps, *params.shape)
    momenta, log_uniforms = rng.standard_normal(shape), np.log1p(-rng.random(shape))
    states, x = np.empty(shape), np.full(params.shape, START)
    for index in range(params.hmc_steps):
        x = states[index] = transition(x, momenta[index], log_uniforms[index], params)
    return states
