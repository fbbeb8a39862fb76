"""What a program around CNN models is, and the options that all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layermark.devices import cpu
from layermark.options import choice
from layermark.seeds.options import SeedOption
from layermark.seeds.parsing import Typed
from layermark.seeds.tables import EXTRA
from layermark.spec import PRECISIONS, Spec

CONFIGS = "configs.yml"
"""Where a program's named sets are: beside its file."""

RING = 2
"""Different batches that a program walks through: caches forget the one while the other is read."""

SHORT_BUDGET_S = 180.0
"""Compiling a whole network can take a minute, so budgets up to this leave no time to try it."""

EXTRAS = tuple(each for each in EXTRA if each.name != "precision")

_OLD_PRECISIONS = {"half": "16.16", "full": "32.32"}


@dataclass(frozen=True, kw_only=True)
class CnnScript:
    """A program of the seeds, as its command line is read."""

    name: str
    about: str
    runtime: str
    """The backend that stands for the seeds' framework."""
    options: tuple[SeedOption, ...]
    extras: tuple[SeedOption, ...] = EXTRAS
    short_help: bool = True


def precision(text: str) -> str:
    """Compute type . stored-weight type, or a word that the oldest release used.

    >>> precision("half"), precision("16.32")
    ('16.16', '16.32')
    """
    return choice(*PRECISIONS, *_OLD_PRECISIONS)(_OLD_PRECISIONS.get(text, text))


def used_precision(typed: Typed) -> str:
    """What is typed is honoured; a default, also that of a named set, is fp32 on a device without native half."""
    return str(typed.values["precision"]) if "precision" in typed.typed else Spec.precision


def slow_half(spec: Spec) -> Iterator[str]:
    """A word of warning where 16-bit floats are emulated: a picture can then take seconds."""
    if spec.precision.startswith("16") and spec.device == "cpu" and not cpu.native_half():
        yield "this CPU has no 16-bit floats: they are emulated, and a batch can take many seconds"


def idle(script: CnnScript, typed: Typed, unmet: dict[str, bool]) -> Iterator[str]:
    """Typed options without an effect here: those marked so, and others whose condition is not met."""
    every = {each.dest: each for each in script.options}
    for name in typed.typed:
        if name in every and (every[name].mark in ("sim", "training") or unmet.get(name, False)):
            yield every[name].flag
