"""Averages of checkpoints: which take part, and what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layermark.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

MEAN_DISCARDS = 1
"""The mean leaves out the last checkpoint; the exponential average takes all."""


@dataclass(frozen=True, order=True)
class Point:
    """When a checkpoint was taken."""

    update: int
    epoch: float


def mean_points(points: Iterable[Point], epochs: float, *, discard_last: int = MEAN_DISCARDS) -> list[Point]:
    """Return the checkpoints of the last `epochs` epochs, without number 0 and the last; epochs to one decimal."""
    kept = _without_ends(points, discard_last)
    oldest = round(kept[-1].epoch, 1) - epochs
    # Tenths are compared as whole numbers: 3.0 - 2.9 in binary is not the 0.1 that was meant.
    return [each for each in kept if round(each.epoch * 10) >= round(oldest * 10)]


def exponential_points(points: Iterable[Point], *, discard_last: int = 0) -> list[Point]:
    """Return every checkpoint but number 0, the last included."""
    return _without_ends(points, discard_last)


def _without_ends(points: Iterable[Point], discard_last: int) -> list[Point]:
    taken = sorted(each for each in points if each.update > 0)
    kept = taken[: len(taken) - discard_last]
    if not kept:
        raise UserError(
            f"no checkpoints to average: {len(taken)} after the start, of which the last {discard_last} are left out; "
            "train for longer, or save more with --ckpts-per-epoch"
        )
    return kept


def mean(checkpoints: Iterable[Arrays]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the mean of some sets of weights, one of which is in memory at a time."""
    total: dict[str, Any] = {}
    types: dict[str, Any] = {}
    count = 0
    for each in checkpoints:
        count += 1
        total = {name: _double(values) + total.get(name, 0.0) for name, values in _same(total, each).items()}
        types = types or {name: values.dtype for name, values in each.items()}
    return {name: (values / count).astype(types[name]) for name, values in total.items()}


def exponential(checkpoints: Iterable[Arrays], decay: float) -> dict[str, np.ndarray[Any, Any]]:
    """Return V after V = decay V + (1 - decay) checkpoint, from the second on, starting at the first."""
    check_decay(decay)
    held: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for each in checkpoints:
        if held:
            held = {name: decay * held[name] + (1 - decay) * _double(v) for name, v in _same(held, each).items()}
        else:
            held = {name: _double(values) for name, values in each.items()}
            types = {name: values.dtype for name, values in each.items()}
    return {name: values.astype(types[name]) for name, values in held.items()}


def check_decay(decay: float) -> None:
    """Raise UserError unless the decay is a share below one."""
    if not 0 <= decay < 1:
        raise UserError(f"average decay {decay:g}: expected from 0 to below 1, such as 0.97")


def mean_name(epochs: float) -> str:
    """Return the name of the file of a mean.

    >>> mean_name(5), exponential_name(0.97)
    ('weight_avg_N_5', 'weight_avg_exp_0.97')
    """
    return f"weight_avg_N_{epochs:g}"


def exponential_name(decay: float) -> str:
    """Return the name of the file of an exponential average."""
    return f"weight_avg_exp_{decay:g}"


def _double(values: np.ndarray[Any, Any]) -> Any:
    return values.astype("float64")


def _same(held: Mapping[str, Any], each: Arrays) -> Arrays:
    if held and held.keys() != each.keys():
        odd = sorted(held.keys() ^ each.keys())
        raise UserError(f"checkpoints of different models cannot be averaged: {odd[0]} is not in all of them")
    return each
