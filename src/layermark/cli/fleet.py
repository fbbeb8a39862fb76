"""`layermark fleet`: which machine is sick?"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP, read
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.stats.fleet import Health
    from layermark.store import Store

SUMMARY = "compare machines on the same measurements, and name the one that is sick"

EPILOG = """examples:
  layermark run --suite quick --on ray --everywhere && layermark fleet
  layermark fleet --last 10 --fail-if-slower 10%
  layermark fleet SESSION_A SESSION_B SESSION_C --json

Machines of one kind (CPU model and number) are compared on what they have measured alike, each with the median of the
others. One is sick where it is slower by more than is tolerated, and by more than the noise of all it has measured.
Results of other stores come in with `layermark import`.

exit status: 0 all are fine, 1 one is sick, 2 the request was wrong, 3 something cannot be told"""

LAST = 50


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.usage, parser.epilog = "layermark fleet [SESSION ...] [options]", EPILOG
    parser.add_argument("sessions", nargs="*", metavar="SESSION", help="sessions to read (default: the newest)")
    parser.add_argument("--last", metavar="N", help=f"read the newest N sessions (default: {LAST})")
    parser.add_argument(
        "--fail-if-slower", metavar="SHARE", default="5%", help="the loss that is tolerated (default: 5%%)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per machine")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Judge, print, and return what the worst machine means."""
    from layermark.cli.gate import percentage
    from layermark.stats.fleet import fleet_health, status
    from layermark.store import open_store

    tolerated = read("--fail-if-slower", percentage, args.fail_if_slower)
    with open_store(args.store) as store:
        names = _sessions(args, store)
        found = fleet_health((document for name in names for document in store.documents(name)), tolerated)
        if not found:
            raise UserError(f"store {store.url}: no result in {len(names)} sessions names its machine; {_HINT}")
    if args.json:
        print(*(json.dumps(_document(each)) for each in found), sep="\n")
    else:
        print(_text(found))
    return status(found)


_HINT = "measure with: layermark run --suite quick --on ray --everywhere"


def _sessions(args: Namespace, store: Store) -> list[str]:
    """The names of the sessions that are read, oldest first."""
    from layermark.options import integer

    if args.sessions and args.last:
        raise UserError("expected sessions or --last N, received both; leave one out")
    if args.sessions:
        return [store.session(name).id for name in args.sessions]
    last = read("--last", integer(1), args.last) or LAST
    return [record.id for record in store.sessions()[:last]][::-1]


def _text(found: Sequence[Health]) -> str:
    from layermark.cli.plain import printable, table, titles

    header = ["machine", "answer", "rate", "interval", "measurements", "kind"]
    rows = [[each.machine, each.answer, *_numbers(each), str(each.measurements), each.kind] for each in found]
    lines = [table(header, rows, left=["machine", "answer", "kind"])]
    for each in found:
        lines += [f"{each.machine}: {each.reason}"] if each.reason else []
        names = titles([spec for spec, _ in each.slowest])
        slow = (f"{name} {ratio - 1:+.1%}" for name, (_, ratio) in zip(names, each.slowest, strict=True))
        lines += [f"    slowest: {'; '.join(slow)}"] if each.slowest else []
        lines += [f"    differs: {'; '.join(each.differences)}"] if each.differences else []
    return "\n".join([lines[0], *map(printable, lines[1:]), _summary(found)])


def _numbers(health: Health) -> tuple[str, str]:
    verdict = health.verdict
    if verdict is None:
        return "-", "-"
    return f"{verdict.ratio - 1:+.1%}", f"{verdict.low - 1:+.1%} to {verdict.high - 1:+.1%}"


def _summary(found: Sequence[Health]) -> str:
    counts = {answer: [each.machine for each in found if each.answer == answer] for answer in ("sick", "cannot tell")}
    if counts["sick"]:
        return f"sick: {', '.join(counts['sick'])}"
    if counts["cannot tell"]:
        return f"cannot tell: {', '.join(counts['cannot tell'])}"
    return f"{len(found)} machines, all fine"


def _document(health: Health) -> dict[str, Any]:
    import dataclasses

    slowest = [{"spec": spec.to_json(), "ratio": ratio} for spec, ratio in health.slowest]
    plain = dataclasses.replace(health, slowest=())
    return {**dataclasses.asdict(plain), "slowest": slowest}
