"""Reading parts of files from any process (the latest descriptors are kept), and writing files whole or not at all."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from layermark.data.base import BadData
from layermark.errors import UserError

_MOST_OPEN = 128
_open: OrderedDict[tuple[int, str, int, int], int] = OrderedDict()


def read_part(path: str, offset: int, count: int) -> bytes:
    """Exactly these bytes, or `BadData` if the file ends before."""
    try:
        data = os.pread(_descriptor(path), count, offset)
    except OSError as error:
        raise BadData(path, f"cannot be read: {error.strerror}") from None
    if len(data) != count:
        raise BadData(path, f"truncated: ends at byte {offset + len(data)}, expected {offset + count}")
    return data


def read_all(path: str) -> bytes:
    """A whole file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadData(path, f"cannot be read: {error.strerror}") from None


def file_facts(path: str | Path) -> os.stat_result:
    """Return size and times of a file; raise `BadData` if it is gone."""
    try:
        return os.stat(path)
    except OSError as error:
        raise BadData(path, f"cannot be read: {error.strerror}") from None


def made_folder(path: Path) -> Path:
    """Return a folder that is there, made if need be; raise `UserError` if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: no folder can be made: {error.strerror}; give another") from None
    return path


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name when it is whole; on a full disk nothing is left but one line."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {error.strerror}; make room, or give another folder") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _descriptor(path: str) -> int:
    """An open file. It is looked up every time (1 us), so that one that is gone or replaced is not read from memory."""
    facts = os.stat(path)
    key = (os.getpid(), path, facts.st_dev, facts.st_ino)  # another process's descriptors are not ours to close
    if key not in _open:
        if len(_open) >= _MOST_OPEN:
            _, oldest = _open.popitem(last=False)
            os.close(oldest)
        _open[key] = os.open(path, os.O_RDONLY)
    _open.move_to_end(key)
    return _open[key]
