"""Whole updates in torch: gradients that are gathered, and the optimisers that move weights along them.

An update is made by the lists of tensors at once (`torch._foreach_...`). Eager steps have rates as numbers; compiled
ones have them as tensors, since a number would be compiled in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from layermark.backends.base import Arrays, Totals
from layermark.backends.torch.loss_scale import MovingScale
from layermark.backends.torch.network import Network
from layermark.backends.torch.optimisers import RULES, Number, Site, Tensors, add, listed, plain
from layermark.backends.torch.place import Place
from layermark.backends.torch.running_statistics import GatheredStatistics
from layermark.errors import Unsupported
from layermark.training import names
from layermark.training.update import Update

if TYPE_CHECKING:
    from layermark.backends.torch.replicas import Sharing

Forward = Callable[..., Any]


class Knob:
    """A number of the steps to come, and the same as a tensor for compiled ones."""

    def __init__(self, value: float, device: str, kind: torch.dtype) -> None:
        self.value, self.tensor = value, torch.full((), value, device=device, dtype=kind)

    def set(self, value: float) -> None:
        """Turn it."""
        if value != self.value:
            self.value = value
            self.tensor.fill_(value)


class Steps(NamedTuple):
    """What is called per micro-batch: `step` ends an update, `gather` is for those before; none if there are none."""

    step: Forward
    gather: Forward | None


class Trainer:
    """The optimiser's state and the sums of a network in training, and the steps that move them."""

    def __init__(
        self, update: Update, network: Network, sharing: Sharing | None = None, *, gathers: bool = True
    ) -> None:
        self.sharing = sharing
        if update.dynamic_scaling and (sharing is not None or not gathers):
            raise Unsupported("a dynamic loss scale needs a single rank; use --loss-scaling", code="dynamic_scaling")
        self._update, self._network, self._factors = update, network, update.factors(update.loss_scaling)
        self._names = update.trained(network.graph.parameters)
        self._places = [network.places[name] for name in self._names]
        self._leaves = [place.leaf for place in self._places]
        self._parts = [(index, place.rows) for index, place in enumerate(self._places) if place.rows is not None]
        self._decayed = [
            index for index, name in enumerate(self._names) if self._factors.decay and names.is_decayed(name)
        ]
        held, kind = [place.tensor for place in self._places], network.types.loss
        self._state = {slot: [torch.empty_like(each) for each in held] for slot in update.rule.slots}
        # What is shared, or goes through a pipeline (`gathers` says no), is gathered where backward leaves it.
        gathers = gathers and update.micro_batches > 1 and sharing is None
        self._total = [torch.zeros_like(each) for each in held] if gathers else []
        waiting = update.gathered_statistics(network.graph.parameters)
        self.statistics = GatheredStatistics([network.places[name].tensor for name in waiting])
        # One element each, not none: Inductor takes a float64 tensor without axes for a number, and never writes to it.
        self._loss, self._right = (torch.zeros(1, device=network.device, dtype=kind) for _ in range(2))
        scale = torch.full((), update.loss_scaling, device=network.device, dtype=kind)
        self._moving = MovingScale(update.dynamic, scale) if update.dynamic else None
        self._seed = None if update.loss_scaling == 1 and self._moving is None else [scale]
        self._scored = network.graph.classified is not None
        self.rate = Knob(0.0, network.device, kind)
        self.share = Knob(1.0 / update.micro_batches, network.device, kind)
        self.load(None)

    def load(self, state: Arrays | None) -> None:
        """Set the optimiser's state, or bring it back to the beginning, and forget sums and gathered gradients."""
        for slot, fill in self._update.rule.slots.items():
            for name, tensor in zip(self._names, self._state[slot], strict=True):
                tensor.fill_(fill) if state is None else tensor.copy_(torch.as_tensor(state[f"{name}/{slot}"]))
        for tensor in (*self._total, self._loss, self._right):
            tensor.zero_()
        self.statistics.remember()
        if self._moving is not None:
            self._moving.load(state)
            self._factors = self._update.factors(self._moving.value)
        if self.sharing is not None:
            self._network.module.zero_grad(set_to_none=True)

    def state(self) -> Arrays:
        """The optimiser's state."""
        own = {
            f"{name}/{slot}": _read(self._state[slot][index])
            for index, name in enumerate(self._names)
            for slot in self._update.rule.slots
        }
        return own | dict(self._moving.state()) if self._moving is not None else own

    def totals(self, batches: int) -> Totals:
        """What the sums have come to; they begin again."""
        found = Totals(batches, float(self._loss), round(float(self._right)) if self._scored else None)
        self._loss.zero_()
        self._right.zero_()
        return found

    def eager(self, forward: Forward) -> Steps:
        """Steps around a forward pass, which may be compiled by itself."""
        if self.sharing is not None:
            return self._shared(forward, self.sharing)
        loss_of = _casting(self._network, forward)
        targets = [place.tensor for place in self._places]

        def step(*inputs: Tensor) -> Tensor:
            loss, right, gradients = self._gradients(loss_of, inputs)
            self.count(loss.detach(), right)
            self._step(targets, gradients, self.rate.value, self.share.value)
            return loss

        def gather(*inputs: Tensor) -> Tensor:
            loss, right, gradients = self._gradients(loss_of, inputs)
            self.count(loss.detach(), right)
            self._gather(targets, gradients, self.share.value)
            return loss

        return Steps(step, gather if self._total else None)

    def documented(self, forward: Forward) -> Steps:
        """Steps as PyTorch's guide has them: `backward`, and `torch.optim` where it knows the whole rule by itself.

        That is plain gradient descent; for any other update these are the steps of `eager`.
        """
        if self._update.key != Update().key or self._total or self.sharing is not None:
            return self.eager(forward)
        loss_of, whole = _casting(self._network, forward), self._network.module
        optimiser = torch.optim.SGD(list({id(each): each for each in self._leaves}.values()), lr=0.0, foreach=True)
        (options,), frozen = optimiser.param_groups, [part for place in self._places for part in _frozen_rows(place)]

        def step(*inputs: Tensor) -> Tensor:
            options["lr"] = self.rate.value
            whole.zero_grad()
            loss, right = self._answers(loss_of, inputs)
            loss.backward()
            for leaf, rows in frozen:
                if leaf.grad is not None:
                    leaf.grad[rows] = 0
            optimiser.step()
            self.count(loss.detach(), right)
            return loss

        return Steps(step, None)

    def _shared(self, forward: Forward, sharing: Sharing) -> Steps:
        """Steps of one of several replicas, whose mean gradients make the update."""
        model = sharing.model(_casting(self._network, forward))

        def passed(inputs: Sequence[Tensor], *, last: bool) -> Tensor:
            with sharing.quiet(model, last=last):
                loss, right = self._answers(model, inputs)
                self.scaled(loss).backward()
            self.count(loss.detach(), right)
            self.gather_statistics()
            return loss.detach()

        def step(*inputs: Tensor) -> Tensor:
            loss = passed(inputs, last=True)
            self.statistics.settle()
            sharing.average_statistics()
            self.statistics.remember()
            sums = self.left_by_backward()
            self.update_with(sums, length(sums) if self._update.clip_norm else None)
            model.zero_grad(set_to_none=True)
            return loss

        return Steps(step, lambda *inputs: passed(inputs, last=False))

    def traceable(self, forward: Forward) -> Steps:
        """Steps that can be compiled as a whole."""
        if self._moving is not None:
            reason = "a dynamic loss scale decides between gradients and update, which no compiled step does"
            raise Unsupported(reason, code="dynamic_scaling", instead={"execution": "eager"})
        loss_of, rate, share = _casting(self._network, forward), self.rate.tensor, self.share.tensor
        places = [(leaf, place.rows or slice(None)) for leaf, place in zip(self._leaves, self._places, strict=True)]

        def step(*inputs: Tensor) -> Tensor:
            loss, right, gradients = self._gradients(loss_of, inputs)
            with torch.no_grad():
                self.count(loss.detach(), right)
                self._step([leaf[rows] for leaf, rows in places], gradients, rate, share)
            return loss.detach()

        def gather(*inputs: Tensor) -> Tensor:
            loss, right, gradients = self._gradients(loss_of, inputs)
            with torch.no_grad():
                self.count(loss.detach(), right)
                self._gather([leaf[rows] for leaf, rows in places], gradients, share)
            return loss.detach()

        return Steps(step, gather if self._total else None)

    def _gradients(self, loss_of: Forward, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensors]:
        """The loss of one micro-batch, its right answers, and the gradients of a multiple of the loss."""
        loss, right = self._answers(loss_of, inputs)
        gradients = list(torch.autograd.grad(loss, self._leaves, self._seed))
        for index, rows in self._parts:
            gradients[index] = gradients[index][rows]
        return loss, right, gradients

    def _answers(self, loss_of: Forward, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The loss, and how many answers are right where there are class labels."""
        result = loss_of(*inputs)
        return result if self._scored else (result, None)

    def count(self, loss: Tensor, right: Tensor | None) -> None:
        """Add the loss of a micro-batch and its right answers to the sums."""
        self._loss.add_(loss)
        if right is not None:
            self._right.add_(right)

    @torch.no_grad()
    def gather_statistics(self) -> None:
        """Take what the forward pass of a micro-batch has made of the running statistics."""
        self.statistics.gather(self.share.value, backward_follows=True)

    def _gather(self, weights: Tensors, gradients: Tensors, share: Number) -> None:
        """Add up what one micro-batch has to say."""
        if self._update.decay_per == "micro-batch":
            gradients = self._pulled(weights, gradients, self._factors.decay / self._factors.gradient)
        add(self._total, gradients, share * self._factors.gradient)
        self.statistics.gather(share)

    def _step(self, weights: Tensors, gradients: Tensors, rate: Number, share: Number) -> None:
        """The last micro-batch, and the update."""
        if self._total:
            self._gather(weights, gradients, share)
            gradients = self._total
        elif self._factors.gradient != 1:
            gradients = listed(torch._foreach_mul(gradients, self._factors.gradient))
        if self._moving is None or self._accepted(self._moving, gradients):
            if self._update.clip_norm:
                gradients = _clipped(gradients, self._update.clip_norm / self._factors.rate)
            if not self._total or self._update.decay_per == "update":
                gradients = self._pulled(weights, gradients, self._factors.decay)
            self._move(weights, gradients, rate)
        if self._total:
            torch._foreach_zero_(self._total)
            self.statistics.settle()
            self.statistics.remember()

    def _accepted(self, scale: MovingScale, gradients: Tensors) -> bool:
        """Whether an update may be made; only the division of the next gradients depends on the scale that follows."""
        finite = scale.accepts(gradients)
        self._factors = self._update.factors(scale.value)
        return finite

    def _move(self, weights: Tensors, gradients: Tensors, rate: Number) -> None:
        RULES[self._update.optimiser](self._update, self._site(weights), gradients, rate * self._factors.rate)

    def scaled(self, loss: Tensor) -> Tensor:
        """What gradients are taken of."""
        return loss if self._seed is None else loss * self._seed[0]

    def left_by_backward(self) -> Tensors:
        """The gradients that backward passes have added up in the leaves, of what is trained."""
        found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self._leaves]
        for index, rows in self._parts:
            found[index] = found[index][rows]
        return found

    @torch.no_grad()
    def update_with(self, sums: Tensors, norm: Tensor | None = None) -> None:
        """Make one update with the sums of the gradients of its micro-batches, which together have this norm.

        The decay is added once: to add a share of it with each micro-batch would come to the same. The sums are used
        up: of large networks on several ranks a copy more is too many.
        """
        weights, share = [place.tensor for place in self._places], self.share.value * self._factors.gradient
        torch._foreach_mul_(sums, share)
        if norm is not None:
            longest = self._update.clip_norm / self._factors.rate
            torch._foreach_mul_(sums, longest / (norm * share).clamp(min=longest))
        for index in self._decayed:
            sums[index].add_(plain(self._places[index], weights[index]), alpha=self._factors.decay)
        self._move(weights, sums, self.rate.value)

    def _pulled(self, weights: Tensors, gradients: Tensors, decay: float) -> Tensors:
        """The gradients with the weight decay, all in new tensors where it has a part."""
        if not self._decayed:
            return gradients
        held = [plain(self._places[index], weights[index]) for index in self._decayed]
        pulled = torch._foreach_add([gradients[index] for index in self._decayed], held, alpha=decay)
        found = list(gradients)
        for index, each in zip(self._decayed, pulled, strict=True):
            found[index] = each
        return found

    def _site(self, weights: Tensors) -> Site:
        return Site(self._names, self._places, weights, self._state)


def _frozen_rows(place: Place) -> list[tuple[Tensor, slice]]:
    """The rows of a tensor that are no parameter of the graph, and must not move."""
    if place.rows is None:
        return []
    return [(place.leaf, slice(None, place.rows.start)), (place.leaf, slice(place.rows.stop, None))]


def _clipped(gradients: Tensors, longest: float) -> Tensors:
    """All gradients, shortened by one factor if together they are too long."""
    return shortened(gradients, length(gradients), longest)


def length(gradients: Tensors) -> Tensor:
    """The L2 norm of all gradients together."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))


def shortened(gradients: Tensors, norm: Tensor, longest: float) -> Tensors:
    """Gradients, shortened by one factor if their norm is too long."""
    return listed(torch._foreach_mul(gradients, longest / norm.clamp(min=longest)))


def _read(tensor: Tensor) -> Any:
    values = tensor if tensor.dtype == torch.float64 else tensor.float()
    return values.detach().cpu().contiguous().clone().numpy()


def _casting(network: Network, forward: Forward) -> Forward:
    """In training autocast must be left after every forward pass: it would keep the casts of old weights."""
    if not network.types.mixed:
        return forward

    def cast_forward(*inputs: Tensor) -> Any:
        with network.types.autocast(network.device):
            return forward(*inputs)

    return cast_forward
