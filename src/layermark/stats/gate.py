"""May a change go in? Two sides per measurement, one of them twice, and a loss that is tolerated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from layermark.errors import UserError
from layermark.spec import Spec
from layermark.stats.accounts import OperatorChange, accountable
from layermark.stats.compare import Verdict, compare_documents, compare_starts, start_half_width
from layermark.stats.differences import result_differences
from layermark.stats.itself import against_itself
from layermark.stats.paired import CONFIDENCE, paired
from layermark.stats.pairing import Matching, match

TOLERATED = 0.03
MIN_ROUNDS = 5
SIDES = ("the base", "the change")

_NEXT_WIDER = 1.25
"""The next interval is another, often a wider one: with this, four of five were narrow enough in simulations."""

RESTLESS = "restless"
"""The code of a finding whose base differs from itself."""
NOISE = "noise"
"""The code of a finding whose noise does not let a loss as small as the tolerated one be seen."""
NEAR = "near"
"""The code of a finding whose loss lies too near to what is tolerated."""
NOT_MEASURED = "not_measured"
FEW_BLOCKS = "few_blocks"
NOT_PROVEN = "not_proven"
"""The code of a finding that was timed, but not proven afterwards."""

Document = Mapping[str, Any]
Rates = Sequence[Sequence[float]]
Answer = Literal["faster", "no slower", "slower", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a gate says of one measurement: B, the change, relative to A, the base."""

    spec: Spec
    answer: Answer
    reason: str
    code: str = ""
    """Why it cannot be told, for programs."""
    verdict: Verdict | None = None
    same: Verdict | None = None
    """The base against itself: where that differs, nothing else can be told."""
    differences: tuple[str, ...] = ()
    """What else is not the same on both sides, and could explain the rest."""
    operators: tuple[OperatorChange, ...] = ()
    """Where both sides have a profile and differ: what accounts for most of it, first."""
    rounds_needed: int | None = None
    """Where the noise hides what was asked for: rounds after which it would show, if the noise stays as it was."""
    seconds_needed: float | None = None
    """How long they take, with starts and proofs."""


def finding(spec: Spec, verdict: Verdict, same: Verdict, tolerated: float, parts: str = "") -> Finding:
    """Return what two comparisons mean when a loss up to `tolerated` is; `parts` are what of the base was compared."""
    answer, code, reason = _judged(verdict, same, tolerated, parts)
    return Finding(spec=spec, answer=answer, code=code, reason=reason, verdict=verdict, same=same)


def level(measurements: int) -> float:
    """Return the confidence of the base against itself: of all measurements of a gate together, 1 of 100 alarms.

    >>> round(level(20), 4)
    0.9995
    """
    return 1 - (1 - CONFIDENCE) / max(1, measurements)


def explained(found: Finding, base: Document, change: Document) -> Finding:
    """Return a finding with what is not the same on both sides, and the operators that account for a difference."""
    differs = found.verdict is not None and found.verdict.answer != "cannot tell"
    operators = accountable(base["profile"], change["profile"]) if differs else []
    return dataclasses.replace(found, differences=tuple(result_differences(base, change)), operators=tuple(operators))


def _judged(verdict: Verdict, same: Verdict, tolerated: float, parts: str) -> tuple[Answer, str, str]:
    if same.answer != "cannot tell":
        which = f" ({parts})" if parts else ""
        text = f"the base differs from itself by {same.ratio - 1:+.1%}{which}: this machine is too restless now"
        return "cannot tell", RESTLESS, text
    if verdict.answer == "slower" and verdict.ratio < 1 - tolerated:
        return "slower", "", f"a loss of {1 - verdict.ratio:.1%}, tolerated are {tolerated:.1%}"
    if verdict.answer == "faster":
        return "faster", "", ""
    # A rate that is high by chance must not let pass what the noise would have hidden.
    if verdict.low / verdict.ratio < 1 - tolerated:
        seen = f"could have seen a loss of {visible_loss(verdict):.1%}, tolerated are {tolerated:.1%}"
        return "cannot tell", NOISE, f"{seen}; measure longer, or on a quieter machine"
    if verdict.low >= 1 - tolerated:
        return "no slower", "", f"a loss above {tolerated:.1%} would have shown"
    text = f"a loss of {1 - verdict.low:.1%} is possible, tolerated are {tolerated:.1%}; measure longer"
    return "cannot tell", NEAR, text


def visible_loss(verdict: Verdict) -> float:
    """Return the loss that a comparison with this much noise finds in 95 of 100 cases, as a share of the rate."""
    ratio = verdict.noise_floor if verdict.detectable is None else verdict.detectable
    return 1 - 1 / (1 + ratio)


