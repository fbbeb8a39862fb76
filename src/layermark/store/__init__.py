"""Results: append-only outcomes with their raw samples; derived documents are a cache that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from layermark.errors import UserError
from layermark.store.sqlite import MEMORY, SessionRecord, Store

__all__ = ["SessionRecord", "Store", "default_url", "open_store"]


def default_url() -> str:
    """Where results go by default: `LAYERMARK_STORE`, else a file in the user's data folder."""
    return os.environ.get("LAYERMARK_STORE") or str(_data_folder() / "layermark" / "results.db")


def open_store(url: str | None = None) -> Store:
    """Open (and create) the store behind a path, `sqlite:///path` or `:memory:`; None means the default place."""
    given = url or default_url()
    return Store(_path(given))


def _data_folder() -> Path:
    if os.environ.get("XDG_DATA_HOME"):
        return Path(os.environ["XDG_DATA_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path.home() / ".local" / "share"


def _path(url: str) -> str:
    """The file behind a URL; as in SQLAlchemy, `sqlite:///x` is relative and `sqlite:////x` absolute."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    if scheme != "sqlite":
        raise UserError(f"store {url}: only SQLite is supported; expected a path, sqlite:///path or {MEMORY}")
    return rest.removeprefix("/") or MEMORY
