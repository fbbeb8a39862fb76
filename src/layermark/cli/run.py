"""`layermark run`: measure workloads on runtimes, over every combination of the given values."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, NamedTuple

from layermark.cli import INTERRUPTED
from layermark.cli.parsing import Parser
from layermark.cli.request import (
    BUDGET_HELP,
    STORE_HELP,
    add_protocol,
    add_setting,
    read_budget,
    read_protocol,
    setting_texts,
    typed,
)
from layermark.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layermark.axes import Suite
    from layermark.spec import Protocol, Spec
    from layermark.store import Store

SUMMARY = "measure layers on every installed runtime, verified, and against the machine's ceilings"

EPILOG = """examples:
  layermark run --suite quick
  layermark run lstm --batch-size 1,64 --mode infer,train
  layermark run conv --execution eager,compile --budget 5m --json
  layermark run --suite quick --on ray --ray-address 10.0.0.1:6379 --everywhere

exit status: 0 all ok or skipped, 1 something failed, 2 the request was wrong, 130 interrupted"""

PROFILE_DIR = "layermark-profiles"
RAY_ADDRESS_HELP = "with --on: the cluster's head (default: $RAY_ADDRESS, else a cluster of this machine alone)"


_SHOWN_S = 0.05
"""Phases that took less are left out of the line that says where the time went."""


class RunRequest(NamedTuple):
    """What is to be measured, how, and what the user should know first."""

    specs: Sequence[Spec]
    protocol: Protocol
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()
    record: Any = None


def configure(parser: Parser) -> None:
    """Declare the options; all but a few come from the records that they fill."""
    parser.usage, parser.epilog = "layermark run [WORKLOAD ...] [--suite NAME|FILE] [options]", EPILOG
    parser.add_argument("--profile", action="store_true", help="after the timing, show where the time goes")
    parser.add_argument("--on", metavar="ray", help="measure on the machines of a Ray cluster, each held whole")
    parser.add_argument("--ray-address", metavar="HOST:PORT", help=RAY_ADDRESS_HELP)
    parser.add_argument(
        "--everywhere", action="store_true", help="with --on: everything on every machine, a session each"
    )
    add_measuring(parser)


def add_measuring(parser: Parser) -> None:
    """Declare what `run` and `profile` share."""
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="layers to measure (layermark list workloads)")
    parser.add_argument("--suite", metavar="NAME|FILE", help="measure what a suite lists; other options override it")
    parser.add_argument("--json", action="store_true", help="print one JSON document per line and outcome")
    parser.add_argument("--budget", metavar="TIME", help=BUDGET_HELP)
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)
    parser.add_argument("--resume", metavar="SESSION", help="go on with a session that was interrupted")
    parser.add_argument(
        "--profile-dir", metavar="FOLDER", default=PROFILE_DIR, help=f"where profiles go (default: {PROFILE_DIR})"
    )
    add_setting(parser)
    add_protocol(parser)


def execute(args: Namespace, argv: Sequence[str], command: str = "run") -> int:
    """Measure, keep and print; return 1 if something failed."""
    budget_s = read_budget(args.budget)
    _check_fleet(args)
    # A wrong request is refused before the slow imports and before a store is touched.
    request = None if args.resume else _run_request(args)
    folder = _profile_folder(args.profile_dir) if args.profile else None

    from layermark import session
    from layermark.store import open_store

    with open_store(args.store) as store:
        request = request or _resumed(args, store)
        try:
            documents = _measured(request, store, budget_s, args, typed(command, argv), folder)
        except session.Interrupted as stop:
            _print(stop.documents, request, store, args)
            print(_interrupted(stop.session_id, args), file=sys.stderr)
            return INTERRUPTED
        _print(documents, request, store, args)
    return int(any(document["status"] == "failed" for document in documents))


def _measured(
    request: RunRequest, store: Store, budget_s: float | None, args: Namespace, line: str, profiles: Path | None
) -> list[dict[str, Any]]:
    from layermark.cli.progress import listening
    from layermark.session import run_session

    with listening(as_json=args.json) as listener:
        for note in request.notes:
            listener.note(note)
        kept = {"store": store, "command": line, "resume": request.record, "listener": listener}
        if args.on:
            documents = _measured_on_fleet(request, kept, budget_s, args)
        else:
            documents = run_session(request.specs, request.protocol, budget_s=budget_s, profiles=profiles, **kept)
        listener.rest(documents)
    return documents


def _measured_on_fleet(
    request: RunRequest, kept: dict[str, Any], budget_s: float | None, args: Namespace
) -> list[dict[str, Any]]:
    from layermark.launch.ray import LOCAL, ray_machines
    from layermark.session.fleet import FleetRequest, run_fleet

    fleet_request = FleetRequest(specs=request.specs, protocol=request.protocol, **kept)
    with ray_machines(args.ray_address or os.environ.get("RAY_ADDRESS") or LOCAL) as machines:
        return run_fleet(fleet_request, machines, budget_s=budget_s, everywhere=args.everywhere)


def _check_fleet(args: Namespace) -> None:
    """Raise `UserError` for options that do not go together with the place where is measured."""
    if args.on not in (None, "ray"):
        raise UserError(f"--on {args.on}: expected ray")
    if not args.on and (args.everywhere or args.ray_address):
        raise UserError(f"{'--everywhere' if args.everywhere else '--ray-address'} goes with --on ray; add it")
    if args.on and args.profile:
        raise UserError("--profile writes files where it is made; leave out --on, and profile on one machine")
    if args.everywhere and args.resume:
        raise UserError("--everywhere begins a session on every machine; leave out --resume")


def _interrupted(sessions: str, args: Namespace) -> str:
    if args.everywhere:
        return f"interrupted; what was complete is kept: {sessions or 'nothing yet'}"
    return f"interrupted; go on with: layermark run --resume {sessions}{' --on ray' if args.on else ''}"


def _profile_folder(name: str) -> Path:
    """Return the folder of the profiles, made if need be: a wrong one is refused before anything is measured."""
    from pathlib import Path

    folder = Path(name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--profile-dir {name}: {error.strerror}; give a folder that can be written") from None
    return folder


def _run_request(args: Namespace) -> RunRequest:
    from layermark.axes import expand, load_suite

    values = setting_texts(args)
    workloads = [name for text in args.workloads for name in text.split(",")]
    if args.suite:
        suite = load_suite(args.suite)
        _check_columns(suite)
        expansion = suite.expand(values, workloads)
        return RunRequest(expansion.specs, read_protocol(args, suite.protocol), expansion.notes, suite.columns)
    if not workloads:
        raise UserError(
            "nothing to measure; type a workload (layermark run lstm) or a suite (layermark run --suite quick)"
        )
    expansion = expand(workloads, values)
    return RunRequest(expansion.specs, read_protocol(args), expansion.notes)


def _check_columns(suite: Suite) -> None:
    from layermark.errors import unknown
    from layermark.report.columns import DETAILS

    for name in suite.columns:
        if name not in DETAILS:
            raise unknown(f"column of suite {suite.name}", name, DETAILS)


def _resumed(args: Namespace, store: Store) -> RunRequest:
    if args.workloads or args.suite or setting_texts(args):
        raise UserError("--resume goes on with what the session was asked for; leave out workloads, suite and settings")
    record = store.session(args.resume)
    return RunRequest(record.specs, record.protocol, record=record)


def _print(documents: Sequence[dict[str, Any]], request: RunRequest, store: Store, args: Namespace) -> None:
    if args.json:
        return
    from layermark import environment
    from layermark.report.profile import render_profiles
    from layermark.report.terminal import render

    spread = store.spread(environment.fingerprint(environment.record()))
    for name, members in _by_session(documents).items():
        if args.everywhere:
            print(f"session {name} on {next(filter(None, map(_machine, members)), 'a machine that gave no result')}")
        render(members, file=sys.stdout, start_spread=spread, details=request.columns)
    render_profiles(documents, sys.stdout)
    if line := wall_line(documents):
        print(line)
    if args.on:
        print(machine_line(documents))
    print(f"results: {store.url}")


def _by_session(documents: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        found.setdefault(document["session"], []).append(document)
    return found or {"": []}


def _machine(document: dict[str, Any]) -> str:
    from layermark.stats.fleet import machine_name

    return machine_name(document["environment"])


def machine_line(documents: Sequence[dict[str, Any]]) -> str:
    """Return how many results each machine gave.

    >>> machine_line([{"environment": each} for each in ({"host": "a"}, {"host": "a", "node": "b"}, None)])
    'machines: a 1, b 1'
    """
    from collections import Counter

    counts = Counter(name for document in documents if (name := _machine(document)))
    return f"machines: {', '.join(f'{name} {count}' for name, count in sorted(counts.items())) or 'none'}"


def wall_line(documents: Sequence[dict[str, Any]]) -> str:
    """Return where the time went, by phase, all measurements together; empty where nothing is known of it.

    >>> wall_line([{"wall_s": {"import": 1.0, "quiet": 0.0, "timed": 2.0}}, {"wall_s": {"timed": 2.5}}])
    'time: 5.5 s: import 1.0, timed 4.5'
    """
    sums: dict[str, float] = {}
    for document in documents:
        for name, taken in (document["wall_s"] or {}).items():
            sums[name] = sums.get(name, 0.0) + taken
    parts = [f"{name.replace('_', '-')} {taken:.1f}" for name, taken in sums.items() if taken >= _SHOWN_S]
    return f"time: {sum(sums.values()):.1f} s: {', '.join(parts)}" if parts else ""
