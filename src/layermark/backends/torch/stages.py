"""One stage of a pipeline as torch's schedules call it: what it receives, what it hands on, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

from layermark.backends.torch.network import Network
from layermark.backends.torch.updating import Trainer
from layermark.devices import cpu
from layermark.errors import Unsupported
from layermark.graph import Graph

Take = Callable[[], Mapping[str, Tensor]]


class Event(NamedTuple):
    """One piece of work: forward (F), backward (B), or of a backward pass that is cut in two the weights' part (W)."""

    kind: str
    stage: int
    micro_batch: int
    start_ns: int
    end_ns: int


class Recorder:
    """The events of the pass through the pipeline that is going on; micro-batches are counted from `offset` on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.offset = 0

    def note(self, kind: str, stage: int, micro_batch: int, began_ns: int) -> None:
        """Write down something that ends now."""
        self.events.append(Event(kind, stage, self.offset + micro_batch, began_ns, time.perf_counter_ns()))


class Wire(NamedTuple):
    """The tensors between two stages: names of the graph, and what they look like on the way."""

    names: tuple[str, ...]
    metas: tuple[Tensor, ...]
    pictures_last: bool
    """Whether channels of pictures come last on the way."""
    copied: bool
    """Whether what is sent is no view: a backward pass in two parts detaches it, which a view cannot be."""

    def packed(self, value: Tensor) -> Tensor:
        """A tensor as it is sent: in one type, and contiguous."""
        value = value.to(self.metas[0].dtype)
        value = (value.permute(0, 2, 3, 1) if self.pictures_last and value.ndim == 4 else value).contiguous()
        return value.clone() if self.copied else value

    def unpacked(self, value: Tensor) -> Tensor:
        """A tensor as the graph knows it."""
        value = _Contiguous.apply(value) if value.requires_grad else value
        return value.permute(0, 3, 1, 2) if self.pictures_last and value.ndim == 4 else value


def wire_into(graph: Graph, kind: torch.dtype, *, pictures_last: bool, recorded: bool, copied: bool = False) -> Wire:
    """Return what a stage receives from the one before it, in the order in which it is sent."""
    names = tuple(name for name, op in graph.inputs.items() if op.role == "live")
    shapes = [_sent_shape(graph.shapes[name], pictures_last) for name in names]
    metas = [torch.empty(shape, dtype=kind, device="meta", requires_grad=recorded) for shape in shapes]
    return Wire(names, tuple(metas), pictures_last, copied)


def _sent_shape(shape: Sequence[int], pictures_last: bool) -> tuple[int, ...]:
    if pictures_last and len(shape) == 4:
        return (shape[0], shape[2], shape[3], shape[1])
    return tuple(shape)


class _Contiguous(torch.autograd.Function):
    """Leaves a tensor as it is. Its gradient is sent to another process, which takes contiguous memory only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class StageModule(nn.Module):
    """The network of one stage between two wires. What the graph itself is fed with, the stage takes from its ring.

    torch's schedules run the forward passes of a stage in the order of the micro-batches, whatever they do between.
    """

    def __init__(
        self, network: Network, received: Wire, sent: Wire | None, take: Take, trainer: Trainer | None, execution: str
    ) -> None:
        super().__init__()
        self.body, self._forward = network.module, _forward(network, execution)
        self.results: dict[str, Tensor] = {}
        """What the graph gave for the last micro-batch, as far as this stage makes it."""
        self._network, self._received, self._sent = network, received, sent
        self._take, self._trainer = take, trainer

    def forward(self, *values: Tensor) -> Any:
        """Run one micro-batch; returns what the next stage receives, or the loss."""
        names = self._received.names
        # The first stage receives no more than a token.
        live = dict(zip(names, map(self._received.unpacked, values), strict=True)) if names else {}
        own = self._take()
        inputs = [live[name] if name in live else own[name] for name in self._network.graph.inputs]
        with self._network.types.autocast(self._network.device):
            result = self._forward(*inputs)
        if self._trainer is not None:
            self._trainer.gather_statistics()
        if self._sent is None and self._trainer is not None:
            return self._lost(result, self._trainer)
        made = dict(zip(self._network.graph.outputs, _listed(result), strict=True))
        sent = () if self._sent is None else self._sent.names
        self.results = {name: value.detach() for name, value in made.items() if name not in sent}
        if self._sent is None:
            return torch.zeros(1)  # nobody reads what the last stage returns
        return tuple(self._sent.packed(made[name]) for name in sent)

    def _lost(self, result: Any, trainer: Trainer) -> Tensor:
        loss, right = result if self._network.graph.classified is not None else (result, None)
        trainer.count(loss.detach(), right)
        self.results = {self._network.graph.outputs[-1]: loss.detach().clone()}
        return trainer.scaled(loss)


def _forward(network: Network, execution: str) -> Callable[..., Any]:
    """Return the forward pass of a stage in an execution: as it is, compiled, or with activations computed again."""
    if execution == "compile":
        whole: Callable[..., Any] = torch.compile(network.module, fullgraph=True, dynamic=False)
        return whole
    if execution == "recompute":
        if not network.training:
            reason = "recompute needs a backward pass: use --mode train, or --execution eager"
            raise Unsupported(reason, code="no_backward", instead={"execution": "eager"})
        from layermark.backends.torch.recompute import stage_recomputed

        return stage_recomputed(network.module, network.graph, cpu.memory_share())
    if execution not in ("auto", "eager"):
        raise Unsupported(f"a pipeline runs eager, compile or recompute on torch, not {execution}")
    return network.module


class TimedStage(PipelineStage):
    """A stage that writes down when its passes began and ended, on the clock that all processes of a host share."""

    def __init__(
        self, module: nn.Module, index: int, count: int, recorder: Recorder, group: ProcessGroup | None, **metas: Any
    ) -> None:
        super().__init__(module, index, count, torch.device("cpu"), group=group, **metas)
        self._recorder = recorder

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **named: Any) -> Any:
        """Run the forward pass of a micro-batch."""
        began = time.perf_counter_ns()
        result = super().forward_one_chunk(fwd_chunk_id, *args, **named)
        self._recorder.note("F", self.stage_index, fwd_chunk_id, began)
        return result

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **named: Any) -> None:
        """Run the backward pass of a micro-batch, or the part of it that the stage before waits for."""
        if self.has_backward:
            began = time.perf_counter_ns()
            super().backward_one_chunk(bwd_chunk_id, *args, **named)
            self._recorder.note("B", self.stage_index, bwd_chunk_id, began)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **named: Any) -> None:
        """Run the rest of a backward pass: the gradients of the weights."""
        began = time.perf_counter_ns()
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **named)
        self._recorder.note("W", self.stage_index, bwd_chunk_id, began)


def _listed(result: Any) -> Sequence[Tensor]:
    return (result,) if isinstance(result, Tensor) else result
