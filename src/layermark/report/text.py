"""Numbers and names in few characters, all ASCII: what a table cell, a sentence and a log line have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from layermark.metric import Form, Metric

MISSING = "-"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_IN_COLUMNS = ("workload", "params", "backend", "mode", "precision", "batch_size", "execution")

Document = Mapping[str, Any]


def human(value: float | None) -> str:
    """Three digits and a power of a thousand.

    >>> human(12345.6), human(0.0421), human(999.7), human(None)
    ('12.3k', '0.0421', '1.00k', '-')
    """
    if value is None:
        return MISSING
    for step, letter in _STEPS:
        if abs(value) >= 0.9995 * step:
            return f"{digits(value / step)}{letter}"
    return digits(value)


def digits(value: float | None) -> str:
    """Three significant digits, or all digits of a large number.

    >>> digits(1234.5), digits(123.4), digits(0.5), digits(1e-7)
    ('1234', '123', '0.500', '1.00e-07')
    """
    if value is None:
        return MISSING
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".rstrip(".")


def percent(value: float | None) -> str:
    """A share in percent, as it is, however large.

    >>> percent(0.0823), percent(3.1), percent(None)
    ('8.2%', '310%', '-')
    """
    if value is None:
        return MISSING
    return f"{value:.1%}" if abs(value) < 0.9995 else f"{value:.0%}"


def size(value: float | None) -> str:
    """Bytes with three digits and a power of a thousand.

    >>> size(447504384), size(None)
    ('448 MB', '-')
    """
    return MISSING if value is None else scaled(value, "B")


def scaled(value: float, unit: str) -> str:
    """A number of a unit that takes prefixes.

    >>> scaled(2.24e11, "FLOP/s"), scaled(12, "B")
    ('224 GFLOP/s', '12.0 B')
    """
    short = human(value)
    return f"{short} {unit}" if short[-1].isdigit() else f"{short[:-1]} {short[-1]}{unit}"


def error(value: float | None) -> str:
    """An error as one digit and a power of ten, such as `2e-06`."""
    return MISSING if value is None else f"{value:.0e}"


def number(found: Metric) -> str:
    """The value of a metric as its form asks, without a unit."""
    return _FORMS[found.form](found.value)


def quantity(found: Metric) -> str:
    """The value of a metric with its unit, where the form does not already say it.

    >>> from layermark.metric import metric
    >>> quantity(metric("compile_s").read({"compile_s": 0.25}))
    '0.250 s'
    """
    bare = found.value is None or not found.unit or found.form == "bytes"
    return number(found) if bare else f"{number(found)} {found.unit}"


def arm(interval: Document) -> float | None:
    """The longer arm of an interval as a share of its value; None where there is no interval."""
    value, low, high = interval["value"], interval["low"], interval["high"]
    if not value or low is None or high is None:
        return None
    return float(max(high - value, value - low) / value)


def arms(interval: Document) -> str:
    """The longer arm of an interval in percent, such as `+-0.8%`."""
    share = arm(interval)
    return MISSING if share is None else f"+-{percent(share)}"


def clean(text: str) -> str:
    """Text without colours and control characters, so that a worker's log cannot move the cursor."""
    return _ESCAPES.sub("", text.expandtabs(4))


def one_line(text: str) -> str:
    """Clean text that stays in its line, whatever is in it.

    >>> one_line("Some\\x1b[2J CPU\\nfaster")
    'Some CPU faster'
    """
    return " ".join(clean(text).splitlines())


def execution(document: Document) -> str:
    """Backend, what it really executed, and in how many copies, such as `torch/compile x2`."""
    spec = document["spec"]
    told = document["settings"].get("execution") or spec["execution"]
    copies = spec.get("plan", {}).get("replicas", 1)
    name = str(spec["backend"]) if told in ("", "auto") else f"{spec['backend']}/{told}"
    return name if copies == 1 else f"{name} x{copies}"


def title(document: Document, varying: Sequence[str] = ()) -> str:
    """A measurement in a few words, with the options that tell it from its neighbours."""
    spec = document["spec"]
    words = f"{workload(document, varying)} {spec['mode']} {spec['precision']} batch {spec['batch_size']}"
    return f"{words} on {execution(document)}"


def workload(document: Document, varying: Sequence[str] = ()) -> str:
    """The workload and the values of the options that vary, such as `lstm hidden-size=64`."""
    flat = flatten(document)
    extra = [f"{name.replace('_', '-')}={_short(flat[name])}" for name in varying if name in flat]
    return " ".join([document["spec"]["workload"], *extra])


def varying(documents: Sequence[Document]) -> list[str]:
    """Names of the options without a column of their own that differ between results of one workload."""
    seen: dict[tuple[str, str], set[str]] = {}
    for document in documents:
        for name, value in flatten(document).items():
            seen.setdefault((document["spec"]["workload"], name), set()).add(_short(value))
    return list(dict.fromkeys(name for (_, name), values in seen.items() if len(values) > 1))


def flatten(document: Document) -> dict[str, Any]:
    """The workload's options and those fields of the spec that have no column of their own."""
    spec = document["spec"]
    rest = {name: value for name, value in spec.items() if name not in _IN_COLUMNS and not isinstance(value, Mapping)}
    plan = {name: value for name, value in spec.get("plan", {}).items() if name != "replicas"}
    return {**spec["params"], **rest, **plan}


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


_FORMS: Mapping[Form, Callable[[float | None], str]] = {
    "number": digits,
    "thousands": human,
    "share": percent,
    "bytes": size,
    "error": error,
}
