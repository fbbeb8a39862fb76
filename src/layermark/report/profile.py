"""A profile for the terminal: where the time of a batch goes, how far to trust it, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from layermark.report import over_time, profiles, text
from layermark.report.model import build

ROWS_SHOWN = 20
_NODES_SHOWN = 3
_WIDEST = 60
_HEADER = ("node", "kernel", "calls", "ms", "share", "GFLOP/s", "of ceiling")
_TREE_DEPTH = 2
_LEVELS = " .:-=+*#%@"
_WORDS = 2
"""So many columns of the table are words, to the left; numbers stand to the right."""

Profile = Mapping[str, Any]
Row = Mapping[str, Any]


def render_profiles(documents: Sequence[Mapping[str, Any]], file: TextIO) -> None:
    """Print the profile of every document that has one."""
    for document in documents:
        if document.get("profile"):
            lines = profile_lines(title(document), document["profile"], profiles.phases(document))
            file.write("\n" + "\n".join(lines) + "\n")
    for each in profiles.comparisons(build(documents)):
        file.write("\n" + "\n".join(comparison_lines(each)) + "\n")


def title(document: Mapping[str, Any]) -> str:
    """Return what a profile is of."""
    spec, settings = document["spec"], document["settings"]
    words = (spec["workload"], spec["backend"], settings.get("execution"), spec["mode"], f"batch {spec['batch_size']}")
    return text.one_line(" ".join(str(word) for word in words if word))


def profile_lines(name: str, profile: Profile, phases: Mapping[str, str] | None = None) -> Iterator[str]:
    """The table, the sums, the tree, the memory and the insights of one profile."""
    yield f"profile of {name}, per batch"
    yield from _table(profile["operators"])
    for label, words in profiles.facts(profile).items():
        yield f"{label:<17} {words}"
    if phases:
        yield f"{'before it':<17} {', '.join(f'{phase} {time}' for phase, time in phases.items())}"
    yield from _tree(profile)
    yield from _memory(profile)
    yield from _alive(profile)
    for each in profile["insights"]:
        yield f"{each['code']}: {text.one_line(each['text'])}"
    yield from _files(profile["files"])


def comparison_lines(found: profiles.Comparison) -> Iterator[str]:
    """Profiles of one network beside each other, as a table."""
    yield f"{text.one_line(found.title)}: the same nodes on each runtime, per batch"
    yield from _aligned([tuple(map(_short, map(text.one_line, line))) for line in found.lines], words=1)
    if found.left_out:
        yield f"and {found.left_out} more"


def _tree(profile: Profile) -> Iterator[str]:
    branches = profiles.tree(profile, levels=_TREE_DEPTH)
    if len(branches) > 1:
        yield "program tree"
        cells = [
            (_short("  " * each.depth + text.one_line(each.name)), profiles.ms(each.time_s), text.percent(each.share))
            for each in branches
        ]
        yield from (f"  {line}" for line in _aligned(cells, words=1))


def _memory(profile: Profile) -> Iterator[str]:
    """Bytes held over time as one line of characters, between nothing and the peak."""
    found = over_time.memory(profile)
    if found is not None:
        most = found.peak_bytes or 1
        held = "".join(_LEVELS[min(len(_LEVELS) - 1, held * len(_LEVELS) // most)] for _, held in found.points)
        yield f"{'memory over time':<17} [{held}] {text.one_line(found.label)}"


def _alive(profile: Profile) -> Iterator[str]:
    held, found = profiles.alive(profile), over_time.memory(profile)
    if held:
        yield f"alive at the peak of memory{f', {text.one_line(found.source)}' if found else ''}"
        yield from (
            f"  {line}" for line in _aligned([(_short(text.one_line(name)), *rest) for name, *rest in held], words=1)
        )


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in map(text.one_line, paths):
        name = Path(path).name
        if name.endswith(".trace.json"):
            yield f"trace: {path} (layermark trace FILE --open)"
        elif name.endswith(".json"):
            yield f"summary: {path}"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    ranked = sorted(rows, key=lambda row: -float(row["time_s"]))
    cells = [_HEADER, *map(_cells, ranked[:ROWS_SHOWN])]
    yield from _aligned(cells, words=_WORDS)
    rest = ranked[ROWS_SHOWN:]
    if rest:
        share = sum(float(row["share"] or 0.0) for row in rest)
        yield f"and {len(rest)} more with {text.percent(share)} of the time"


def _aligned(cells: Sequence[tuple[str, ...]], *, words: int) -> Iterator[str]:
    """Lines of equal columns; so many of them are words, to the left."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        pairs = list(enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cell.ljust(wide) if place < words else cell.rjust(wide) for place, (cell, wide) in pairs)


def _cells(row: Row) -> tuple[str, ...]:
    rate = row["flops_per_s"]
    return (
        _short(_nodes(row["node"])),
        _short(text.one_line(row["operator"])),
        f"{row['calls']:g}",
        text.digits(row["time_s"] * 1e3),
        text.percent(row["share"]),
        text.digits(rate / 1e9 if rate else None),
        text.percent(row["of_ceiling"]),
    )


def _nodes(names: Sequence[str]) -> str:
    shown = [text.one_line(name) for name in names[:_NODES_SHOWN]]
    more = len(names) - len(shown)
    return " + ".join([*shown, f"{more} more"] if more else shown) or text.MISSING


def _short(words: str) -> str:
    return words if len(words) <= _WIDEST else f"{words[: _WIDEST - 3]}..."
