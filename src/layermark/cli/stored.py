"""Results that are kept: in a session of the store, or in a file of `layermark export` or `layermark run --json`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.spec import Spec
    from layermark.store import Store


def two_sides(store: Store, a: str, b: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the documents of two sessions or files."""
    return _documents(store, a), _documents(store, b)


def note_new(specs: Sequence[Spec], side: str) -> None:
    """Say on stderr what only the second side has measured: there is nothing to compare it with."""
    from layermark.cli.plain import titles

    for name in titles(specs):
        print(f"layermark: note: new in {side}, nothing to compare it with: {name}", file=sys.stderr)


def _documents(store: Store, name: str) -> list[dict[str, Any]]:
    """The documents of a session, or of a file: as they are there, or derived from raw records."""
    from layermark.cli.import_ import records

    if not Path(name).is_file():
        return store.documents(name)
    found = [document for place, record in records(name) if (document := _document(record, place))]
    if not found:
        raise UserError(f"{name}: holds no result")
    return found


def _document(record: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    from layermark import outcome, stats

    if record.get("layermark") == "session":
        return None
    try:
        if record.get("layermark") == "outcome":
            measured = outcome.from_json(record["record"])
            return stats.document(measured, session=record["session"], rank=record["rank"])
        later = {"profile": None, **record}  # documents of the first release have no such key
        return {name: later[name] for name in stats.KEYS}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{place}: not a result ({type(error).__name__}: {error})") from None
