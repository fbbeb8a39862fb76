"""What a gate found, for a terminal, for a page of Markdown, and for a CI system that reads JUnit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from layermark.report.markdown import plain
from layermark.report.text import one_line
from layermark.stats.accounts import told as told_of
from layermark.stats.gate import Finding

_SIGNS = {"faster": "+", "no slower": "=", "slower": "!", "cannot tell": "?"}


def as_text(findings: Sequence[Finding], names: Sequence[str]) -> str:
    """Return a line for every measurement, and one for what could explain it."""
    lines = []
    for each, name in zip(findings, names, strict=True):
        lines.append(f"{_SIGNS[each.answer]} {name}: {each.answer}{_numbers(each)}{_because(each)}")
        lines += [f"    differs: {one_line('; '.join(each.differences))}"] if each.differences else []
        lines += [f"    where: {_where(each)}"] if each.operators else []
    return "\n".join([*lines, summary(findings)])


def as_markdown(findings: Sequence[Finding], names: Sequence[str]) -> str:
    """Return a table, as a comment on a pull request shows it."""
    lines = ["| measurement | answer | change | interval | base against itself | where | what else differs |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for each, name in zip(findings, names, strict=True):
        told = map(_shown, (*_cells(each), _where(each), "; ".join(each.differences)))
        lines.append(f"| {' | '.join([_shown(name), f'**{each.answer}**', *told])} |")
    reasons = [
        f"- {_shown(name)}: {_shown(each.reason)}" for each, name in zip(findings, names, strict=True) if each.reason
    ]
    return "\n".join([*lines, "", *reasons, "", summary(findings)])


def as_junit(findings: Sequence[Finding], names: Sequence[str]) -> str:
    """Return a test suite: slower is a failure, what cannot be told is an error."""
    failures = sum(each.answer == "slower" for each in findings)
    errors = sum(each.answer == "cannot tell" for each in findings)
    counts = {"tests": str(len(findings)), "failures": str(failures), "errors": str(errors)}
    suite = ElementTree.Element("testsuite", {"name": "layermark gate", **counts})
    for each, name in zip(findings, names, strict=True):
        case = ElementTree.SubElement(suite, "testcase", {"classname": "layermark.gate", "name": _xml(name)})
        told = _xml(f"{each.answer}{_numbers(each)}{_because(each)}")
        if each.answer in ("slower", "cannot tell"):
            kind = "failure" if each.answer == "slower" else "error"
            details = [*map(told_of, each.operators), *each.differences]
            ElementTree.SubElement(case, kind, {"message": told}).text = _xml("\n".join(details))
        else:
            ElementTree.SubElement(case, "system-out").text = told
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def as_document(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain values."""
    return {**dataclasses.asdict(dataclasses.replace(finding, spec=None)), "spec": finding.spec.to_json()}  # type: ignore[arg-type]


def summary(findings: Sequence[Finding]) -> str:
    """Return how many there are of each answer."""
    counts = {answer: sum(each.answer == answer for each in findings) for answer in _SIGNS}
    return f"{len(findings)} measurements: {', '.join(f'{count} {name}' for name, count in counts.items() if count)}"


def _numbers(finding: Finding) -> str:
    if finding.verdict is None:
        return ""
    change, interval, same = _cells(finding)
    return f" {change} ({100 * finding.verdict.confidence:g}% interval {interval}; base against itself {same})"


def _cells(finding: Finding) -> tuple[str, str, str]:
    if finding.verdict is None or finding.same is None:
        return "-", "-", "-"
    verdict, same = finding.verdict, finding.same
    interval = f"{verdict.low - 1:+.1%} to {verdict.high - 1:+.1%}"
    return f"{verdict.ratio - 1:+.1%}", interval, f"{same.ratio - 1:+.1%} +-{same.noise_floor:.1%}"


def _where(finding: Finding) -> str:
    """The operators that account for most of a difference."""
    return one_line("; ".join(map(told_of, finding.operators)))


def _because(finding: Finding) -> str:
    return f"; {one_line(finding.reason)}" if finding.reason else ""


def _shown(words: str) -> str:
    return plain(one_line(words))


def _xml(text: str) -> str:
    """XML has no control characters, not even escaped ones."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
