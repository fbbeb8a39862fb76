"""One HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape as e
from importlib import resources
from typing import Any

from layermark.report import extras, over_time, profile_views, profiles, svg
from layermark.report.model import Notice, Report
from layermark.report.payload import embedded
from layermark.report.plots import Section, sections
from layermark.report.summary import Advice, Choice, HeatCell, HeatLine, Standing, Summary, summarise

_WINNING = "A winner leads by more than the noise of the run and of starting again."
_HEAT = (
    "Every rate beside the best of its row, which was measured in alternation with it. A frame marks the winner, "
    "a dashed one those that cannot be told from it."
)
# The script fills the table and the panel.
_RESULTS = """<section id="results"><h2>Results</h2><div class="tools"><label>Filter
<input id="filter" type="search" placeholder="lstm torch -train" autocomplete="off" spellcheck="false"></label>
<output id="count" aria-live="polite"></output></div>
<div class="scroll"><table class="results"><caption class="hidden">All results; the headings sort</caption>
<thead></thead><tbody></tbody></table></div><button type="button" id="more" hidden>Show more</button>
<noscript><p>Table and panels need JavaScript; <code>layermark show</code> prints the same.</p></noscript>
<dialog id="panel" aria-labelledby="panel-title"></dialog><div id="tip" aria-hidden="true" hidden></div></section>"""
_FOOTER = """<footer><p>Rates are items over the median block time, with 95 % intervals over blocks. What is verified
was checked against a float64 reference in the program that was timed. Select any number for its samples, its
environment and the command that repeats it.</p></footer>"""

_NOTICES_LINKED = 12
_ENVIRONMENT = ("cpu", "cores", "kernel", "python")


def page(report: Report) -> str:
    """The whole report as one page."""
    summary = summarise(report)
    styles = {runtime: number for number, runtime in enumerate(summary.runtimes)}
    style, script = _asset("page.css"), _asset("page.js")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{e(f'Layermark: {summary.headline}')}</title><style>{style}</style></head><body>",
        *_body(report, summary, styles),
        f'<script type="application/json" id="data">{embedded(report, styles)}</script>',
        f"<script>{script}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _asset(name: str) -> str:
    return resources.files("layermark.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and only this style and this script act: markup that slipped in could not."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _body(report: Report, summary: Summary, styles: Mapping[str, int]) -> Iterator[str]:
    figures = [*sections(report), *(each for each in [extras.curves(report)] if each.plots)]
    lanes, lanes_left_out = over_time.row_lanes(report)
    operators, operators_left_out = extras.operators(report)
    titles = {
        "summary": "Summary",
        "heat": "Heat map" if summary.heat else "",
        **{each.key: each.title for each in figures},
        "lanes": "Pipeline lanes" if lanes else "",
        "operators": "Profiles" if operators else "",
        "results": "Results",
        "notices": "Notices" if report.warnings or report.skips or report.failures else "",
    }
    yield '<a class="skip" href="#results">Skip to the results</a>'
    yield from _header(report, summary, {key: title for key, title in titles.items() if title})
    yield "<main>"
    yield from _summary(summary)
    yield from _legend(styles)
    yield from _heat(summary)
    for each in figures:
        yield from _figures(each, styles)
    yield from _lanes(lanes, lanes_left_out)
    yield from profile_views.section(operators, operators_left_out, profiles.comparisons(report))
    yield _RESULTS
    yield from _notices(report)
    yield "</main>"
    yield _FOOTER


def _header(report: Report, summary: Summary, titles: Mapping[str, str]) -> Iterator[str]:
    environments = [row.document["environment"] for row in report.rows if row.document["environment"]]
    environment: Mapping[str, Any] = environments[0] if environments else {}
    machine = ", ".join(f"{name} {environment[name]}" for name in _ENVIRONMENT if environment.get(name))
    yield '<header><div class="bar"><p class="brand">Layermark</p><nav aria-label="Sections">'
    yield "".join(f'<a href="#{key}">{e(title)}</a>' for key, title in titles.items())
    yield '</nav><button type="button" id="theme" aria-label="Change between light and dark">Theme</button></div>'
    yield f'<div class="head"><h1>{e(summary.headline)}</h1><p class="facts">{e(report.totals)}</p>'
    yield f'<p class="facts">{e(machine)}</p></div></header>'


def _summary(summary: Summary) -> Iterator[str]:
    yield '<section id="summary"><h2>Summary</h2><div class="split">'
    yield '<div><h3>Winners</h3><table class="plain"><thead><tr><th scope="col">runtime'
    yield "".join(f'<th scope="col" class="n">{name}' for name in ("fastest", "cannot tell", "of"))
    yield "</thead><tbody>"
    yield from map(_standing, summary.standings)
    yield f'</tbody></table><p class="quiet">{_WINNING}</p></div>'
    yield '<div class="scroll"><h3>What to use when</h3><table class="plain advice"><thead><tr><th scope="col">workload'
    yield "".join(f'<th scope="col">{e(each)}' for each in summary.purposes)
    yield "</thead><tbody>"
    yield from map(_advice, summary.advice)
    yield "</tbody></table></div></div></section>"


def _standing(each: Standing) -> str:
    figures = "".join(f'<td class="n">{figure}' for figure in (each.won, each.shared, each.compared))
    return f'<tr><th scope="row">{e(each.runtime)}{figures}'


def _advice(each: Advice) -> str:
    return f'<tr><th scope="row">{e(each.family)}{"".join(map(_choice, each.choices))}'


def _choice(choice: Choice | None) -> str:
    if choice is None:
        return "<td>-"
    names = " or ".join(choice.runtimes)
    return f'<td><a href="#result-{e(choice.row)}">{e(names)}</a> <span class="quiet">{e(choice.text)}</span>'


def _legend(styles: Mapping[str, int]) -> Iterator[str]:
    yield '<div class="legend" role="group" aria-label="Runtimes shown">'
    for runtime, style in styles.items():
        sign = svg.marker(style)
        yield f'<button type="button" aria-pressed="true" data-runtime="{e(runtime)}">{sign}{e(runtime)}</button>'
    yield "</div>"


def _heat(summary: Summary) -> Iterator[str]:
    if not summary.heat:
        return
    yield f'<section id="heat"><h2>Heat map</h2><p class="intro">{_HEAT}</p>'
    yield '<div class="scroll"><table class="heat"><thead><tr><th scope="col">comparison'
    yield "".join(f'<th scope="col">{e(each)}' for each in summary.runtimes)
    yield "</thead><tbody>"
    yield from map(_heat_line, summary.heat)
    yield "</tbody></table></div></section>"


def _heat_line(line: HeatLine) -> str:
    cells = "".join(map(_heat_cell, line.cells))
    return f'<tr><th scope="row">{e(line.title)} <span class="quiet">{e(line.unit)}</span>{cells}'


def _heat_cell(cell: HeatCell | None) -> str:
    if cell is None:
        return '<td class="none">-'
    mark = {"fastest": " won", "cannot tell": " tied", "FAILED": " bad"}.get(cell.mark, "")
    others = f", best of {cell.others + 1}" if cell.others else ""
    inner = f"<b>{e(cell.text)}</b> <span>{e(cell.ratio)}{others}</span>"
    title = f' title="{e(cell.reason)}"' if cell.reason else ""
    link = f'<a href="#result-{e(cell.row)}" aria-label="{e(cell.label)}"{title}>{inner}</a>'
    return f'<td class="h{cell.shade}{mark}">{link}'


def _figures(section: Section, styles: Mapping[str, int]) -> Iterator[str]:
    more = f" {section.left_out} more are in the table below." if section.left_out else ""
    yield f'<section id="{section.key}"><h2>{e(section.title)}</h2><p class="intro">{e(section.intro + more)}</p>'
    yield '<div class="figures">'
    for plot in section.plots:
        kind = ' class="wide"' if plot.wide else ""
        yield f"<figure{kind}><figcaption>{e(plot.title)}</figcaption>{svg.draw(plot, styles)}</figure>"
    yield "</div></section>"


def _lanes(found: Sequence[over_time.RowLanes], left_out: int) -> Iterator[str]:
    if not found:
        return
    more = f'<p class="intro">{left_out} more results have lanes, too.</p>' if left_out else ""
    yield f'<section id="lanes"><h2>Pipeline lanes</h2>{more}<div class="figures">'
    for place, each in enumerate(found):
        title = f'<a href="#result-{e(each.row)}">{e(each.title)}</a>'
        note = f' <span class="quiet">{e(each.drawn.note)}</span>' if each.drawn.note else ""
        yield f'<figure class="wide" data-drawn="lanes {place}"><figcaption>{title}{note}</figcaption></figure>'
    yield "</div></section>"


def _notices(report: Report) -> Iterator[str]:
    if not (report.warnings or report.skips or report.failures):
        return
    titles = {row.id: row.title for row in report.rows}
    yield '<section id="notices"><h2>Notices</h2><ul class="notices">'
    for failure in report.failures:
        yield f'<li class="bad"><b>failed</b> {_link(failure.row, titles)}: {e(failure.reason)}'
    for notice in report.skips:
        yield _notice("skipped", notice, titles)
    for notice in report.warnings:
        yield _notice("warning", notice, titles)
    yield "</ul></section>"


def _notice(word: str, notice: Notice, titles: Mapping[str, str]) -> str:
    shown = list(dict.fromkeys(notice.rows))
    links = ", ".join(_link(row, titles) for row in shown[:_NOTICES_LINKED])
    rest = f" and {len(shown) - _NOTICES_LINKED} more" if len(shown) > _NOTICES_LINKED else ""
    return f"<li><b>{word}</b> {e(notice.text)} <details><summary>{len(shown)} results</summary>{links}{rest}</details>"


def _link(row: str, titles: Mapping[str, str]) -> str:
    return f'<a href="#result-{e(row)}">{e(titles[row])}</a>'
