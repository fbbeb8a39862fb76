"""`layermark list`: the names that can be typed, each with a line about it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from layermark.cli.parsing import Parser
from layermark.errors import unknown

SUMMARY = "list workloads, backends, devices, data sources and suites"

Row = dict[str, Any]


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)} (default: all of them)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print the names."""
    if args.kind and args.kind not in KINDS:
        raise unknown("kind", args.kind, KINDS)
    rows = {kind: KINDS[kind]() for kind in ([args.kind] if args.kind else KINDS)}
    print(json.dumps(rows) if args.json else _text(rows, titled=not args.kind))
    return 0


def _workloads() -> list[Row]:
    from layermark import registry
    from layermark.workloads.base import workload

    found = {name: workload(name) for name in sorted(registry.modules("workloads"))}
    return [{"name": name, "summary": each.summary, "item": each.item} for name, each in found.items()]


def _backends() -> list[Row]:
    from layermark import registry
    from layermark.backends.base import backend

    rows = []
    for name in sorted(registry.modules("backends")):
        found = backend(name)
        state = f"installed {found.version}".strip() if found.installed else f"missing; {found.install_line}"
        rows.append({"name": name, "summary": state, "installed": found.installed, "by_default": found.by_default})
    return rows


def _devices() -> list[Row]:
    from layermark import registry

    docs = {name: registry.find("devices", name).__doc__ or "" for name in sorted(registry.modules("devices"))}
    return [{"name": name, "summary": doc.split("\n")[0]} for name, doc in docs.items()]


def _sources() -> list[Row]:
    from layermark import registry
    from layermark.data.opening import kind

    return [{"name": name, "summary": kind(name).summary} for name in sorted(registry.modules("sources"))]


def _suites() -> list[Row]:
    from layermark.axes import load_suite, suites

    return [{"name": name, "summary": load_suite(name).description} for name in suites()]


KINDS: dict[str, Callable[[], list[Row]]] = {
    "workloads": _workloads,
    "backends": _backends,
    "devices": _devices,
    "sources": _sources,
    "suites": _suites,
}


def _text(rows: dict[str, list[Row]], *, titled: bool) -> str:
    lines = []
    for kind, each in rows.items():
        lines += [f"{kind}:"] if titled else []
        width = max((len(row["name"]) for row in each), default=0)
        lines += [f"{'  ' if titled else ''}{row['name']:{width}}  {row['summary']}" for row in each]
    return "\n".join(lines)
