"""The module of a task in its types and layout, and the way in and out for its parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from layermark import ops
from layermark.backends.base import Arrays
from layermark.backends.torch import process
from layermark.backends.torch.lowering import can_tune, lower
from layermark.backends.torch.modules import BatchNorm, GroupNorm, Prepacked, ProxyNorm, WideNorm
from layermark.backends.torch.recurrent import UNROLLED_STEPS, CompiledGru, Fused, PackedLstm, PackedRnn, RecurrentLayer
from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.spec import Spec

_COMPUTE = {"64": torch.float64, "32": torch.float32, "16": torch.float16, "bf16": torch.bfloat16}
_SMALL_NODES = 32
"""Training steps of networks up to this large are compiled whole; larger ones compile 1.4 times as long for 3 %."""
PACKED = (PackedLstm, PackedRnn, CompiledGru, Prepacked, ProxyNorm)
"""Modules that keep something made from their weights."""


@dataclass(frozen=True)
class Types:
    """What is computed in, and what weights are stored in; where they differ, autocast stands between."""

    compute: torch.dtype
    weight: torch.dtype

    @classmethod
    def of(cls, precision: str) -> Types:
        """The types behind a precision such as 16.32."""
        compute, weight = precision.split(".")
        return cls(_COMPUTE[compute], _COMPUTE[weight])

    @property
    def mixed(self) -> bool:
        """Whether weights are cast on use."""
        return self.compute != self.weight

    @property
    def low(self) -> bool:
        """Whether losses need a wider type than the rest."""
        return self.compute.itemsize < 4

    @property
    def loss(self) -> torch.dtype:
        """What losses are computed in."""
        return torch.float32 if self.low else self.compute

    def autocast(self, device: str) -> contextlib.AbstractContextManager[Any]:
        """The context that casts on use, or nothing."""
        return torch.autocast(device, self.compute) if self.mixed else contextlib.nullcontext()


class Network:
    """A lowered graph, ready to run: `module` takes the graph's inputs in order."""

    def __init__(self, spec: Spec, graph: Graph) -> None:
        self.graph, self.types, self.device = graph, Types.of(spec.precision), spec.device
        self.training, self.tuned = spec.mode == "train", spec.formulation == "tuned"
        if self.tuned:
            refuse_untunable(spec, graph)
        with self.recording():
            lowered = lower(
                graph, training=self.training, tuned=self.tuned, wide_loss=self.types.low, scored=self.training
            )
            self.module: fx.GraphModule = lowered.module
            self.places = lowered.places
            self.channels_last = any(isinstance(node.op, ops.Conv2d) for node in graph)
            self._loaded: Arrays = {}
            self._settle()
            if spec.norms == "full" and self.types.low:
                self._widen_norms()

    def _widen_norms(self) -> None:
        for name, part in list(self.module.named_children()):
            if isinstance(part, (BatchNorm, GroupNorm, ProxyNorm)):
                setattr(self.module, name, WideNorm(part))

    def recording(self) -> contextlib.AbstractContextManager[Any]:
        """Where tensors are made: those of inference mode record nothing for autograd, and are quicker to call with."""
        return torch.inference_mode(not self.training)

    def _settle(self) -> None:
        """Bring the module into its types and layout; inference needs no gradients and casts its weights once."""
        self.module.to(self.device, self.types.weight)
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module.requires_grad_(self.training)
        for part in self.module.modules():
            if self.types.mixed and isinstance(part, RecurrentLayer):
                part.state = part.state.to(self.types.compute)
            if self.casts_once and isinstance(part, (nn.Linear, nn.Conv2d, RecurrentLayer)):
                part.to(self.types.compute)
            if isinstance(part, Fused):
                part.casts = self.types.mixed
                part.bind()  # its state may be another tensor now

    @property
    def casts_once(self) -> bool:
        """Whether the low-precision copies of the weights are made on loading, as autocast would on every call."""
        return self.types.mixed and not self.training

    def load(self, weights: Arrays) -> None:
        """Set every parameter from its canonical layout."""
        with self.recording():
            for name, place in self.places.items():
                place.write(torch.as_tensor(weights[name]))
            for part in self.module.modules():
                if isinstance(part, PACKED) and not self.training:
                    part.pack()
        if self.casts_once:
            self._loaded = dict(weights)

    def weights(self) -> Arrays:
        """Every parameter in its canonical layout."""
        if self.casts_once:
            return dict(self._loaded)
        return {name: place.read().cpu().contiguous().numpy() for name, place in self.places.items()}

    def feed(self, batch: Arrays) -> tuple[Tensor, ...]:
        """One batch of inputs in the order, types and layout that the module takes, on the host."""
        with self.recording():
            return tuple(self._input(op, torch.as_tensor(batch[name])) for name, op in self.graph.inputs.items())

    def feed_own(self, batch: Arrays) -> dict[str, Tensor]:
        """The same for a stage: inputs of the whole graph under their names, without what other stages send."""
        with self.recording():
            return {
                name: self._input(op, torch.as_tensor(batch[name]))
                for name, op in self.graph.inputs.items()
                if op.role != "live"
            }

    def _input(self, op: ops.Input, values: Tensor) -> Tensor:
        values = values.to(self._input_type(op, values))
        if self.channels_last and values.ndim == 4:
            return values.contiguous(memory_format=torch.channels_last)
        return values.contiguous()

    def _input_type(self, op: ops.Input, values: Tensor) -> torch.dtype:
        if op.item_bytes == 1:
            return torch.uint8
        if not values.is_floating_point():
            return torch.int64
        return self.types.loss if op.role == "target" else self.types.compute

    def results(self, result: Tensor | Sequence[Tensor]) -> Arrays:
        """What a call of the module gave, under the graph's names, as NumPy arrays."""
        values = (result,) if isinstance(result, Tensor) else result
        return self.named(dict(zip(self.graph.outputs, values, strict=True)))

    def named(self, values: Mapping[str, Tensor]) -> Arrays:
        """Tensors under their names, as NumPy arrays."""
        return {
            name: (value if value.dtype == torch.float64 else value.float()).detach().cpu().contiguous().numpy()
            for name, value in values.items()
        }


def refuse_untunable(spec: Spec, graph: Graph) -> None:
    """Raise unless packed weights, or in training a step that is compiled whole, have something to offer."""
    if spec.mode == "train":
        lengths = [graph.input_shapes(node)[0][0] for node in graph if isinstance(node.op, ops.Recurrent)]
        if not is_small(graph) or max(lengths, default=0) > UNROLLED_STEPS:
            raise Unsupported(f"no tuned formulation of training {spec.workload} on torch: too large for one step")
        return
    if not any(can_tune(node.op, *graph.input_shapes(node)) for node in graph):
        raise Unsupported(f"no tuned formulation of {spec.workload} on torch")
    types = Types.of(spec.precision)
    if types.mixed or types.compute == torch.float64 or spec.device != "cpu" or not process.prepacks():
        raise Unsupported("prepacked weights (formulation tuned) need oneDNN, one type and the CPU; use library")


def is_small(graph: Graph) -> bool:
    """Whether training steps are compiled whole."""
    return len(graph.nodes) <= _SMALL_NODES
