"""Eager or compiled, and the short trial that decides between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from layermark import ops
from layermark.backends.torch.cells import ALONE, IN_CPP, UNROLLED_STEPS, Fused, Loop
from layermark.backends.torch.network import Network, is_small
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph

EXECUTIONS = ("eager", "compile", "recompute", "auto")

Forward = Callable[..., Any]


class Rate:
    """The learning rate, as a number, and as a tensor for a compiled step, which would have the number compiled in."""

    def __init__(self, device: str) -> None:
        self.value, self.tensor = 0.0, torch.zeros((), device=device)

    def set(self, value: float) -> None:
        """The rate of the steps to come."""
        if value != self.value:
            self.value = value
            self.tensor.fill_(value)


@dataclass(frozen=True)
class Way:
    """One way to run a network; `enter` makes it the one in force."""

    name: str
    step: Forward
    """The forward pass; in training with the gradients and the update."""
    enter: Callable[[], None]
    folds_weights: bool = False


def check(execution: str) -> None:
    """Refuse words that mean nothing here."""
    if execution not in EXECUTIONS:
        raise UserError(f"--execution {execution}: torch knows {', '.join(EXECUTIONS)}")


def eager(network: Network, rate: Rate) -> Way:
    """The module as it is."""
    loops = _loops(network)
    return Way("eager", _step(network, _direct(network), rate), lambda: _set_steps(loops, {}))


def recomputing(network: Network, rate: Rate) -> Way:
    """The module as it is, but its activations are computed again for the backward pass instead of kept."""
    if not network.training:
        raise Unsupported("recompute needs a backward pass: use --mode train, or --execution eager")
    from torch.utils.checkpoint import checkpoint

    forward, loops = _direct(network), _loops(network)
    again = functools.partial(checkpoint, forward, use_reentrant=False)
    return Way("recompute", _step(network, again, rate), lambda: _set_steps(loops, {}))


def compiled(network: Network, rate: Rate) -> Way:
    """The network through Inductor, weights folded for inference; of long loops only the cell.

    A small network in training is compiled together with its gradients and its update.
    """
    loops = _loops(network)
    if network.training and _has_onednn_lstm(network):
        raise Unsupported("torch.compile cannot train oneDNN's LSTM; use --cell loop, or --execution eager")
    if any(loop.length > UNROLLED_STEPS for loop in loops):
        steps: dict[Forward, Forward] = {loop.cell: torch.compile(loop.cell, **ALONE) for loop in loops}
        return Way("compile", _step(network, _direct(network), rate), lambda: _set_steps(loops, steps))
    _configure(network)
    if network.training and is_small(network.graph):
        step = _whole_step(network, rate)
    else:
        step = _step(network, torch.compile(network.module, fullgraph=True, dynamic=False), rate)
    return Way("compile", step, lambda: _set_steps(loops, {}), folds_weights=not network.training)


def _step(network: Network, forward: Forward, rate: Rate) -> Forward:
    """The forward pass; in training the loss, its gradients and one fused update of all parameters."""
    if not network.training:
        return forward
    slots, loss_of = network.trained, _casting(network, forward)
    leaves, targets = [slot.leaf for slot in slots], [slot.tensor for slot in slots]
    parts = [(index, slot.rows) for index, slot in enumerate(slots) if slot.rows is not None]
    gradients, update = torch.autograd.grad, torch._foreach_add_

    def step(*inputs: Tensor) -> Tensor:
        loss = loss_of(*inputs)
        moves = list(gradients(loss, leaves))
        for index, rows in parts:
            moves[index] = moves[index][rows]
        update(targets, moves, alpha=-rate.value)
        return loss

    return step


def _whole_step(network: Network, rate: Rate) -> Forward:
    """A training step as one compiled graph, in which autograd has no part any more when it runs.

    That is 1.3 to 2.1 times as fast as a compiled forward pass and its compiled gradients for layers of up to some
    milliseconds. `tuned` has the calls of its kernels in C++, which takes a compiler another ten seconds, and does not
    ask in every call whether something has changed since: nothing does, and another 5 % of a small layer are saved.
    """
    slots, loss_of = network.trained, _casting(network, network.module)
    leaves, rows = [slot.leaf for slot in slots], [slot.rows or slice(None) for slot in slots]
    held = rate.tensor

    def step(*inputs: Tensor) -> Tensor:
        loss = loss_of(*inputs)
        moves = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            for leaf, part, move in zip(leaves, rows, moves, strict=True):
                leaf[part].sub_(held * move[part])
        return loss.detach()

    compiled: Forward = torch.compile(step, options=IN_CPP if network.tuned else None, **ALONE)
    return compiled


def _casting(network: Network, forward: Forward) -> Forward:
    """In training autocast must be left after every forward pass: it would keep the casts of old weights."""
    if not network.types.mixed:
        return forward

    def cast_forward(*inputs: Tensor) -> Any:
        with network.types.autocast(network.device):
            return forward(*inputs)

    return cast_forward


def _has_onednn_lstm(network: Network) -> bool:
    """Whether torch takes an LSTM to oneDNN, as it does on the CPU unless it is to compute in fp16."""
    found = any(isinstance(part, Fused) and part.kind == "lstm" for part in network.module.modules())
    return found and network.device == "cpu" and network.types.compute != torch.float16


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
    torch._dynamo.config.trace_autograd_ops = True  # or compiled steps stop at their gradients
    if inductor.freezing:
        torch._dynamo.reset()  # weights that were folded into an earlier compilation must not be found again


def _loops(network: Network) -> list[Loop]:
    return [part for part in network.module.modules() if isinstance(part, Loop)]


def _set_steps(loops: Sequence[Loop], steps: Mapping[Forward, Forward]) -> None:
    for loop in loops:
        loop.step = steps.get(loop.cell, loop.cell)


def mostly_fused(graph: Graph) -> bool:
    """Whether the work is in fused recurrent kernels, which Inductor calls as they are or takes apart."""
    fused = sum(
        node.op.macs(*graph.input_shapes(node))
        for node in graph
        if isinstance(node.op, ops.Recurrent) and node.op.form == "fused"
    )
    return fused > 0.95 * graph.macs
