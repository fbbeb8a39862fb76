"""Results: append-only outcomes with their raw samples; derived documents are a cache that can be made again.

Only the interface is imported here. SQLAlchemy comes with the first store that is opened.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from layermark.errors import UserError
from layermark.store.base import LATEST, Imported, Point, Series, SessionRecord, Store

__all__ = [
    "LATEST",
    "MEMORY",
    "Imported",
    "Point",
    "Series",
    "SessionRecord",
    "Store",
    "default_url",
    "open_store",
]

MEMORY = ":memory:"


def default_url() -> str:
    """Return where results go by default: `LAYERMARK_STORE`, else a file in the user's data folder."""
    return os.environ.get("LAYERMARK_STORE") or str(_data_folder() / "layermark" / "results.db")


def open_store(url: str | None = None) -> Store:
    """Open (and create) the store behind a path, `sqlite:///path`, `:memory:` or `postgresql://...`.

    None means the default place.
    """
    from layermark.store.database import Database

    given = url or default_url()
    scheme, mark, rest = given.partition("://")
    if mark and scheme in ("postgresql", "postgres"):
        from layermark.store import postgresql

        return Database(postgresql.opened(f"postgresql://{rest}"))
    if mark and scheme != "sqlite":
        raise UserError(
            f"store {scheme}://...: unknown kind; expected a path, sqlite:///path, {MEMORY} or postgresql://..."
        )
    from layermark.store import sqlite

    # As in SQLAlchemy, `sqlite:///x` is relative and `sqlite:////x` absolute.
    return Database(sqlite.opened((rest.removeprefix("/") or MEMORY) if mark else given))


def _data_folder() -> Path:
    if os.environ.get("XDG_DATA_HOME"):
        return Path(os.environ["XDG_DATA_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path.home() / ".local" / "share"
