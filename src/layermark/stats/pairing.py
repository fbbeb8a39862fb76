"""Which results of two sides measure the same thing, and which have no partner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layermark.spec import Spec

Document = Mapping[str, Any]
Identity = Callable[[Document], str]

UNPAIRED = "unpaired"
"""The code of a result that the other side has not measured."""
AMBIGUOUS = "ambiguous"
"""The code of results of one spec of which a side has several: nobody knows which belong together."""


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A spec that cannot be compared, a code for programs, and words that say why."""

    spec: Spec
    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matching:
    """The results of two sides, side by side: nothing of either is left out without a word."""

    pairs: Sequence[tuple[Document, Document]] = ()
    alone: Sequence[Alone] = ()
    """Of the first side, what has no partner."""
    new: Sequence[Spec] = field(default=())
    """What the second side alone has measured."""


def match(a: Sequence[Document], b: Sequence[Document], sides: tuple[str, str] = ("A", "B")) -> Matching:
    """Return the results that measure the same thing: of equal specs, else of specs that only differ in threads.

    A machine's CPUs are the default number of threads, so another machine has other specs.
    """
    found: list[tuple[Document, Document]] = []
    rest_a, rest_b = ([each for each in side if each["rank"] == 0] for side in (a, b))
    for identity in (_key, _key_without_threads):
        first, second = _single(rest_a, identity), _single(rest_b, identity)
        found += [(first[key], second[key]) for key in first if key in second]
        rest_a = [each for each in rest_a if all(each is not pair[0] for pair in found)]
        rest_b = [each for each in rest_b if all(each is not pair[1] for pair in found)]
    alone = _alone(rest_a, rest_b, sides)
    known = {_key(each) for each in rest_a}
    new = {_key(each): Spec.from_json(each["spec"]) for each in rest_b if _key(each) not in known}
    return Matching(pairs=found, alone=alone, new=tuple(new.values()))


def _alone(rest_a: Sequence[Document], rest_b: Sequence[Document], sides: tuple[str, str]) -> list[Alone]:
    """What is left of the first side, a spec at a time."""
    return [
        Alone(spec=Spec.from_json(members[0]["spec"]), **_why((len(members), _count(rest_b, key)), sides))
        for key, members in _by(rest_a, _key).items()
    ]


def _why(counts: tuple[int, int], sides: tuple[str, str]) -> dict[str, str]:
    if max(counts) > 1:
        found = " and ".join(f"{count} in {side}" for count, side in zip(counts, sides, strict=True))
        reason = f"results of one spec, {found}: which belong together cannot be told; give one of each"
        return {"code": AMBIGUOUS, "reason": reason}
    return {"code": UNPAIRED, "reason": f"{sides[1]} has no such result; measure it there, too"}


def _count(documents: Iterable[Document], key: str) -> int:
    return sum(_key(each) == key for each in documents)


def _single(documents: Sequence[Document], identity: Identity) -> dict[str, Document]:
    """Documents by identity, without those that share one and could be mistaken for each other."""
    return {key: members[0] for key, members in _by(documents, identity).items() if len(members) == 1}


def _by(documents: Iterable[Document], identity: Identity) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(identity(document), []).append(document)
    return found


def _key(document: Document) -> str:
    return Spec.from_json(document["spec"]).key


def _key_without_threads(document: Document) -> str:
    return Spec.from_json({**document["spec"], "threads": 0}).key
