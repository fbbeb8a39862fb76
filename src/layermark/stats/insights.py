"""What a profile says in words, and what to try: simple rules, each with a code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from layermark.spec import Spec

GAP = 0.10
"""Operators that miss the timed step by more than this share are no full account of it."""
TIED = 0.95
_HALF = 0.5
_NEAR = 0.8
_CONSIDERABLE = 0.15
_SMALL_CALL_S = 10e-6
_TOP = 3
"""So many operators are named as where the time is."""
_PRODUCTS = ("Conv2d", "Dense", "Recurrent")
_POINTWISE = ("Norm", "Activation", "Add", "Multiply", "Dropout", "StochasticDepth", "Normalise")
_MOVES = ("reorder", "transpose", "copy", "contiguous", "to_copy", "pad")
_FUSING = {("torch", "eager"): "compile", ("torch", "eager-direct"): "compile", ("tensorflow", "function"): "xla"}
_FUSING |= {("tensorflow", "session"): "session-xla"}
_WORDS = {"Conv2d": "convolution", "Dense": "dense layer", "Recurrent": "recurrent layer"}

Row = Mapping[str, Any]


class Insight(NamedTuple):
    """A finding: a code for programs, words for people."""

    code: str
    text: str


class _Profile(NamedTuple):
    rows: Sequence[Row]
    facts: Mapping[str, Any]
    spec: Spec
    execution: str

    @property
    def fusing(self) -> str:
        """An execution of the same runtime that fuses more; empty where there is none."""
        return _FUSING.get((self.spec.backend, self.execution), "")

    def share(self, rows: Sequence[Row]) -> float:
        """The share of the operators' time that these rows have."""
        return sum(float(row["share"] or 0.0) for row in rows)


def insights(rows: Sequence[Row], facts: Mapping[str, Any], spec: Spec, execution: str) -> list[Insight]:
    """Return what is worth knowing about a profile: first how far to trust it, then where the time is."""
    found = _Profile(rows, facts, spec, execution)
    return [each for rule in _RULES for each in rule(found)]


def _gap(found: _Profile) -> Iterator[Insight]:
    gap = found.facts["gap"]
    if gap is None or abs(gap) <= GAP:
        return
    times = f"operators take {_ms(found.facts['sum_s'])}, the timed step {_ms(found.facts['step_s'])}"
    if gap < 0:
        yield Insight("gap", f"{times}: {-gap:.0%} of the step is outside of operators (calls, waiting, other threads)")
    else:
        yield Insight("gap", f"{times}: {gap:.0%} more, by work side by side or by the profiler's own time")


def _overhead(found: _Profile) -> Iterator[Insight]:
    overhead = found.facts["overhead"]
    if overhead is not None and overhead > GAP:
        yield Insight("overhead", f"under the profiler a batch takes {overhead:.0%} longer than timed")


def _untied(found: _Profile) -> Iterator[Insight]:
    tied = found.facts["tied"]
    if tied is not None and tied < TIED:
        yield Insight("untied", f"{1 - tied:.0%} of the operators' time could not be tied to nodes of the graph")


def _where(found: _Profile) -> Iterator[Insight]:
    """The operators with the most time, whether or not anything is to be changed about them."""
    longest = sorted(found.rows, key=lambda row: -float(row["time_s"]))[:_TOP]
    if not found.share(longest):
        return
    named = ", ".join(f"{_name(row)} {found.share([row]):.0%}" for row in longest)
    count = f"{len(longest)} of {len(found.rows)} operators" if len(found.rows) > 1 else "one operator"
    yield Insight("where", f"{found.share(longest):.0%} of the time is in {count}: {named}")


def _products(found: _Profile) -> Iterator[Insight]:
    """Few products with most of the time, far from the ceiling or near to it."""
    heavy: list[Row] = []
    for row in sorted(found.rows, key=lambda row: -float(row["time_s"])):
        if found.share(heavy) >= _HALF:
            break
        if row["kind"] in _PRODUCTS:
            heavy.append(row)
    told = [row for row in heavy if row["of_ceiling"] is not None]
    if found.share(heavy) < _HALF or not told:
        return
    reached = sum(row["of_ceiling"] * row["time_s"] for row in told) / sum(row["time_s"] for row in told)
    what = f"{found.share(heavy):.0%} of the time is in {_counted(heavy)} at {reached:.0%} of the ceiling"
    if reached >= _NEAR:
        yield Insight("near_ceiling", f"{what}: only less work helps, such as --precision bf16.bf16 or int8")
    elif reached < _HALF:
        yield Insight("slow_products", f"{what}: try {_other(found)}")


def _pointwise(found: _Profile) -> Iterator[Insight]:
    rows = [row for row in found.rows if row["kind"] in _POINTWISE]
    if found.share(rows) > _CONSIDERABLE:
        text = f"{found.share(rows):.0%} of the time is in norms, activations and sums of their own"
        yield Insight("not_fused", f"{text}: try {_other(found)}, which may fuse them")


def _moves(found: _Profile) -> Iterator[Insight]:
    rows = [row for row in found.rows if any(word in row["operator"].lower() for word in _MOVES)]
    if found.share(rows) > _CONSIDERABLE:
        text = f"{found.share(rows):.0%} of the time changes layouts or copies"
        yield Insight("layout", f"{text}: try --formulation tuned, or {_other(found)}")


def _small_calls(found: _Profile) -> Iterator[Insight]:
    rows = [row for row in found.rows if row["calls"] and row["time_s"] / row["calls"] < _SMALL_CALL_S]
    if found.share(rows) > _HALF:
        text = f"{found.share(rows):.0%} of the time is in calls shorter than {_SMALL_CALL_S * 1e6:.0f} us"
        yield Insight("small_calls", f"{text}: a larger --batch-size or --batches-per-step spreads their cost")


_RULES: tuple[Callable[[_Profile], Iterator[Insight]], ...] = (
    *(_gap, _overhead, _untied, _where),
    *(_products, _pointwise, _moves, _small_calls),
)


def _other(found: _Profile) -> str:
    return f"--execution {found.fusing}" if found.fusing else "another runtime (layermark run without --backend)"


def _counted(rows: Sequence[Row]) -> str:
    kinds = {_WORDS[row["kind"]] for row in rows}
    word = kinds.pop() if len(kinds) == 1 else "layer"
    return f"{len(rows)} {word}{'s' if len(rows) != 1 else ''}"


def _name(row: Row) -> str:
    """The operator and the first of its nodes.

    >>> _name({"operator": "Conv", "node": ["conv1", "relu"]}), _name({"operator": "copy", "node": []})
    ('conv1 and 1 more (Conv)', 'copy')
    """
    first, *more = row["node"] or [""]
    return f"{first}{f' and {len(more)} more' if more else ''} ({row['operator']})" if first else str(row["operator"])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