def rounds_needed(verdict: Verdict, tolerated: float) -> int | None:
    """Return after how many rounds noise like this lets a loss above `tolerated` be seen; None where no time is enough.

    What lies between blocks shrinks with their number, what two starts differ by does not.
    """
    allowed, half = -math.log1p(-tolerated), _NEXT_WIDER * math.log(verdict.ratio / verdict.low)
    fixed = start_half_width(verdict.starts, verdict.confidence)
    if fixed >= allowed:
        return None
    return math.ceil(verdict.rounds * max(1.0, (half**2 - fixed**2) / (allowed**2 - fixed**2)))


def status(findings: Iterable[Finding]) -> int:
    """Return a gate's exit status: 0 fine, 1 something is slower, 3 something cannot be told."""
    answers = {each.answer for each in findings}
    return 1 if "slower" in answers else 3 if "cannot tell" in answers else 0


def gate_rounds(
    spec: Spec,
    base: Sequence[Document],
    again: Sequence[Document],
    change: Sequence[Document],
    tolerated: float,
    measurements: int = 1,
) -> Finding:
    """Judge results measured in rounds: in each the base twice and the change once, every time a process of its own."""
    failed = [each for each in (*base, *again, *change) if each["status"] != "ok"]
    if failed:
        return not_measured(spec, str(failed[0]["reason"]))
    if len(base) < MIN_ROUNDS:
        raise UserError(f"a gate needs {MIN_ROUNDS} rounds; received {len(base)}")
    a, twin, b = (np.log([each["throughput"]["value"] for each in side]) for side in (base, again, change))
    verdict = paired(b - (a + twin) / 2, 1.5, (2 * len(base), len(change)))
    same = paired(twin - a, 2.0, (len(base), len(again)), level(measurements))
    return explained(finding(spec, verdict, same, tolerated), base[0], change[0])


def gate_starts(
    spec: Spec,
    base: Rates,
    again: Rates,
    change: Rates,
    tolerated: float,
    *,
    confidence: float = CONFIDENCE,
    spread: float | None = None,
    measurements: int = 1,
    groups: Sequence[Sequence[int]] | None = None,
) -> Finding:
    """Judge starts that took turns block by block: the rates of every start, entry i measured in round i.

    The base's starts are two sides that differ in nothing. Both together are what the change is compared with. `groups`
    are those of `compare_starts`, by start: the base's, the base's again, the change's.
    """
    bases = [*base, *again]
    verdict = compare_starts(bases, change, confidence, spread=spread, groups=groups)
    same = compare_starts(
        base, again, level(measurements), spread=spread, groups=None if groups is None else groups[: len(bases)]
    )
    return finding(spec, verdict, same, tolerated)


def not_measured(spec: Spec, reason: str) -> Finding:
    """Return the finding on a measurement that could not be made."""
    return Finding(spec=spec, answer="cannot tell", code=NOT_MEASURED, reason=f"not measured: {reason}")


def gate_documents(
    a: Sequence[Document], b: Sequence[Document], tolerated: float, spread: float | None = None
) -> list[Finding]:
    """Judge the results of two sessions, of which each measured what it did once.

    Whatever the base has measured gets a finding: without a partner in the change, nothing can be told of it.
    """
    return gate_matching(match(a, b, SIDES), tolerated, spread)


def gate_matching(matching: Matching, tolerated: float, spread: float | None = None) -> list[Finding]:
    """Judge results that were set side by side before."""
    if not matching.pairs:
        raise UserError("the two sides have no measurement in common; measure the same workloads with the same options")
    confidence = level(len(matching.pairs))
    found = [_stored(first, second, tolerated, spread, confidence) for first, second in matching.pairs]
    return found + [
        Finding(spec=each.spec, answer="cannot tell", code=each.code, reason=each.reason) for each in matching.alone
    ]


def _stored(a: Document, b: Document, tolerated: float, spread: float | None, confidence: float) -> Finding:
    spec = Spec.from_json(b["spec"])
    for side, document in zip(SIDES, (a, b), strict=True):
        if document["status"] != "ok":
            found = not_measured(spec, f"{side}: {document['reason']}")
            return dataclasses.replace(found, differences=tuple(result_differences(a, b)))
    itself = against_itself(a, confidence)
    if itself is None:
        reason = "the base has fewer than four blocks; measure longer"
        return Finding(spec=spec, answer="cannot tell", code=FEW_BLOCKS, reason=reason)
    return explained(finding(spec, compare_documents(a, b, spread), itself[0], tolerated, itself[1]), a, b)
