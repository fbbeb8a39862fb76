"""`layermark prune`: remove old sessions."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from layermark.cli.parsing import Parser
from layermark.cli.request import STORE_HELP, read
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.store import SessionRecord, Store

SUMMARY = "remove old sessions from the store"

EPILOG = """examples:
  layermark prune --keep 100
  layermark prune --older-than 90d --dry-run
  layermark prune --older-than 2026-01-01 --keep 20

With both, what is older goes, but never one of the newest that are kept. Whole sessions go, in one transaction."""

_DAYS = {"d": 1, "w": 7, "y": 365}


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument("--keep", metavar="N", help="keep the newest N sessions")
    parser.add_argument("--older-than", metavar="AGE", help="remove what is older than 90d, 12w, 2y or a date")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--store", metavar="URL", help=STORE_HELP)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Remove the sessions and print their names."""
    from layermark.options import integer
    from layermark.store import open_store

    keep, before = read("--keep", integer(0), args.keep), read("--older-than", moment, args.older_than)
    if keep is None and before is None:
        raise UserError("nothing to remove; type --keep N, or --older-than AGE such as 90d")
    with open_store(args.store) as store:
        gone = [record.id for record in chosen(store.sessions(), keep or 0, before)]
        if gone and not args.dry_run:
            store.prune(gone)
            _compact(store)
    print(*gone, f"{'would remove' if args.dry_run else 'removed'} {len(gone)} sessions", sep="\n")
    return 0


def _compact(store: Store) -> None:
    """What was to be removed is gone by now, whether its room can be given back or not."""
    try:
        store.compact()
    except UserError as error:
        print(f"layermark: note: {error}", file=sys.stderr)


def chosen(newest_first: Sequence[SessionRecord], keep: int, before: datetime | None) -> list[SessionRecord]:
    """Return the sessions after the first `keep` that were created before a moment; None means whenever."""
    return [each for each in newest_first[keep:] if before is None or datetime.fromisoformat(each.created) < before]


def moment(text: str) -> datetime:
    """Return the moment that an age or a date means.

    >>> moment("2026-01-31").isoformat()
    '2026-01-31T00:00:00+00:00'
    """
    age = re.fullmatch(r"(\d+)([dwy])", text.strip())
    try:
        if age:
            return datetime.now(UTC) - timedelta(days=int(age[1]) * _DAYS[age[2]])
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ValueError("expected an age such as 90d, 12w or 2y, or a date such as 2026-01-31") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
