"""The chain on PyTorch, which has no sampler of its own: a loop over tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.workloads.programs.base import Call, Implementation, chosen
from layermark.workloads.programs.hmc import START, HmcParams, outputs

COMPILED_MOVES = 250
"""Leapfrog moves that one compiled piece holds; longer pieces take minutes to compile and gain little."""
MOST_MOVES = 1000
"""A transition cannot be cut, so beyond this one piece would be too long."""
INDUCTOR: dict[str, str | int | bool | Callable[..., Any]] = {"realize_opcount_threshold": 4, "max_fusion_size": 4096}
"""Inductor walks the operations of a kernel as a tree. A move uses each value twice, so at the usual threshold of 30
it walks a million branches; values that are made buffers early join the same kernel, if it may be that large."""


def prepare(spec: Spec, params: HmcParams) -> TorchChain:
    """Build the chain; compiling happens here."""
    if spec.formulation == "tuned":
        raise Unsupported("no tuned formulation of hmc on torch; the library one already draws its numbers first")
    if params.generator == "fast":
        raise Unsupported("torch has one generator on the CPU, mt19937; use --generator default")
    if not torch.set_flush_denormal(spec.subnormals == "flush"):
        raise Unsupported(f"this CPU cannot {spec.subnormals} subnormals under torch")
    return TorchChain(spec, params)


class TorchChain(Implementation):
    """Transitions one by one (eager), or some at a time as one compiled piece."""

    def __init__(self, spec: Spec, params: HmcParams) -> None:
        self._seed, self._params = spec.seed % 2**32, params
        self._generator = torch.Generator()
        self._piece = min(params.hmc_steps, max(1, COMPILED_MOVES // params.leapfrog_steps))
        executions = {"eager": lambda: self._eager, "compile": self._compile}
        self._call, told = chosen(spec, executions)
        if told["execution"] == "compile":
            told["compiled_piece"] = f"{self._piece} transitions"
        self._settings = told | {
            "formulation": "library",
            "library": "none",
            "generator": "mt19937",
            "random_numbers": "drawn first in every call",
            "compute_type": "float32",
            "output_type": str(self._call(0).dtype).removeprefix("torch."),
            "subnormals": spec.subnormals,
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """What was built."""
        return self._settings

    def call(self, number: int) -> Tensor:
        """One call; the stream goes on from call to call and begins again with the first."""
        states: Tensor = self._call(number)
        return states

    def outputs(self, result: Tensor) -> Mapping[str, Any]:
        """The states of a call."""
        return outputs(result.numpy())

    def _drawn(self, number: int, count: int) -> tuple[Tensor, Tensor]:
        """Momenta and uniform numbers; for the logarithms of all at once torch would wake its threads."""
        if number == 0:
            self._generator.manual_seed(self._seed)
        shape = (count, *self._params.shape)
        momenta = torch.randn(shape, generator=self._generator)
        return momenta, torch.rand(shape, generator=self._generator)

    @torch.inference_mode()
    def _eager(self, number: int) -> Tensor:
        momenta, uniforms = self._drawn(number, self._params.hmc_steps)
        return torch.stack(chain(torch.full(self._params.shape, START), momenta, uniforms, self._params))

    def _compile(self) -> Call:
        params, size = self._params, self._piece
        if params.leapfrog_steps > MOST_MOVES:
            raise Unsupported(f"{params.leapfrog_steps} leapfrog moves take minutes to compile; use --execution eager")
        pieces = -(-params.hmc_steps // size)

        def some(x: Tensor, momenta: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            states = chain(x, momenta, uniforms, params)
            return torch.stack(states), states[-1]

        piece: Callable[..., tuple[Tensor, Tensor]] = torch.compile(
            some, fullgraph=True, dynamic=False, options=INDUCTOR
        )

        @torch.inference_mode()
        def call(number: int) -> Tensor:
            # Numbers for whole pieces: the last one may run past the end, and is cut.
            drawn = (torch.split(each, size) for each in self._drawn(number, pieces * size))
            states, x = [], torch.full(params.shape, START)
            for momenta, uniforms in zip(*drawn, strict=True):
                some_states, x = piece(x, momenta, uniforms)
                states.append(some_states)
            return torch.cat(states)[: params.hmc_steps]

        return call


def chain(x: Tensor, momenta: Tensor, uniforms: Tensor, params: HmcParams) -> list[Tensor]:
    """The states after each of these transitions."""
    states = []
    for momentum, uniform in zip(momenta.unbind(), uniforms.unbind(), strict=True):
        x = transition(x, momentum, uniform, params)
        states.append(x)
    return states


def transition(x: Tensor, momentum: Tensor, uniform: Tensor, params: HmcParams) -> Tensor:
    """The next state, in as few operations as there are: each costs a microsecond, whatever it computes.

    The gradient is written out, because autograd costs several times the rest of the transition. Compiled, the time is
    that of a chain of operations that wait for each other, so none has a factor of -1, which would be one more.
    """
    step = params.step_size
    y, q = x, _kicked(momentum, x, step / 2)
    for _ in range(params.leapfrog_steps - 1):
        y = torch.add(y, q, alpha=step)
        q = _kicked(q, y, step)
    y = torch.add(y, q, alpha=step)
    q = _kicked(q, y, step / 2)
    balance = momentum * momentum - q * q
    lost = torch.add(_potential(x) - _potential(y), balance, alpha=0.5)
    return torch.where(uniform.log() < lost, y, x)


def _kicked(momentum: Tensor, x: Tensor, step: float) -> Tensor:
    """The momentum after `step` times the gradient -1 - 2 x; what does not wait for x comes first."""
    return torch.sub(momentum - step, x, alpha=2 * step)


def _potential(x: Tensor) -> Tensor:
    """The log density, negated, up to a constant."""
    return torch.addcmul(x, x, x)
