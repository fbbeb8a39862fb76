"""What the columns of a table of results read from a document. Renderers see texts and sort keys only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from layermark.metric import metric
from layermark.report import text
from layermark.report.text import MISSING, Document

CONTENDING = ("execution", "formulation", "precision")
"""What of a spec may differ inside a comparison group, beside the backend."""
DETAILS = ("mean_rate", "memory.peak_rss_bytes")
"""Columns that a terminal shows only where they are asked for."""
COPIES_SHOWN = 4
"""The rates of so many copies are told one by one."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table of results."""

    key: str
    header: str
    help: str = ""
    unit: str = ""
    """The unit of every cell; empty if cells have units of their own, or none."""
    justify: Literal["left", "right"] = "right"
    better: Literal["higher", "lower", ""] = ""
    shared: bool = False
    """May stand above the table when all rows agree in it."""
    of_group: bool = False
    """Equal in all rows of a comparison group, so that a narrow table says it once, above."""
    detail: bool = False
    """For pages, which have more room than a terminal, and where it is asked for."""


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """What one result shows in one column, and the key that sorts it; None sorts last."""

    text: str
    key: float | str | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class FilledColumn:
    """A column and how a document fills it."""

    column: Column
    read: Callable[[Document], TableCell]


def filled_columns(documents: Sequence[Document], names: Sequence[str]) -> list[FilledColumn]:
    """The columns that these documents need; `names` are the options that tell rows apart.

    What quantising lost has a column where something was quantised, the rates of copies where there are several, and
    so has the session.
    """
    alike = not any(name in CONTENDING for name in names)
    several = len({each["session"] for each in documents}) > 1
    return [
        _words(_left("workload", of_group=alike), lambda d: text.workload(d, names)),
        _words(_left("mode", shared=True, of_group=True), lambda d: d["spec"]["mode"]),
        _words(_left("backend"), text.execution),
        _words(_left("precision", shared=True), lambda d: d["spec"]["precision"]),
        _batch(),
        _rate(documents),
        *([_copies()] if any(map(_copy_rates, documents)) else []),
        _interval(),
        _metric("mean_rate", "mean rate", detail=True),
        _latency(),
        _metric("efficiency", "ceiling"),
        _verified(),
        *([_accuracy()] if any(map(_quantised, documents)) else []),
        _metric("compile_s", "compile s"),
        _metric("memory.peak_rss_bytes", "memory", detail=True),
        *([_words(_left("session", detail=True), lambda d: d["session"])] if several else []),
    ]


def _left(key: str, *, shared: bool = False, of_group: bool = False, detail: bool = False) -> Column:
    return Column(key=key, header=key, justify="left", shared=shared, of_group=of_group, detail=detail)


def _words(column: Column, read: Callable[[Document], str]) -> FilledColumn:
    def cell(document: Document) -> TableCell:
        words = text.clean(read(document))
        return TableCell(text=words, key=words)

    return FilledColumn(column=column, read=cell)


def _metric(tag: str, header: str, *, detail: bool = False) -> FilledColumn:
    known = metric(tag)

    def cell(document: Document) -> TableCell:
        found = known.read(document)
        return TableCell(text=text.number(found), key=found.value)

    column = Column(key=tag, header=header, help=known.help, better=known.better, detail=detail)
    return FilledColumn(column=column, read=cell)


def _batch() -> FilledColumn:
    def cell(document: Document) -> TableCell:
        size = document["spec"]["batch_size"]
        return TableCell(text=str(size), key=size)

    return FilledColumn(column=Column(key="batch", header="batch", shared=True, of_group=True), read=cell)


def _rate(documents: Sequence[Document]) -> FilledColumn:
    known = metric("throughput")
    units = {each["throughput"]["unit"] for each in documents if each["throughput"]["value"] is not None}

    def cell(document: Document) -> TableCell:
        found = known.read(document)
        return TableCell(text=text.number(found), key=found.value, unit=found.unit)

    unit = units.pop() if len(units) == 1 else ""
    column = Column(key=known.tag, header=known.name, help=known.help, unit=unit, better=known.better)
    return FilledColumn(column=column, read=cell)


def _copies() -> FilledColumn:
    """The rates of single copies, beside which the rate is that of all; of many the slowest and the fastest."""

    def cell(document: Document) -> TableCell:
        rates = _copy_rates(document)
        if not rates:
            return TableCell(text=MISSING)
        told = rates if len(rates) <= COPIES_SHOWN else [min(rates), max(rates)]
        words = (" + " if told is rates else " to ").join(map(text.human, told))
        return TableCell(text=words, key=min(rates))

    help = f"median rate of every copy in the same steps, beside the rate of all; of more than {COPIES_SHOWN} the range"
    return FilledColumn(column=Column(key="copies", header="each copy", help=help, better="higher"), read=cell)


def _copy_rates(document: Document) -> list[float]:
    """The rates of copies that are one rank each; none where there is one alone."""
    rates = [float(each["rate"]) for each in document.get("ranks") or ()]
    return rates if 1 < len(rates) == document["spec"].get("plan", {}).get("replicas", 1) else []


def _interval() -> FilledColumn:
    def cell(document: Document) -> TableCell:
        rate = document["throughput"]
        arm = text.arm(rate)
        return TableCell(text=MISSING if arm is None else text.percent(arm), key=arm)

    help = "half of the 95 % interval of the rate, over blocks"
    return FilledColumn(column=Column(key="interval", header="+-", help=help, better="lower"), read=cell)


def _latency() -> FilledColumn:
    median, tail = metric("latency_ms.p50"), metric("latency_ms.p99")

    def cell(document: Document) -> TableCell:
        low, high = median.read(document), tail.read(document)
        return TableCell(text=f"{text.number(low)}/{text.number(high)}", key=low.value)

    help = "time of one batch: half took no longer / 99 of 100 took no longer"
    column = Column(key="latency", header=f"p50/p99 {median.unit}", help=help, better=median.better)
    return FilledColumn(column=column, read=cell)


def _verified() -> FilledColumn:
    known = metric("verified.max_error")

    def cell(document: Document) -> TableCell:
        ok, found = document["verified"]["ok"], known.read(document)
        if ok is None:
            return TableCell(text=MISSING)
        word = "ok" if ok else "WRONG"
        return TableCell(text=word if found.value is None else f"{word} {text.number(found)}", key=found.value)

    column = Column(key=known.tag, header="verified", help=known.help, justify="left", better=known.better)
    return FilledColumn(column=column, read=cell)


def _accuracy() -> FilledColumn:
    def cell(document: Document) -> TableCell:
        if not _quantised(document):
            return TableCell(text=MISSING)
        lost, same = (document["accuracy"][name] for name in ("relative_error", "top1_agreement"))
        return TableCell(text=f"{text.percent(lost)}/{text.percent(same)}", key=lost)

    help = "error of quantised outputs as a share of their spread / rows whose largest output is the same"
    return FilledColumn(column=Column(key="accuracy", header="lost/same top", help=help, better="lower"), read=cell)


def _quantised(document: Document) -> bool:
    return bool((document.get("accuracy") or {}).get("items"))
