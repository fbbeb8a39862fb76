"""Activations that are computed again in the backward pass, block by block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import fx, nn
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint

from layermark.backends.torch.lowering import NODE
from layermark.backends.torch.modules import BatchNorm
from layermark.graph import Graph
from layermark.pipelines import STAGE_SHARE
from layermark.workloads.base import kept_bytes


def recomputed(module: fx.GraphModule, graph: Graph) -> Callable[..., Any]:
    """Return a call of the same modules that keeps only what blocks hand on to each other; the last is as it was.

    A network of one block is computed again as a whole.
    """
    blocks = graph.blocks()
    if len(blocks) == 1:
        return _Again(module)
    numbers = {node.name: number for number, block in enumerate(blocks) for node in block}
    parts = split_module(module, module, partial(_number, numbers, [0]))
    for number in range(len(blocks) - 1):
        name = f"submod_{number}"
        setattr(parts, name, _Again(parts.get_submodule(name)))
    return parts


def stage_recomputed(module: fx.GraphModule, graph: Graph, free_bytes: int) -> Callable[..., Any]:
    """Return a call of a pipeline's stage that keeps only its input: there are many micro-batches on their way.

    Where even one micro-batch would take much of the memory that is meant for this process, what blocks inside hand on
    is all that is kept of it as well, at the price of another forward pass.
    """
    return _Again(recomputed(module, graph) if kept_bytes(graph) > free_bytes // STAGE_SHARE else module)


def _number(numbers: dict[str, int], last: list[int], node: fx.Node) -> int:
    """The block of a call; what belongs to no node of the graph is in that of the call before."""
    last[0] = max(last[0], numbers.get(node.meta.get(NODE, ""), 0))
    return last[0]


class _Again(nn.Module):
    """A block whose inside is forgotten after the forward pass."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self._block = block
        self._norms = [each for each in block.modules() if isinstance(each, BatchNorm)]

    def forward(self, *inputs: Any) -> Any:
        """Run the block."""
        return checkpoint(self._block, *inputs, use_reentrant=False, context_fn=self._contexts)

    def _contexts(self) -> tuple[Any, Any]:
        return contextlib.nullcontext(), self._standing()

    @contextlib.contextmanager
    def _standing(self) -> Iterator[None]:
        """The second time running statistics stand still: they have seen this batch."""
        kept = [each.momentum for each in self._norms]
        try:
            for each in self._norms:
                each.momentum = 0.0
            yield
        finally:
            for each, momentum in zip(self._norms, kept, strict=True):
                each.momentum = momentum
