"""Files that can always be made again, kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent
# What every answer of the reference and every calibration depends on.
_CODE = (
    "reference.py",
    "laws.py",
    "graph.py",
    "ops/*.py",
    "training/*.py",
    "safetensors.py",
    "workloads/**/*.py",
    "worker/oracle.py",
    "worker/reference_updates.py",
)


def folder(name: str) -> Path:
    """Where the files of one kind are kept; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "layermark" / name


@cache
def code_version() -> str:
    """A digest of the code that cached files depend on: an edited reference never meets a stale answer."""
    digest = hashlib.sha256()
    for pattern in _CODE:
        for file in sorted(_ROOT.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write to; the file appears under its own name when it is complete, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process at a time make a file; who waited may find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def make_room(place: Path, most_bytes: int) -> None:
    """Delete what was not used for longest, until the rest is small enough; others may write and delete meanwhile."""
    found = []
    for file in place.glob("*.*"):
        with suppress(FileNotFoundError):  # somebody has just finished it, or made room
            facts = file.stat()
            found.append((facts.st_mtime, facts.st_size, file))
    total = 0
    for _, size, file in sorted(found, reverse=True):
        total += size
        if total > most_bytes:
            file.unlink(missing_ok=True)
