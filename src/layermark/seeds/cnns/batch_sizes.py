"""`--batch-size 1,4,16`: the same command once for each size, and a table of all of them at the end."""

from __future__ import annotations

import dataclasses

from layermark.options import integer
from layermark.seeds.options import SeedOption
from layermark.seeds.parsing import Typed


def batch_sizes(text: str) -> int | tuple[int, ...]:
    """A number, or several of them.

    >>> batch_sizes("4"), batch_sizes("1,4,16")
    (4, (1, 4, 16))
    """
    found = tuple(integer(1)(each) for each in text.split(","))
    return found[0] if len(found) == 1 else found


def as_ladder(option: SeedOption) -> SeedOption:
    """The option for the batch size as one that takes several."""
    if option.name != "batch-size":
        return option
    return dataclasses.replace(option, parse=batch_sizes, metavar="N[,N...]", help=f"{option.help}, or several sizes")


def rungs(typed: Typed) -> list[Typed]:
    """What is to be done, once for each batch size; they share the budget equally."""
    sizes, budget_s = typed.values["batch_size"], typed.values["budget"]
    if not isinstance(sizes, tuple):
        return [typed]
    shared = {"budget": budget_s and budget_s / len(sizes)}
    return [dataclasses.replace(typed, values={**typed.values, **shared, "batch_size": each}) for each in sizes]
