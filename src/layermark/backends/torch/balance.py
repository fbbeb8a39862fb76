"""How long the pieces of a network take in torch, so that it can be cut into stages of equal length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from layermark.backends.base import Arrays
from layermark.backends.torch import process
from layermark.backends.torch.network import Network
from layermark.spec import Spec
from layermark.workloads.base import Task

_REPEATS = 5


def piece_times(spec: Spec, task: Task) -> list[tuple[str, float]]:
    """Return the name at which each piece begins and the seconds it takes, forward and in training backward.

    Pieces are cut where a single tensor goes on; the first begins with the network and has no name.
    """
    process.set_subnormals(spec.subnormals)
    names = task.graph.single_cuts
    pieces = task.graph.cut(names)
    weights, fed = task.weights(), task.batch(0)
    found: list[tuple[str, float]] = []
    for name, piece in zip(["", *names], pieces, strict=True):
        network = Network(spec, piece)
        network.load({each: weights[each] for each in piece.parameters})
        found.append((name, _seconds(_call(network, fed, spec))))
    return found


def _call(network: Network, fed: Arrays, spec: Spec) -> Callable[[], None]:
    own = network.feed_own(fed)
    kind = network.types.compute
    live = {
        name: torch.randn(op.dims, dtype=kind, requires_grad=network.training)
        for name, op in network.graph.inputs.items()
        if op.role == "live"
    }
    inputs = [live[name] if name in live else own[name] for name in network.graph.inputs]

    def forward() -> list[Tensor]:
        with network.types.autocast(spec.device):
            result = network.module(*inputs)
        listed = [result] if isinstance(result, Tensor) else list(result)
        return [each for each in listed if each.requires_grad] if network.training else listed

    def step() -> None:
        if not network.training:
            with torch.inference_mode():
                forward()
            return
        network.module.zero_grad(set_to_none=True)
        if made := forward():
            torch.autograd.backward(made, [torch.ones_like(each) for each in made])

    return step


def _seconds(step: Callable[[], None]) -> float:
    step()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
