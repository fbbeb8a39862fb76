"""What the results say in few words: who wins how often, what to use when, every rate beside the best of its row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from layermark.metric import Metric, metric
from layermark.report import text
from layermark.report.model import Group, Mark, Report, Row
from layermark.stats.compare import margin

SHADES = 10
"""How many steps of colour lie between the best and whatever is ten times as slow."""

# Build time and memory are read once, without an interval: nearer than this they count as alike.
_SINGLE_READING = 0.1
_RATE = "throughput"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a contender did in the comparisons that it took part in."""

    runtime: str
    won: int
    shared: int
    """Comparisons that it leads together with others: the noise does not tell them apart."""
    compared: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best for one purpose, and whatever cannot be told from it."""

    purpose: str
    runtimes: tuple[str, ...]
    text: str
    row: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to use for one workload in one mode."""

    family: str
    choices: tuple[Choice | None, ...]


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """A rate and how far it is from the best of its row."""

    row: str
    text: str
    ratio: str
    shade: int
    mark: Mark
    others: int
    """Further results of the same runtime in this comparison, none of them faster."""
    label: str
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, kw_only=True)
class HeatLine:
    """One comparison group; a contender that has no result in it has no cell."""

    title: str
    unit: str
    cells: tuple[HeatCell | None, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The head of a page."""

    headline: str
    standings: tuple[Standing, ...]
    purposes: tuple[str, ...]
    advice: tuple[Advice, ...]
    runtimes: tuple[str, ...]
    heat: tuple[HeatLine, ...]


def summarise(report: Report) -> Summary:
    """Count, choose and compare."""
    # By name, so that a runtime has the same colour in every report of the same runtimes.
    runtimes = tuple(sorted({row.runtime for row in report.rows}))
    standings = tuple(_standings(report.groups, runtimes))
    failed: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.status == "failed" and not row.measured:
            failed.setdefault(row.group, []).append(row)
    return Summary(
        headline=_headline(report, standings),
        standings=standings,
        purposes=tuple(purpose for _, purpose in _PURPOSES),
        advice=tuple(_advice(report)),
        runtimes=runtimes,
        heat=tuple(_heat_line(group, failed.get(group.rows[0].group, ()), runtimes) for group in report.groups),
    )


def _standings(groups: Sequence[Group], runtimes: Sequence[str]) -> Iterator[Standing]:
    contests = [group for group in groups if group.leaders]
    for runtime in runtimes:
        led = [row.mark for group in contests for row in group.leaders if row.runtime == runtime]
        taken = sum(any(row.runtime == runtime for row in group.rows) for group in contests)
        yield Standing(runtime=runtime, won=led.count("fastest"), shared=led.count("cannot tell"), compared=taken)


def _headline(report: Report, standings: Sequence[Standing]) -> str:
    contests = sum(bool(group.leaders) for group in report.groups)
    if not contests:
        return f"{len(report.measured)} results, nothing to compare"
    most = max(each.won for each in standings)
    if not most:
        return f"No winner in {contests} comparison{_s(contests)}: the differences are within the noise"
    names = [each.runtime for each in standings if each.won == most]
    verb, each = ("wins", "") if len(names) == 1 else ("win", " each")
    return f"{' and '.join(names)} {verb} {most} of {contests} comparison{_s(contests)}{each}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _advice(report: Report) -> Iterator[Advice]:
    families: dict[str, list[Row]] = {}
    for row in report.latest:
        families.setdefault(row.family, []).append(row)
    for family, rows in families.items():
        choices = [_choice(rows, metric(tag), purpose, report) for tag, purpose in _PURPOSES]
        yield Advice(family=family, choices=tuple(choices))


def _choice(rows: Sequence[Row], known: Metric, purpose: str, report: Report) -> Choice | None:
    read = {row.id: known.read(row.document) for row in rows}
    held = [row for row in rows if read[row.id].value is not None]
    if not held:
        return None
    best = held[0]
    for row in held[1:]:
        best = row if read[row.id].better_than(read[best.id]) else best
    alike = _ALIKE.get(known.tag, _read_once)
    near = [row for row in held if row is best or alike(row, best, known, report)]
    runtimes = tuple(dict.fromkeys([best.runtime, *(row.runtime for row in near if row.group == best.group)]))
    words = f"batch {best.document['spec']['batch_size']}, {text.quantity(read[best.id])}"
    return Choice(purpose=purpose, runtimes=runtimes, text=words, row=best.id)


def _led_alike(row: Row, best: Row, known: Metric, report: Report) -> bool:
    """Rates have been judged already, when the group was marked."""
    return row.group == best.group and row.mark == "cannot tell" and best.mark == "cannot tell"


def _within_noise(row: Row, best: Row, known: Metric, report: Report) -> bool:
    floors: list[float | None] = [each.document["noise_floor"] for each in (row, best)]
    known_floors = [floor for floor in floors if floor is not None]
    if len(known_floors) < len(floors):
        return True
    return _difference(row, best, known) <= margin(max(known_floors), report.start_spread)


def _read_once(row: Row, best: Row, known: Metric, report: Report) -> bool:
    return _difference(row, best, known) <= _SINGLE_READING


def _difference(row: Row, best: Row, known: Metric) -> float:
    values = [known.read(each.document).value or 0.0 for each in (row, best)]
    return max(values) / min(values) - 1 if min(values) > 0 else math.inf


_PURPOSES = (
    (_RATE, "highest rate"),
    ("latency_ms.p50", "lowest latency"),
    ("compile_s", "quickest to build"),
    ("memory.peak_rss_bytes", "least memory"),
)
_ALIKE: dict[str, Callable[[Row, Row, Metric, Report], bool]] = {
    _RATE: _led_alike,
    "latency_ms.p50": _within_noise,
}


def _heat_line(group: Group, failed: Iterable[Row], runtimes: Sequence[str]) -> HeatLine:
    fit = [row for row in group.rows if row.status == "ok"]
    best = metric(_RATE).read(fit[0].document).value if fit else None
    found: dict[str, list[Row]] = {}
    for row in sorted(group.rows, key=lambda row: row.status != "ok"):  # the fastest first, but what failed last
        found.setdefault(row.runtime, []).append(row)
    cells = {row.runtime: _failed_cell(row) for row in failed}
    cells |= {runtime: _heat_cell(rows[0], best, len(rows) - 1) for runtime, rows in found.items()}
    return HeatLine(title=group.title, unit=group.unit, cells=tuple(map(cells.get, runtimes)))


def _heat_cell(row: Row, best: float | None, others: int) -> HeatCell:
    rate = metric(_RATE).read(row.document)
    slower = best / rate.value if best and rate.value else math.inf
    fit = row.status == "ok"
    ratio = _slower(slower) if fit else row.mark
    shade = round(SHADES * (1 - math.log10(slower))) if fit and slower < math.inf else 0
    more = f"; {others} more of {row.runtime} in the table" if others else ""
    return HeatCell(
        row=row.id,
        text=text.number(rate),
        ratio=ratio,
        shade=min(SHADES, max(0, shade)),
        mark=row.mark,
        others=others,
        label=f"{row.title}: {text.quantity(rate)}, {row.mark or ratio}{more}",
        reason="" if fit else _reason(row),
    )


def _failed_cell(row: Row) -> HeatCell:
    """Of a result that failed before it had a rate."""
    reason = _reason(row)
    label = f"{row.title}: failed: {reason}"
    return HeatCell(row=row.id, text="failed", ratio="", shade=0, mark="FAILED", others=0, label=label, reason=reason)


def _reason(row: Row) -> str:
    return text.one_line(row.document["reason"] or "")


def _slower(factor: float) -> str:
    """How a rate stands beside the best.

    >>> _slower(1.0), _slower(1.003), _slower(2.5)
    ('best', 'as fast', '2.50x slower')
    """
    if factor <= 1:
        return "best"
    return "as fast" if factor < 1.005 else f"{text.digits(factor)}x slower"
