"""The chain on JAX: BlackJAX's kernel (library), or a plain `lax.scan` with its random numbers drawn first (tuned)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.workloads.programs.base import Implementation, chosen
from layermark.workloads.programs.hmc import START, HmcParams, outputs

GENERATORS = {"default": "threefry2x32", "fast": "rbg"}
"""`unsafe_rbg` would be faster still where keys are split, but JAX does not vouch for its streams."""
UNROLLED_MOVES = 16


def prepare(spec: Spec, params: HmcParams) -> JaxChain:
    """Compile the chain."""
    if spec.subnormals != "flush":
        reason = "jax always flushes subnormals; use --subnormals flush"
        raise Unsupported(reason, code="always_flushes", instead={"subnormals": "flush"})
    return JaxChain(spec, params)


class JaxChain(Implementation):
    """All transitions of a call are one compiled loop."""

    def __init__(self, spec: Spec, params: HmcParams) -> None:
        tuned = spec.formulation == "tuned"
        chain = jax.jit(partial(tuned_chain(params) if tuned else library_chain(params), np.uint32(spec.seed % 2**32)))
        self._call, told = chosen(spec, {"jit": lambda: chain})
        self._call(0).block_until_ready()
        self._settings = told | {
            "formulation": spec.formulation,
            "library": "none" if tuned else f"blackjax {importlib.metadata.version('blackjax')}",
            "generator": GENERATORS[params.generator],
            "random_numbers": "drawn first in every call" if tuned else "drawn in every transition",
            "compute_type": "float32",
            "output_type": str(self._call(0).dtype),
            "subnormals": "flush",
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """What was built."""
        return self._settings

    def call(self, number: int) -> Array:
        """One call; its number is folded into the key."""
        states: Array = self._call(number).block_until_ready()
        return states

    def outputs(self, result: Array) -> Mapping[str, Any]:
        """The states of a call."""
        return outputs(result)


def log_density(x: Array) -> Array:
    """Up to a constant."""
    return -x - x * x


def _key(params: HmcParams, seed: Array, number: Array) -> Array:
    return jax.random.fold_in(jax.random.key(seed, impl=GENERATORS[params.generator]), number)


def library_chain(params: HmcParams) -> Any:
    """BlackJAX's HMC kernel in a scan, as its documentation shows; several chains through `vmap`."""
    if importlib.util.find_spec("blackjax") is None:
        reason = "hmc on jax needs BlackJAX: pip install blackjax; or use --formulation tuned"
        raise Unsupported(reason, instead={"formulation": "tuned"})
    import blackjax  # type: ignore[import-untyped]

    kernel = blackjax.hmc(
        log_density,
        step_size=params.step_size,
        inverse_mass_matrix=jnp.ones(1),
        num_integration_steps=params.leapfrog_steps,
    )

    def one(x: Array, key: Array) -> Array:
        moved: Array = kernel.step(key, kernel.init(x))[0].position
        return moved

    step = one if params.chains == 1 else jax.vmap(one)

    def run(seed: Array, number: Array) -> Array:
        keys = jax.random.split(_key(params, seed, number), (params.hmc_steps, *params.shape))
        states: Array = lax.scan(_kept(step), jnp.full(params.shape, START), keys)[1]
        return states

    return run


def tuned_chain(params: HmcParams) -> Any:
    """The same transitions by hand.

    One large draw per call vectorises; a draw in every transition costs ten times as much as the rest of it.
    """

    def step(x: Array, given: tuple[Array, Array]) -> Array:
        return transition(x, given[0], given[1], params)

    def run(seed: Array, number: Array) -> Array:
        first, second = jax.random.split(_key(params, seed, number))
        shape = (params.hmc_steps, *params.shape)
        drawn = jax.random.normal(first, shape), jnp.log(jax.random.uniform(second, shape))
        states: Array = lax.scan(_kept(step), jnp.full(params.shape, START), drawn)[1]
        return states

    return run


def _kept(step: Any) -> Any:
    """A step of a scan that keeps every state."""

    def turn(x: Array, given: Any) -> tuple[Array, Array]:
        x = step(x, given)
        return x, x

    return turn


def transition(x: Array, momentum: Array, log_uniform: Array, params: HmcParams) -> Array:
    """The next state."""
    step = params.step_size

    def move(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        y = state[0] + step * state[1]
        return y, state[1] + step * _both(y)[1]

    before, slope = _both(x)
    start = (x, momentum + step / 2 * slope)
    moves = params.leapfrog_steps - 1
    y, q = lax.fori_loop(0, moves, move, start, unroll=0 < moves < UNROLLED_MOVES or None)
    y = y + step * q
    after, slope = _both(y)
    q = q + step / 2 * slope
    return jnp.where(log_uniform < after - before + (momentum * momentum - q * q) / 2, y, x)


def _both(x: Array) -> tuple[Array, Array]:
    """Log density and its gradient, by automatic differentiation."""
    value, pull = jax.vjp(log_density, x)
    return value, pull(jnp.ones_like(value))[0]
