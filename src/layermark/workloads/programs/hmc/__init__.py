"""Hamiltonian Monte Carlo: a chain of short random steps, each of which waits for the one before.

One batch is one call of `hmc_steps` transitions that start from 1.0. A transition draws a momentum,
follows the leapfrog for `leapfrog_steps` moves, and keeps or refuses where it arrives. The log density
is -x - x^2 up to a constant: a normal law with mean -0.5 and variance 0.5. Density and gradient at its
start are computed again by every transition, and all random numbers are drawn within the call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from layermark.errors import UserError
from layermark.graph import Graph
from layermark.options import integer, option, positive_float
from layermark.outcome import Verification
from layermark.spec import Spec
from layermark.workloads.programs.base import Implementation, ProgramTask, ProgramWorkload, Runs

START = 1.0
MEAN = -0.5
VARIANCE = 0.5
LARGEST_STEP = math.sqrt(2)
"""From here on the leapfrog is unstable on this density and hardly a step is accepted."""


@dataclass(frozen=True, kw_only=True)
class HmcParams:
    """Options of the chain."""

    hmc_steps: int = option(10000, parse=integer(1), help="transitions of the chain in one call")
    leapfrog_steps: int = option(5, parse=integer(1), help="leapfrog moves in one transition")
    step_size: float = option(1.0, parse=positive_float, help="length of a leapfrog move")
    chains: int = option(1, parse=integer(1), help="independent chains that advance together")
    generator: str = option(
        "default", choices=("default", "fast"), help="the runtime's usual random numbers, or its cheapest sound ones"
    )

    def __post_init__(self) -> None:
        if self.step_size >= LARGEST_STEP:
            raise UserError(f"--step-size {self.step_size}: the leapfrog is stable below {LARGEST_STEP:.4f} only")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one state: a scalar for one chain."""
        return () if self.chains == 1 else (self.chains,)


@dataclass(frozen=True)
class HmcTask(ProgramTask):
    """One call of the chain."""

    params: HmcParams = HmcParams()

    def flops(self, mode: str) -> int:
        """Scalar operations that a transition needs at least: 19 + 6 per leapfrog move.

        Density 3 and gradient 2 at the start; half a kick 2; every move 2, its gradient 2 and its kick 2; the
        density at the end 3; two kinetic energies 4; their balance 3; compare and select 2. Drawing the random
        numbers (and the logarithm of the uniform one) is not counted: generators differ too much.
        """
        return self.items * (19 + 6 * self.params.leapfrog_steps)

    def compulsory_bytes(self, mode: str, compute_bytes: int = 4, weight_bytes: int = 4) -> int:
        """The states, written once."""
        return compute_bytes * self.items

    def memory_bytes(self, mode: str, ring: int, weight_copies: float = 4) -> int:
        """States, random numbers, and their copies on the way out."""
        return 8 * 4 * self.items

    def implementation(self, spec: Spec) -> Implementation:
        """The chain in the words of the spec's backend."""
        built: Implementation = WORKLOAD.find(spec).prepare(spec, self.params)
        return built

    def verify(self, program: Runs) -> Verification:
        """Compare the chain's statistics with their law."""
        from layermark.workloads.programs.hmc.law import verify

        return verify(program, self.params)


class Hmc(ProgramWorkload):
    """A sequential chain on a scalar, or several at once."""

    summary = "Hamiltonian Monte Carlo on a scalar: a sequential chain inside one call"
    item = "transition"
    needs = "a loop with random numbers inside"
    Params = HmcParams

    def task(self, spec: Spec, batch_size: int) -> HmcTask:
        """The chain that a spec describes."""
        params = HmcParams(**spec.params)
        return HmcTask(Graph((), ()), spec.seed, params.hmc_steps * params.chains, params=params)


def outputs(states: Any) -> dict[str, Any]:
    """What every implementation returns: the states, and the share of transitions that moved."""
    import numpy as np

    kept = np.asarray(states, dtype="float32")
    before = np.concatenate([np.full_like(kept[:1], START), kept[:-1]])
    return {"states": kept, "acceptance": np.float32(np.mean(kept != before)).reshape(())}


WORKLOAD = Hmc()
