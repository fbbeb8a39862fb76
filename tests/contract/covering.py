"""Which cases of a large matrix the gate runs: every pair of values at least once. `make test-full` runs them all."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
FULL = os.environ.get("LAYERMARK_TEST_FULL") == "1"


def pairs_of(values: Iterable[Hashable]) -> set[Hashable]:
    """Every two of some values, each with its place."""
    return set(itertools.combinations(enumerate(values), 2))


def covering(cases: Iterable[T], shown: Callable[[T], set[Hashable]] = pairs_of, *, full: bool = FULL) -> list[T]:
    """Return the cases, in their order, without those that show nothing that others do not show.

    They are looked at in a shuffled order that is always the same: in their own, a value would always be seen beside
    the first of the others.
    """
    found = list(cases)
    if full:
        return found
    order = list(range(len(found)))
    random.Random(0).shuffle(order)
    seen: set[Hashable] = set()
    kept = []
    for index in order:
        if not shown(found[index]) <= seen:
            kept.append(index)
            seen |= shown(found[index])
    return [found[index] for index in sorted(kept)]


def product(*axes: Iterable[T]) -> list[tuple[T, ...]]:
    """The values of several axes: all of their combinations, or as many as hold every pair."""
    return covering(itertools.product(*axes), pairs_of)
