"""Eager or compiled, and the short trial that decides between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx, nn

from layermark import ops
from layermark.backends.torch.cells import Loop
from layermark.backends.torch.network import Network
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph

EXECUTIONS = ("eager", "compile", "recompute", "auto")
UNROLLED_STEPS = 16
"""Loops up to this long are compiled whole; unrolling two layers of 200 steps takes a minute."""

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Way:
    """One way to call a network; `enter` makes it the one in force."""

    name: str
    forward: Forward
    enter: Callable[[], None]
    folds_weights: bool = False


def check(execution: str) -> None:
    """Refuse words that mean nothing here."""
    if execution not in EXECUTIONS:
        raise UserError(f"--execution {execution}: torch knows {', '.join(EXECUTIONS)}")


def eager(network: Network) -> Way:
    """The module as it is."""
    loops = _loops(network)
    return Way("eager", _direct(network), lambda: _set_steps(loops, {}))


def recomputing(network: Network) -> Way:
    """The module as it is, but its activations are computed again for the backward pass instead of kept."""
    if not network.training:
        raise Unsupported("recompute needs a backward pass: use --mode train, or --execution eager")
    from torch.utils.checkpoint import checkpoint

    forward, loops = _direct(network), _loops(network)
    again = functools.partial(checkpoint, forward, use_reentrant=False)
    return Way("recompute", again, lambda: _set_steps(loops, {}))


def compiled(network: Network) -> Way:
    """The module through Inductor, weights folded for inference; of long loops only the step."""
    loops = _loops(network)
    if any(loop.length > UNROLLED_STEPS for loop in loops):
        steps = {loop.cell: torch.compile(loop.cell, fullgraph=True, dynamic=False) for loop in loops}
        return Way("compile", _direct(network), lambda: _set_steps(loops, steps))
    _configure(network)
    torch._dynamo.reset()  # folded weights of an earlier compilation must not be found again
    forward = torch.compile(network.module, fullgraph=True, dynamic=False)
    return Way("compile", forward, lambda: _set_steps(loops, {}), folds_weights=not network.training)


def _direct(network: Network) -> Forward:
    """The module's own code, calling `forward` of its parts: no look-up of parts, no hooks that nobody registered.

    This saves about a microsecond per part, which a layer of a few microseconds would be charged with. A network of one
    part needs no code of its own.
    """
    alone = _only_part(network.module)
    if alone is not None:
        forward: Forward = alone.forward
        return forward
    parts = SimpleNamespace(**{name: part.forward for name, part in network.module.named_children()})
    return functools.partial(type(network.module).forward, parts)


def _only_part(module: fx.GraphModule) -> nn.Module | None:
    """The part of a module that only hands its input to it and answers what it gives."""
    nodes = list(module.graph.nodes)
    if len(nodes) != 3 or nodes[1].op != "call_module" or nodes[1].args != (nodes[0],):
        return None
    return module.get_submodule(str(nodes[1].target))


def _configure(network: Network) -> None:
    import torch._inductor.config as inductor

    inductor.freezing = not network.training


def _loops(network: Network) -> list[Loop]:
    return [part for part in network.module.modules() if isinstance(part, Loop)]


def _set_steps(loops: Sequence[Loop], steps: Mapping[Forward, Forward]) -> None:
    for loop in loops:
        loop.step = steps.get(loop.cell, loop.cell)


def mostly_fused(graph: Graph) -> bool:
    """Whether the work is in fused recurrent kernels, which Inductor calls as they are."""
    fused = sum(
        node.op.macs(*graph.input_shapes(node))
        for node in graph
        if isinstance(node.op, ops.Recurrent) and node.op.form == "fused"
    )
    return fused > 0.95 * graph.macs
