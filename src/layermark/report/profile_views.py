"""The part of a page that shows profiles: its frame as HTML, and what the script draws when a profile is opened."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape as e
from typing import Any

from layermark.report import extras, over_time, profiles, text

_INTRO = (
    "From a pass of its own under the runtime's profiler, which never mixes with timing. All times are those of one "
    "batch; the sum of the operators stands beside the timed step, and the profiler's own cost beside both."
)
_COMPARED = "What one runtime fused and another did not is one line here, so that times can be set beside each other."
_OPENED = 4
"""Comparisons that are open from the beginning."""
_SHORT = 8
"""Texts of so few characters are as short as the number of their place."""

Place = Callable[[Any], int]


def section(found: Sequence[extras.Operators], left_out: int, compared: Sequence[profiles.Comparison]) -> Iterator[str]:
    """The profiles of a page, each folded, after the comparisons between them."""
    if not found:
        return
    yield f'<section id="operators"><h2>Profiles</h2><p class="intro">{_INTRO}{_more(left_out, "profile")}</p>'
    for place, comparison in enumerate(compared):
        opened = " open" if place < _OPENED else ""
        yield f'<details class="compared"{opened} data-drawn="comparisons {place}"><summary>{e(comparison.title)}: '
        yield f'the same nodes on each runtime</summary><p class="quiet">{_COMPARED}'
        yield f"{_more(comparison.left_out, 'shorter piece')}</p></details>"
    for place, each in enumerate(found):
        more = f' <span class="quiet">and {each.left_out} more operators</span>' if each.left_out else ""
        yield f'<details class="profile" id="profile-{e(each.row)}" data-drawn="profiles {place}"><summary>'
        yield f'<a href="#result-{e(each.row)}">{e(each.title)}</a>{more} <a class="quiet" '
        yield f'href="#profile-{e(each.row)}" aria-label="link to this profile">#</a></summary></details>'
    yield "</section>"


def _more(count: int, what: str) -> str:
    return f" {count} more {what}{'' if count == 1 else 's'} left out." if count else ""


def comparison_data(each: profiles.Comparison, place: Place) -> dict[str, Any]:
    """What is drawn of a comparison: its header, whose inner cells lead to results, and its lines."""
    return {"rows": each.rows, "lines": [[_short(cell, place) for cell in line] for line in each.lines]}


def profile_data(each: extras.Operators, place: Place) -> dict[str, Any]:
    """What is drawn of a profile. Longer texts, which many profiles share, are told by their place."""
    header = [text.clean(name.replace("_", " ")).replace("\n", " ") for name in each.header]
    found = {
        "insights": each.insights,
        "lists": [_pairs(each.facts, place), _pairs(each.phases, place)],
        "tree": [
            [_short(branch.name, place), branch.depth, profiles.ms(branch.time_s), float(f"{branch.share:.3f}")]
            for branch in each.tree
        ]
        if len(each.tree) > 1
        else [],
        "alive": [[_short(cell, place) for cell in line] for line in each.alive],
        "memory": memory_data(each.memory, place) if each.memory else None,
        "timeline": lanes_data(each.timeline, place) if each.timeline else None,
        "trace": f"layermark trace {shlex.quote(each.trace)} --open" if each.trace else "",
        "header": place("\n".join(header)),
        "lines": [[_short(cell, place) for cell in line] for line in each.lines],
    }
    return {name: value for name, value in found.items() if value or name == "header"}


def lanes_data(given: over_time.Lanes, place: Place) -> dict[str, Any]:
    """What is drawn of lanes: by lane its name and, bar by bar, the name, the beginning and the length (us)."""
    bars = [bar for lane in given.lanes.values() for bar in lane]
    beginning = min((bar.start_s for bar in bars), default=0.0)
    drawn = [
        [name, [figure for bar in lane for figure in _bar(bar, beginning, place)]] for name, lane in given.lanes.items()
    ]
    return {"lanes": drawn, "note": given.note}


def memory_data(given: over_time.Memory, place: Place) -> dict[str, Any]:
    """What is drawn of memory: moments as a number and bytes, in a row."""
    return {
        "label": given.label,
        "unit": given.unit,
        "points": [figure for x, held in given.points for figure in (_round(x), held)],
        "peak": [_round(given.peak_at), given.peak_bytes],
        "source": place(given.source),
    }


def _bar(bar: over_time.Bar, beginning: float, place: Place) -> tuple[int, float, float]:
    return place(bar.name), _round((bar.start_s - beginning) * 1e6), _round((bar.end_s - bar.start_s) * 1e6)


def _round(value: float) -> float:
    """Four digits, without a point that says nothing."""
    found = float(f"{value:.5g}")
    return int(found) if found.is_integer() else found


def _pairs(given: Mapping[str, str], place: Place) -> list[tuple[str | int, str]]:
    return [(_short(name, place), words) for name, words in given.items()]


def _short(words: str, place: Place) -> str | int:
    return words if len(words) <= _SHORT else place(text.clean(words))
