"""Ranks that worked together, as text: lanes of a pipeline, its bubble, and what averaging gradients costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layermark.report import text
from layermark.report.text import Document

_COLUMNS = 72
_FORWARD, _BACKWARD = "0123456789", "abcdefghij"
_IDLE = "."


def lines(document: Document) -> Iterator[str]:
    """Yield what a result says about its ranks; nothing where there is one alone."""
    if document.get("pipeline"):
        yield from _pipeline(document["pipeline"], document.get("lanes") or ())
    if document.get("communication"):
        yield from _communication(document["communication"])


def _pipeline(facts: Mapping[str, Any], bars: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in facts["stages"]:
        times = [("forward", each["forward_s"]), ("backward", each["backward_s"]), ("weights", each["weights_s"])]
        shown = ", ".join(f"{name} {1000 * seconds:.3g} ms" for name, seconds in times if seconds)
        yield f"stage {each['stage']} (rank {each['rank']}): {shown}, {each['share']:.0%} of the work"
    yield (
        f"{facts['schedule']}, {facts['micro_batches']} micro-batches: bubble {facts['bubble']:.0%} measured, "
        f"{facts['bubble_predicted']:.0%} predicted from the stage times, {facts['bubble_ideal']:.0%} ideal"
    )
    yield from text_lanes(bars)


def text_lanes(bars: Sequence[Mapping[str, Any]], columns: int = _COLUMNS) -> Iterator[str]:
    """Yield a line for every rank: digits are forward passes, letters backward passes, by micro-batch; dots wait."""
    end = max((float(each["end_s"]) for each in bars), default=0.0)
    drawn: dict[str, list[str]] = {}
    for each in bars if end > 0 else ():
        lane = drawn.setdefault(str(each["lane"]), [_IDLE] * columns)
        first, last = int(each["start_s"] / end * columns), int(each["end_s"] / end * columns)
        for place in range(first, min(columns, max(first + 1, last))):
            lane[place] = _sign(str(each["name"]))
    yield from (f"{name} |{''.join(lane)}|" for name, lane in drawn.items())


def _sign(name: str) -> str:
    kind, number, *_ = name.split()
    signs = _FORWARD if kind == "forward" else _BACKWARD
    return signs[int(number) % len(signs)] if kind != "weights" else "w"


def _communication(facts: Mapping[str, Any]) -> Iterator[str]:
    top = facts["all_reduce"][-1]
    wrong = "" if all(each["right"] for each in facts["all_reduce"]) else "; WRONG SUMS"
    # Results of earlier versions do not say whether averaging could overlap.
    overlaps = facts.get("overlaps", True)
    hidden = f"{facts['hidden']:.0%} of it behind the backward pass" if overlaps else "not overlapped with anything"
    yield (
        f"{facts['replicas']} replicas average {text.human(facts['gradient_bytes'])}B of gradients in "
        f"{1000 * facts['average_s']:.3g} ms, {hidden}; "
        f"all-reduce of {text.human(top['bytes'])}B: {top['bus_bytes_per_s'] / 1e9:.3g} GB/s on the bus{wrong}"
    )
