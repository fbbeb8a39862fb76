"""Numbers and names in few characters, all ASCII: what a table cell, a sentence and a log line have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "-"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")
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


def arms(interval: Document) -> str:
    """The longer arm of an interval as a share of its value, such as `+-0.8%`."""
    value, low, high = interval["value"], interval["low"], interval["high"]
    if not value or low is None or high is None:
        return MISSING
    return f"+-{percent(max(high - value, value - low) / value)}"


def clean(text: str) -> str:
    """Text without colours and control characters, so that a worker's log cannot move the cursor."""
    return _ESCAPES.sub("", text.expandtabs(4))


def execution(document: Document) -> str:
    """Backend and what it really executed, such as `torch/compile`."""
    spec = document["spec"]
    told = document["settings"].get("execution") or spec["execution"]
    return str(spec["backend"]) if told in ("", "auto") else f"{spec['backend']}/{told}"


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
    return {**spec["params"], **rest, **spec.get("plan", {})}


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
