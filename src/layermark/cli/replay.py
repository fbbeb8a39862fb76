"""`layermark replay`: measure a stored result again, and say whether it was reproduced."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser
from layermark.cli.request import BUDGET_HELP, STORE_HELP, read_budget, typed
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.spec import Protocol, Spec
    from layermark.store import Store

SUMMARY = "measure a stored result again and say whether it was reproduced"

EPILOG = """examples:
  layermark replay latest
  layermark replay 20260101-120000-abcd/3f2a

A session is measured again as a whole, or only the result whose key (layermark history) begins as given. Reproduced
means: no more different than both noise floors, both intervals and the spread between starts explain. Exit status 1
if one was not reproduced."""

Document = Mapping[str, Any]


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument("result", metavar="RESULT", help="SESSION, or SESSION/KEY for one of its results")
    parser.add_argument("--budget", metavar="TIME", help=BUDGET_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON document per result")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Measure again and print a line for every result."""
    from layermark.store import open_store

    budget_s = read_budget(args.budget)
    with open_store(args.store) as store:
        session_id, _, key = args.result.partition("/")
        stored = _stored(store, session_id, key)
        protocol = store.session(session_id).protocol
        again = _measured(store, list(stored), protocol, budget_s, argv)
        answers = [_answer(store, document, again.get(spec)) for spec, document in stored.items()]
    for answer in answers:
        print(json.dumps(answer) if args.json else _line(answer))
    return int(not all(answer["reproduced"] for answer in answers))


def _stored(store: Store, session_id: str, key: str) -> dict[Spec, Document]:
    from layermark.spec import Spec

    measured = [each for each in store.documents(session_id) if each["status"] == "ok"]
    found: dict[Spec, Document] = {Spec.from_json(each["spec"]): each for each in measured}
    chosen = {spec: each for spec, each in found.items() if spec.key.startswith(key)}
    if not found:
        raise UserError(f"session {session_id} holds no result that was measured")
    if not chosen:
        raise UserError(
            f"session {session_id} holds no result {key!r}; its keys: {', '.join(spec.key[:8] for spec in found)}"
        )
    return chosen


def _measured(
    store: Store, specs: Sequence[Spec], protocol: Protocol, budget_s: float | None, argv: Sequence[str]
) -> dict[Spec, Document]:
    from layermark import session
    from layermark.cli.progress import listening
    from layermark.spec import Spec

    command = typed("replay", argv)
    with listening(as_json=False) as listener:
        documents = session.run_session(
            specs, protocol, store=store, budget_s=budget_s, command=command, listener=listener
        )
    return {Spec.from_json(each["spec"]): each for each in documents}


def _answer(store: Store, stored: Document, again: Document | None) -> dict[str, Any]:
    from layermark import environment, stats
    from layermark.spec import Spec

    head = {"spec": stored["spec"], "key": Spec.from_json(stored["spec"]).key, "session": stored["session"]}
    if again is None or again["status"] != "ok":
        reason = again["reason"] if again else "not measured"
        return {**head, "again": again and again["session"], "reproduced": False, "reason": reason, "differences": []}
    spread = store.spread(environment.fingerprint(environment.record()))
    verdict = stats.compare_documents(stored, again, spread)
    return {
        **head,
        "again": again["session"],
        "reproduced": verdict.answer == "cannot tell",
        "reason": "",
        "stored": stored["throughput"],
        "measured": again["throughput"],
        "ratio": verdict.ratio,
        "within": verdict.noise_floor,
        "differences": stats.differences(stored["environment"], again["environment"]),
    }


def _line(answer: Document) -> str:
    from layermark.cli.plain import titles
    from layermark.report.text import human, one_line
    from layermark.spec import Spec

    name = titles([Spec.from_json(answer["spec"])])[0]
    if answer["reason"]:
        return one_line(f"not reproduced: {name}: {answer['reason']}")
    head = "reproduced" if answer["reproduced"] else "not reproduced"
    rates = (
        f"{human(answer['stored']['value'])} then, {human(answer['measured']['value'])} {answer['stored']['unit']} now"
    )
    told = f"{rates} ({answer['ratio'] - 1:+.1%}), within +-{answer['within']:.1%} counts as the same"
    changed = f"; what else changed: {'; '.join(answer['differences'])}" if answer["differences"] else ""
    return one_line(f"{head}: {name}: {told}{changed}")
