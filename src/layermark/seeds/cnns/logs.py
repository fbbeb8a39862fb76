"""The folder that a run of a CNN program leaves behind: its options, what it printed, its results."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layermark.errors import UserError

LOG = "log.txt"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Log:
    """A folder, or nowhere. What is said is printed, given to `echo`, and appended to a file there."""

    def __init__(self, folder: Path | None, echo: Callable[[str], None] | None = None) -> None:
        self.folder, self._echo = folder, echo
        if folder is not None:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def say(self, line: str) -> None:
        """Print a line at once and keep it."""
        print(line, flush=True)
        if self._echo is not None:
            self._echo(line)
        if self.folder is not None:
            _append(self.folder / LOG, f"{line}\n")

    def options(self, name: str, values: Mapping[str, Any]) -> None:
        """Write all options down, unless they stand there already."""
        if self.folder is not None:
            text = json.dumps(dict(values), indent=2, sort_keys=True, default=str)
            _replace(self.folder / name, f"{text}\n")

    def row(self, name: str, cells: Mapping[str, object]) -> None:
        """Append a row to a table; the first one writes the names above it."""
        if self.folder is None:
            return
        path = self.folder / name
        with _writing(path):
            begun = path.is_file() and path.stat().st_size > 0
        _append(path, _table([cells], header=not begun))

    def keep_rows(self, name: str, column: str, most: int) -> list[dict[str, str]]:
        """Take the rows out of a table whose number in a column is above this one: a run does them again.

        A last row that a kill left half written goes, too. Returns what is kept.
        """
        if self.folder is None or not (path := self.folder / name).is_file():
            return []
        with _writing(path):
            text = path.read_bytes().decode()
        whole = text[: text.rfind("\n") + 1]
        rows = list(csv.DictReader(io.StringIO(whole, newline="")))
        kept = [row for row in rows if float(row[column] or 0) <= most]
        if kept != rows or whole != text:
            _replace(path, _table(kept))
        return kept


def _table(rows: list[Mapping[str, object]] | list[dict[str, str]], *, header: bool = True) -> str:
    """Rows as they stand in a file; without any, an empty one."""
    text = io.StringIO(newline="")
    lines = [list(row.values()) for row in rows]
    csv.writer(text).writerows([list(rows[0]), *lines] if header and rows else lines)
    return text.getvalue()


def _append(path: Path, text: str) -> None:
    with _writing(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    """Write a file beside its place and rename it, so that there is always a whole one; none that is equal."""
    part = path.with_name(f"{path.name}.part")
    with _writing(path):
        if path.is_file() and path.read_bytes() == text.encode():
            return
        with part.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what a disk refuses into one line."""
    try:
        yield
    except OSError as error:
        fix = "free some space" if error.errno in _FULL else "see that it can be written to"
        raise UserError(
            f"cannot write {path}: {error.strerror}; {fix}, or choose another folder (--log-dir, --logs-path)"
        ) from None


def ending() -> str:
    """Three characters that distinguish two runs of the same options."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(3))
