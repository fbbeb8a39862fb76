"""How a module is executed: called as it is, entered below its calls, compiled, or with activations computed again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx, nn

from layermark import ops
from layermark.backends.base import MissingEntry
from layermark.backends.torch.network import Network, is_small
from layermark.backends.torch.recurrent import ALONE, IN_CPP, UNROLLED_STEPS, CellPerStep, Fused
from layermark.backends.torch.updating import Steps, Trainer
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph

EXECUTIONS = ("auto", "eager", "compile", "recompute", "eager-direct")
PRIVATE = "eager-direct"

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Execution:
    """A network that is ready to be called; `enter` makes it the one in force."""

    name: str
    step: Forward
    """The forward pass; in training with the gradients and the update."""
    enter: Callable[[], None]
    folds_weights: bool = False
    gather: Forward | None = None
    """The same for the micro-batches of an update but its last: their gradients are added up, and no weight moves."""


def check_name(execution: str) -> None:
    """Refuse words that mean nothing here."""
    if execution not in EXECUTIONS:
        raise UserError(f"--execution {execution}: torch knows {', '.join(EXECUTIONS)}")


def eager(network: Network, trainer: Trainer | None) -> Execution:
    """The module, called; in training `backward` and an optimiser."""
    loops = _loops(network)
    return _execution("eager", network.module, trainer.documented(network.module) if trainer else None, loops)


def direct(network: Network, trainer: Trainer | None) -> Execution:
    """The module's own code below its calls, and in training gradients and the fused update without an optimiser.

    Of CPU time that saves 3 microseconds in a call of a dense layer, 7 to 10 where there are several operations, and
    90 to 170 in a training step. Hooks are not called. Neither the code of a GraphModule nor `torch._foreach_add_` is
    an interface: where they have changed, `MissingEntry` is raised.
    """
    forward, loops = _direct(network), _loops(network)
    if trainer is not None and not hasattr(torch, "_foreach_add_"):
        raise MissingEntry(f"torch {torch.__version__}: torch._foreach_add_ is not there")
    return _execution(PRIVATE, forward, trainer.eager(forward) if trainer else None, loops)


def recomputing(network: Network, trainer: Trainer | None) -> Execution:
    """The module as it is, but the activations inside its blocks are computed again for the backward pass."""
    if trainer is None:
        reason = "recompute needs a backward pass: use --mode train, or --execution eager"
        raise Unsupported(reason, code="no_backward", instead={"execution": "eager"})
    from layermark.backends.torch.recompute import recomputed

    again = recomputed(network.module, network.graph)
    return _execution("recompute", again, trainer.documented(again), _loops(network))


def compiled(network: Network, trainer: Trainer | None) -> Execution:
    """The network through Inductor, weights folded for inference; of long loops only the cell.

    A small network in training is compiled together with its gradients and its update.
    """
    loops, forward = _loops(network), network.module
    if trainer is not None and _has_onednn_lstm(network):
        reason = "torch.compile cannot train oneDNN's LSTM; use --cell loop, or --execution eager"
        raise Unsupported(reason, instead={"cell": "loop"})
    if any(loop.length > UNROLLED_STEPS for loop in loops):
        steps: dict[Forward, Forward] = {loop.cell: torch.compile(loop.cell, **ALONE) for loop in loops}
        made = _execution("compile", forward, trainer.documented(forward) if trainer else None, loops)
        return replace(made, enter=lambda: _set_steps(loops, steps))
    _configure(network)
    alone = trainer is not None and trainer.sharing is None
    if trainer is not None and alone and is_small(network.graph) and _traces_gradients():
        return _execution("compile", forward, _compiled_whole(network, trainer), loops)
    whole = torch.compile(network.module, fullgraph=True, dynamic=False)
    made = _execution("compile", whole, trainer.documented(whole) if trainer else None, loops)
    return replace(made, folds_weights=trainer is None)


def _execution(name: str, forward: Forward, steps: Steps | None, loops: list[CellPerStep]) -> Execution:
    """Return a forward pass, or the steps of training around it, without cells that are compiled by themselves."""
    enter = functools.partial(_set_steps, loops, {})
    return Execution(name, forward, enter) if steps is None else Execution(name, steps.step, enter, gather=steps.gather)


def _compiled_whole(network: Network, trainer: Trainer) -> Steps:
    """A training step as one compiled graph, in which autograd has no part any more when it runs.

    That is 1.3 to 2.1 times as fast as a compiled forward pass and its compiled gradients for layers of up to some
    milliseconds. `tuned` has the calls of its kernels in C++, which takes a compiler another ten seconds, and does not
    ask in every call whether something has changed since: nothing does, and another 5 % of a small layer are saved.
    """
    whole = functools.partial(torch.compile, options=IN_CPP if network.tuned else None, **ALONE)
    steps = trainer.traceable(network.module)
    return Steps(whole(steps.step), steps.gather and whole(steps.gather))


def _has_onednn_lstm(network: Network) -> bool:
    """Whether torch takes an LSTM to oneDNN, as it does on the CPU unless it is to compute in fp16."""
    found = any(isinstance(part, Fused) and part.kind == "lstm" for part in network.module.modules())
    return found and network.device == "cpu" and network.types.compute != torch.float16


def _direct(network: Network) -> Forward:
    """The module's own code, calling `forward` of its parts: no look-up of parts, no hooks that nobody registered.

    A network of one part needs no code of its own.
    """
    alone = _only_part(network.module)
    if alone is not None:
        forward: Forward = alone.forward
        return forward
    parts = SimpleNamespace(**{name: part.forward for name, part in network.module.named_children()})
    return functools.partial(type(network.module).forward, parts)


def _only_part(module: fx.GraphModule) -> nn.Module | None:
    """The part of a module that does nothing but call it."""
    nodes = list(module.graph.nodes)
    if len(nodes) != 3 or nodes[1].op != "call_module" or nodes[1].args != (nodes[0],):
        return None
    return module.get_submodule(str(nodes[1].target))


def _configure(network: Network) -> None:
    import torch._inductor.config as inductor

    inductor.freezing = not network.training
    if inductor.freezing:
        torch._dynamo.reset()  # weights that were folded into an earlier compilation must not be found again


def _traces_gradients() -> bool:
    """Have the compiler look into `torch.autograd.grad`; return whether this torch can."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        return False
    torch._dynamo.config.trace_autograd_ops = True
    return True


def _loops(network: Network) -> list[CellPerStep]:
    return [part for part in network.module.modules() if isinstance(part, CellPerStep)]


def _set_steps(loops: Sequence[CellPerStep], steps: Mapping[Forward, Forward]) -> None:
    for loop in loops:
        loop.step = steps.get(loop.cell, loop.cell)


def mostly_fused(graph: Graph) -> bool:
    """Whether the work is in fused recurrent kernels, which Inductor calls as they are or decomposes."""
    fused = sum(
        node.op.macs(*graph.input_shapes(node))
        for node in graph
        if isinstance(node.op, ops.Recurrent) and node.op.form == "fused"
    )
    return fused > 0.95 * graph.macs
