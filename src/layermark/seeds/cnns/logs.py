"""The folder that a run of a CNN program leaves behind: its options, what it printed, its results."""

from __future__ import annotations

import csv
import json
import secrets
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.errors import UserError

LOG = "log.txt"


class Log:
    """A folder, or nowhere. What is said is printed, and appended to a file there."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = f"cannot write into {folder}: {error.strerror}"
                raise UserError(f"{reason}; expected a folder for the log") from None

    def say(self, line: str) -> None:
        """Print a line at once and keep it."""
        print(line, flush=True)
        if self.folder is not None:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def options(self, name: str, values: Mapping[str, Any]) -> None:
        """Write all options down."""
        if self.folder is not None:
            text = json.dumps(dict(values), indent=2, sort_keys=True, default=str)
            (self.folder / name).write_text(f"{text}\n", encoding="utf-8")

    def row(self, name: str, cells: Mapping[str, object]) -> None:
        """Append a row to a table; the first one writes the names above it."""
        if self.folder is None:
            return
        path = self.folder / name
        with path.open("a", encoding="utf-8", newline="") as file:
            lines: list[Sequence[object]] = [list(cells.values())]
            csv.writer(file).writerows([list(cells), *lines] if path.stat().st_size == 0 else lines)


def ending() -> str:
    """Three characters that keep two runs of the same options apart."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(3))
