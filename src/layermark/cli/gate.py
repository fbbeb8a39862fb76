"""`layermark gate`: may a change go in?"""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser
from layermark.cli.request import (
    BUDGET_HELP,
    STORE_HELP,
    add_protocol,
    add_setting,
    read,
    read_budget,
    read_protocol,
    setting_texts,
)
from layermark.cli.setting import are_settings, check_answers, settings
from layermark.errors import Unsupported, UserError, WorkerFailed

if TYPE_CHECKING:
    from layermark.session import Listener, Side
    from layermark.session.deadline import Deadline
    from layermark.spec import Protocol, Spec
    from layermark.stats.gate import Finding

SUMMARY = "say whether a change made anything slower, for CI"

EPILOG = """examples:
  layermark gate --base main dense,lstm --backend torch
  layermark gate --base v1.2 --suite quick --fail-if-slower 5% --junit gate.xml
  layermark gate "dense,lstm --threads 2" "dense,lstm --threads 1" --backend torch
  layermark gate SESSION_A SESSION_B
  layermark gate before.jsonl after.jsonl --markdown gate.md

With --base, the working tree of this Git project is measured against a commit of it: processes of the base, of the
base again and of the change take turns block by block, in an order drawn anew in every round. The base against itself
says what this machine can tell. Where processes of both cannot be alive at once (memory, a base that is too old),
every round starts each of the three anew. Two quoted settings are measured in the same way, A as the base and B as the
change; options after them apply to both. Else A and B are stored sessions, or files of `layermark export` or of
`layermark run --json`.

exit status: 0 nothing is slower, 1 something is, 2 the request was wrong, 3 something cannot be told"""

ROUNDS = 8
TIME_BOX = "2s"


