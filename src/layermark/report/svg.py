"""Plots as SVG. Colours come from the page's style sheet, by class; every point of a result is a link to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from layermark.report import text
from layermark.report.plots import Axis, Line, Plot, Point, Series

STYLES = 8
"""Colours and markers that the style sheet has; a ninth contender looks like the first."""

_SIZE, _WIDE = (380, 250), (760, 400)
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 24, 34
_TICKS = 5

# Markers around the origin: contenders are told apart without colour, too.
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8L4.6 3.4H-4.6z",
    "M0-5L5 0L0 5L-5 0z",
    "M0 4.8L-4.6-3.4H4.6z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-5-2h10v4h-10z",
    "M-2-5h4v10h-4z",
)


@dataclass(frozen=True)
class _Scale:
    """From values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (self._plain(each) for each in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def _plain(self, value: float) -> float:
        # A value that a logarithm cannot take lies on the edge.
        return math.log10(max(value, self.low)) if self.log else value


@dataclass(frozen=True)
class _Frame:
    """A plot with its two scales."""

    plot: Plot
    x: _Scale
    y: _Scale
    width: float
    height: float


def draw(plot: Plot, styles: Mapping[str, int]) -> str:
    """A plot as an SVG element; `styles` gives each contender its colour and marker."""
    frame = _frame(plot)
    parts = [
        *_grid(frame),
        *(_line(frame, each) for each in plot.lines),
        *(_series(frame, each, styles[each.runtime]) for each in plot.series),
    ]
    kind = "plot wide" if plot.wide else "plot"
    head = f'<svg class="{kind}" viewBox="0 0 {frame.width} {frame.height}" role="group" aria-label="{_e(plot.title)}">'
    return f"{head}{''.join(parts)}</svg>"


def marker(style: int) -> str:
    """The sign of a contender, for legends."""
    shape = f'<path d="{_shape(style)}"/>'
    return f'<svg class="marker s{style % STYLES}" viewBox="-6 -6 12 12" aria-hidden="true">{shape}</svg>'


def _shape(style: int) -> str:
    """The path of a marker: the ninth contender has the first one's colour and another's shape."""
    return _MARKERS[(style + style // STYLES) % STYLES]


def _frame(plot: Plot) -> _Frame:
    width, height = _WIDE if plot.wide else _SIZE
    points = [point for each in plot.series for point in each.points]
    paths = [place for each in plot.series for place in each.path]
    xs = [point.x for point in points] + [x for x, _ in paths] + [x for line in plot.lines for x, _ in line.points]
    ys = [y for point in points for y in (point.y, point.low, point.high, point.limit) if y is not None]
    ys += [y for _, y in paths] + [y for line in plot.lines for _, y in line.points]
    return _Frame(
        plot,
        _scale(plot.x, xs, _LEFT, width - _RIGHT),
        _scale(plot.y, ys, height - _BOTTOM, _TOP),
        width,
        height,
    )


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    """The range of the values with some room around it."""
    if axis.log:
        held = [value for value in values if value > 0] or [1.0]
        room = max((max(held) / min(held)) ** 0.07, 1.12)
        return _Scale(min(held) / room, max(held) * room, start, end, log=True)
    room = (max(values) - min(values)) * 0.06 or abs(max(values)) * 0.1 or 1.0
    return _Scale(min(values) - room, max(values) + room, start, end, log=False)


def _grid(frame: _Frame) -> Iterator[str]:
    """Lines and figures behind the points, and what the axes are called."""
    left, right, top, bottom = _LEFT, frame.width - _RIGHT, _TOP, frame.height - _BOTTOM
    for value, label in _ticks(frame.plot.y, frame.y):
        at = _n(frame.y(value))
        yield f'<path class="grid" d="M{left} {at}H{right}"/>'
        yield f'<text class="tick" x="{left - 6}" y="{at}" dy="0.32em" text-anchor="end">{_e(label)}</text>'
    for value, label in _ticks(frame.plot.x, frame.x):
        at = _n(frame.x(value))
        yield f'<path class="grid" d="M{at} {top}V{bottom}"/>'
        yield f'<text class="tick" x="{at}" y="{bottom + 14}" text-anchor="middle">{_e(label)}</text>'
    yield f'<path class="axis" d="M{left} {bottom}H{right}"/>'
    yield f'<text class="name" x="0" y="12">{_e(frame.plot.y.label)}</text>'
    yield f'<text class="name" x="{right}" y="{frame.height - 4}" text-anchor="end">{_e(frame.plot.x.label)}</text>'


def _ticks(axis: Axis, scale: _Scale) -> list[tuple[float, str]]:
    if axis.ticks:
        return _thinned(axis.ticks, scale)
    values = _decades(scale.low, scale.high) if scale.log else _linear(scale.low, scale.high)
    return [(value, _short(value)) for value in values]


def _short(value: float) -> str:
    """A round number without digits that say nothing.

    >>> _short(20000.0), _short(0.5), _short(250.0)
    ('20k', '0.5', '250')
    """
    figure = text.human(value)
    letter = figure[-1] if figure[-1].isalpha() else ""
    return f"{float(figure.removesuffix(letter)):g}{letter}"


def _thinned(ticks: Sequence[tuple[float, str]], scale: _Scale) -> list[tuple[float, str]]:
    """Those whose labels do not touch."""
    kept: list[tuple[float, str]] = []
    for value, label in ticks:
        room = 3.4 * (len(label) + len(kept[-1][1]) + 2) if kept else 0.0
        if not kept or scale(value) - scale(kept[-1][0]) >= room:
            kept.append((value, label))
    return kept


def _decades(low: float, high: float) -> list[float]:
    """Round places of a logarithmic axis: as many of 1, 2 and 5 times a power of ten as there is room for."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        values = [step * 10.0**power for power in powers for step in steps]
        held = [value for value in values if low <= value <= high]
        if len(held) <= _TICKS:
            break
    if len(held) < 2:
        return _linear(low, high)
    return held[:: math.ceil(len(held) / _TICKS)]


def _linear(low: float, high: float) -> list[float]:
    raw = (high - low) / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1.0, 2.0, 5.0, 10.0) if each * power >= raw)
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, math.floor(high / step) + 1)]


def _line(frame: _Frame, line: Line) -> str:
    drawn = f'<path class="{line.kind}" d="{_path(frame, line.points)}"/>'
    if not line.label:
        return drawn
    x, y = line.points[-1]
    at = f'x="{_n(frame.x(x))}" y="{_n(frame.y(y) - 6)}"'
    return f'{drawn}<text class="name" {at} text-anchor="end">{_e(line.label)}</text>'


def _path(frame: _Frame, points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(frame.x(x))} {_n(frame.y(y))}" for x, y in points)


def _series(frame: _Frame, series: Series, style: int) -> str:
    places = series.path or [(each.x, each.y) for each in series.points]
    parts = [f'<path class="join" d="{_steps(frame, places)}"/>'] if series.joined and len(places) > 1 else []
    parts += [_whiskers(frame, each) for each in series.points]
    parts += [_point(frame, each, _shape(style)) for each in series.points]
    return f'<g class="s{style % STYLES}" data-runtime="{_e(series.runtime)}">{"".join(parts)}</g>'


def _steps(frame: _Frame, places: Sequence[tuple[float, float]]) -> str:
    """A path by the steps from place to place, which are shorter to write than places."""
    drawn = [(round(frame.x(x)), round(frame.y(y) * 2) / 2) for x, y in places]
    steps = [f"{_n(x - left)} {_n(y - above)}" for (left, above), (x, y) in itertools.pairwise(drawn)]
    return f"M{_n(drawn[0][0])} {_n(drawn[0][1])}l{' '.join(steps).replace(' -', '-')}"


def _whiskers(frame: _Frame, point: Point) -> str:
    x = _n(frame.x(point.x))
    if point.limit is not None:
        return f'<path class="stem" d="M{x} {_n(frame.y(point.y))}V{_n(frame.y(point.limit))}"/>'
    if point.low is None or point.high is None or point.low <= 0:
        return ""
    return f'<path class="whisker" d="M{x} {_n(frame.y(point.low))}V{_n(frame.y(point.high))}"/>'


def _point(frame: _Frame, point: Point, shape: str) -> str:
    note = f'<text class="note" x="7" y="-6">{_e(point.note)}</text>' if point.note else ""
    at = f"translate({_n(frame.x(point.x))} {_n(frame.y(point.y))})"
    tag, leads = ("a", f'href="#result-{_e(point.row)}" ') if point.row else ("g", 'role="img" ')
    return (
        f'<{tag} {leads}class="point" tabindex="-1" aria-label="{_e(point.label)}" '
        f'transform="{at}"><circle class="hit" r="10"/><path d="{shape}"/>{note}</{tag}>'
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


_e: Callable[[str], str] = escape
