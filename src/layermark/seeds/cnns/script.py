"""What a program around CNN models is, and the options that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layermark.options import choice
from layermark.seeds.options import SeedOption
from layermark.seeds.parsing import Typed
from layermark.seeds.precision import slow_half as slow_half
from layermark.seeds.tables import EMULATE_HALF, EXTRA
from layermark.spec import PRECISIONS

CONFIGS = "configs.yml"
"""Where a program's named sets are: beside its file."""

RING = 2
"""Different batches that a program walks through: caches forget the one while the other is read."""

SHORT_BUDGET_S = 180.0
"""Compiling a whole network can take a minute, so budgets up to this leave no time to try it."""

EXTRAS = tuple(each for each in EXTRA if each.name not in ("precision", "emulate-half"))

_OLD_PRECISIONS = {"half": "16.16", "full": "32.32"}


@dataclass(frozen=True, kw_only=True)
class CnnScript:
    """A program of the seeds, as its command line is read."""

    name: str
    about: str
    runtime: str
    """The backend that stands for the seeds' framework."""
    options: tuple[SeedOption, ...]
    extras: tuple[SeedOption, ...] = (*EXTRAS, EMULATE_HALF)
    short_help: bool = True


def precision(text: str) -> str:
    """Compute type . stored-weight type, or a word that the oldest release used.

    >>> precision("half"), precision("16.32")
    ('16.16', '16.32')
    """
    return choice(*PRECISIONS, *_OLD_PRECISIONS)(_OLD_PRECISIONS.get(text, text))


def idle(script: CnnScript, typed: Typed, unmet: dict[str, bool]) -> Iterator[str]:
    """Typed options without an effect here: those marked so, and others whose condition is not met."""
    yield from (each.flag for each in _without_effect(script, unmet) if each.dest in typed.typed)


def acting(script: CnnScript, values: Mapping[str, Any], unmet: Mapping[str, bool]) -> dict[str, Any]:
    """Return the values with those that have no effect at their defaults, so that equal work has equal specs."""
    return {**values, **{each.dest: each.default for each in _without_effect(script, unmet)}}


def _without_effect(script: CnnScript, unmet: Mapping[str, bool]) -> Iterator[SeedOption]:
    return (each for each in script.options if each.mark in ("sim", "training") or unmet.get(each.dest, False))