def configure(parser: Parser) -> None:
    """Declare the options; with --base or in settings, those of `run` say what is measured."""
    parser.usage, parser.epilog = "layermark gate (--base REF [WORKLOAD ...] | A B) [options]", EPILOG
    parser.add_argument(
        "names", nargs="*", metavar="WORKLOAD|A B", help="workloads with --base, else two settings, sessions or files"
    )
    parser.add_argument(
        "--base", metavar="REF", help="the commit, branch or tag that the working tree is measured against"
    )
    parser.add_argument("--suite", metavar="NAME|FILE", help="measure what a suite lists (with --base)")
    parser.add_argument(
        "--fail-if-slower", metavar="SHARE", default="3%", help="the loss that is tolerated (default: 3%%)"
    )
    parser.add_argument(
        "--rounds", metavar="N", default=str(ROUNDS), help=f"most rounds of each measurement (default: {ROUNDS})"
    )
    parser.add_argument("--budget", metavar="TIME", help=BUDGET_HELP)
    parser.add_argument("--junit", metavar="FILE", help="write the findings as JUnit XML as well")
    parser.add_argument("--markdown", metavar="FILE", help="write the findings as a Markdown table as well")
    parser.add_argument("--json", action="store_true", help="print one JSON document per measurement")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)
    add_setting(parser)
    add_protocol(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Judge, print, write, and return what the worst finding means."""
    from layermark.stats.gate import status

    tolerated = read("--fail-if-slower", percentage, args.fail_if_slower)
    findings = _findings(args, tolerated)
    _write(findings, args)
    return status(findings)


def _findings(args: Namespace, tolerated: float) -> list[Finding]:
    if args.base:
        return _checkouts(args, tolerated)
    if len(args.names) != 2:
        raise UserError(
            "expected --base REF and what to measure, or two settings, sessions or files: layermark gate A B"
        )
    return _settings(args, tolerated) if are_settings(*args.names) else _stored(args, tolerated)


def percentage(text: str) -> float:
    """Return a share that is written in per cent or as a number.

    >>> percentage("3%"), percentage("0.05")
    (0.03, 0.05)
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if "%" in text else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ValueError("expected a share between 0 and 100%, such as 3%")
    return value


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What is asked of every pair of sides."""

    protocol: Protocol
    rounds: int
    tolerated: float
    budget_s: float | None
    """Of each measurement."""
    listener: Listener
    measurements: int
    """How many the whole gate has."""


def _checkouts(args: Namespace, tolerated: float) -> list[Finding]:
    from layermark.launch.checkout import checkout, project
    from layermark.session import Side

    limits, (specs, protocol) = _limits(args), _specs_and_protocol(args)
    root = project(Path.cwd())
    with checkout(root, args.base) as base:
        pairs = [(Side(spec=spec, root=base), Side(spec=spec, root=root)) for spec in specs]
        return _alternated(pairs, protocol, limits, tolerated)


def _settings(args: Namespace, tolerated: float) -> list[Finding]:
    """Judge the second setting by the first, workload by workload."""
    from layermark.session import Side

    if args.suite:
        raise UserError("a suite goes with --base REF; leave it out between two settings")
    first, second = (settings(text, setting_texts(args)) for text in args.names)
    if [each.workload for each in first] != [each.workload for each in second]:
        told = " and ".join(map(_told, (first, second)))
        raise UserError(f"two settings of a gate need the same workloads, one measurement for one; received {told}")
    for a, b in zip(first, second, strict=True):
        check_answers(a, b)
    pairs = [(Side(spec=a), Side(spec=b)) for a, b in zip(first, second, strict=True)]
    return _alternated(pairs, read_protocol(args, {"time_box": TIME_BOX}), _limits(args), tolerated)


def _told(specs: Sequence[Spec]) -> str:
    names = list(dict.fromkeys(each.workload for each in specs))
    count = f" ({len(specs)} measurements)" if len(specs) > len(names) else ""
    return ",".join(names) + count


def _limits(args: Namespace) -> tuple[int, float | None]:
    """The most rounds of a measurement, and the seconds of the whole gate."""
    from layermark.options import integer
    from layermark.stats.gate import MIN_ROUNDS

    return read("--rounds", integer(MIN_ROUNDS), args.rounds), read_budget(args.budget)


def _alternated(
    pairs: Sequence[tuple[Side, Side]], protocol: Protocol, limits: tuple[int, float | None], tolerated: float
) -> list[Finding]:
    from layermark.cli.progress import listening

    rounds, budget_s = limits
    with listening(as_json=False) as listener:
        listener.started(len(pairs))
        request = GateRequest(
            protocol=protocol,
            rounds=rounds,
            tolerated=tolerated,
            budget_s=budget_s and budget_s / max(1, len(pairs)),
            listener=listener,
            measurements=len(pairs),
        )
        return [_judged(base, change, request) for base, change in pairs]


def _specs_and_protocol(args: Namespace) -> tuple[Sequence[Spec], Protocol]:
    from layermark.axes import expand, load_suite

    values = setting_texts(args)
    workloads = [name for text in args.names for name in text.split(",")]
    if not workloads and not args.suite:
        raise UserError("nothing to measure; type a workload (layermark gate --base main lstm) or --suite quick")
    suite = load_suite(args.suite) if args.suite else None
    expansion = suite.expand(values, workloads) if suite else expand(workloads, values)
    return expansion.specs, read_protocol(args, {"time_box": TIME_BOX, **(suite.protocol if suite else {})})


def _judged(base: Side, change: Side, request: GateRequest) -> Finding:
    """Judge one measurement: in one alternation where that can be done, else in whole processes."""
    from layermark.session import gate_sides
    from layermark.session.deadline import Deadline

    deadline, spec = Deadline(request.budget_s), change.spec
    try:
        return gate_sides(
            base,
            change,
            request.protocol,
            request.tolerated,
            rounds=request.rounds,
            budget_s=request.budget_s,
            listener=request.listener,
            measurements=request.measurements,
        )
    except (Unsupported, WorkerFailed) as failure:
        request.listener.note(f"{spec.workload} on {spec.backend}: a process at a time, not in alternation ({failure})")
    return _in_whole_processes(base, change, request, deadline)


def _in_whole_processes(base: Side, change: Side, request: GateRequest, deadline: Deadline) -> Finding:
    from layermark.stats.gate import MIN_ROUNDS, gate_rounds, not_measured

    spec = change.spec
    try:
        rounds = _rounds({"base": base, "base again": base, "change": change}, request, deadline)
    except WorkerFailed as error:
        return not_measured(spec, error.reason)
    request.listener.finished(rounds[-1]["change"])
    if len(rounds) < MIN_ROUNDS:
        done = f"the budget ended after {len(rounds)} of the {MIN_ROUNDS} rounds that a gate needs"
        return not_measured(spec, f"{done}; give a longer --budget")
    once, again, changed = ([each[name] for each in rounds] for name in ("base", "base again", "change"))
    return gate_rounds(spec, once, again, changed, request.tolerated, request.measurements)


def _rounds(sides: Mapping[str, Side], request: GateRequest, deadline: Deadline) -> list[dict[str, dict[str, Any]]]:
    """Measure all rounds, or as many as end within the budget: none begins that takes longer than is left."""
    done: list[dict[str, dict[str, Any]]] = []
    longest = 0.0
    for order in _orders(list(sides), request.rounds):
        if done and deadline.left() <= longest:
            break
        began, found = deadline.now(), {}
        for name in order:
            request.listener.phase(sides[name].spec, f"round {len(done) + 1} of {request.rounds}: {name}")
            found[name] = _measured(sides[name], request.protocol)
        done.append(found)
        longest = max(longest, deadline.now() - began)
    return done


def _measured(side: Side, protocol: Protocol) -> dict[str, Any]:
    from layermark.launch.checkout import measure_in

    document = measure_in(side.root, side.spec, protocol)
    if document["status"] != "ok":
        raise WorkerFailed(f"{document['status']}: {document['reason']}", document["log"] or "")
    return document


def _orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    chance = random.Random(0)
    return (chance.sample(list(names), len(names)) for _ in range(rounds))


def _stored(args: Namespace, tolerated: float) -> list[Finding]:
    from layermark import environment
    from layermark.cli.stored import note_new, two_sides
    from layermark.stats.gate import SIDES, gate_matching
    from layermark.stats.pairing import match
    from layermark.store import open_store

    if setting_texts(args) or args.suite:
        raise UserError("stored results are compared as they were measured; leave the settings out, or add --base REF")
    with open_store(args.store) as store:
        a, b = two_sides(store, *args.names)
        spread = store.spread(environment.fingerprint(environment.record()))
    matching = match(a, b, SIDES)
    findings = gate_matching(matching, tolerated, spread)
    note_new(matching.new, "the change")
    return findings


def _write(findings: Sequence[Finding], args: Namespace) -> None:
    from layermark.cli.plain import titles
    from layermark.report.gate import as_document, as_junit, as_markdown, as_text

    names = titles([each.spec for each in findings])
    for path, text in ((args.junit, as_junit), (args.markdown, as_markdown)):
        if path:
            _save(path, text(findings, names) + "\n")
    if args.json:
        print(*(json.dumps(as_document(each)) for each in findings), sep="\n")
    else:
        print(as_text(findings, names))


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give another path") from None
