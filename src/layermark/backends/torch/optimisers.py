"""The rules of the optimisers in torch, over lists of tensors at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from layermark.backends.torch.place import Place
from layermark.training import names
from layermark.training.update import Update

Tensors = list[Tensor]
Number = float | Tensor


class Site(NamedTuple):
    """What an optimiser reads and writes: lists in the same order."""

    names: list[str]
    places: list[Place]
    weights: Tensors
    state: Mapping[str, Tensors]


def _sgd(update: Update, site: Site, gradients: Tensors, rate: Number) -> None:
    add(site.weights, gradients, -rate)


def _momentum(update: Update, site: Site, gradients: Tensors, rate: Number) -> None:
    velocity = _gathered(update, site, gradients)
    add(site.weights, velocity, -rate)


def _gathered(update: Update, site: Site, gradients: Tensors) -> Tensors:
    velocity = site.state["momentum"]
    torch._foreach_mul_(velocity, update.momentum)
    torch._foreach_add_(velocity, gradients)
    return velocity


def _rmsprop(update: Update, site: Site, gradients: Tensors, rate: Number) -> None:
    mean_square, velocity = site.state["mean_square"], site.state["momentum"]
    torch._foreach_mul_(mean_square, update.rmsprop_decay)
    torch._foreach_addcmul_(mean_square, gradients, gradients, 1 - update.rmsprop_decay)
    root = torch._foreach_sqrt(torch._foreach_add(mean_square, update.rmsprop_epsilon))
    torch._foreach_mul_(velocity, update.momentum)
    add(velocity, listed(torch._foreach_div(gradients, root)), rate)
    torch._foreach_sub_(site.weights, velocity)


def _lars(update: Update, site: Site, gradients: Tensors, rate: Number) -> None:
    """Each weight that is not skipped has a rate of its own, and a decay."""
    own = [index for index, name in enumerate(site.names) if not names.holds(name, update.lars_skip)]
    gradients, factors = list(gradients), {}
    for index in own:
        weight = plain(site.places[index], site.weights[index])
        factors[index] = _trust(update, weight, gradients[index])
        gradients[index] = gradients[index] + update.weight_decay * weight
    velocity = _gathered(update, site, gradients)
    steps = [each * factors[index] if index in factors else each for index, each in enumerate(velocity)]
    add(site.weights, steps, -rate)


def _trust(update: Update, weight: Tensor, gradient: Tensor) -> Tensor:
    own, slope = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(gradient)
    below = slope + update.weight_decay * own + update.lars_epsilon
    usable = (own > 0) & (slope > 0)
    return torch.where(usable, update.lars_eeta * own / torch.where(usable, below, 1.0), 1.0)


RULES: Mapping[str, Callable[[Update, Site, Tensors, Number], None]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "rmsprop": _rmsprop,
    "lars": _lars,
}
"""How each optimiser moves weights along gradients, by its name."""


def add(targets: Tensors, steps: Tensors, by: Number) -> None:
    """Add a multiple of other tensors to some."""
    if isinstance(by, Tensor):
        torch._foreach_add_(targets, torch._foreach_mul(steps, by))
    else:
        torch._foreach_add_(targets, steps, alpha=by)


def plain(place: Place, tensor: Tensor) -> Tensor:
    """The parameter itself, where the module keeps it with something added."""
    return tensor if place.shift is None else tensor - place.shift


def listed(tensors: Sequence[Tensor]) -> Tensors:
    """Return what torch types as a tuple or a list."""
    return list(tensors)
