"""Reading parts of files from any process: descriptors are opened on first use, and the latest are kept."""

from __future__ import annotations

import os
from collections import OrderedDict

from layermark.data.base import BadData

_MOST_OPEN = 128
_open: OrderedDict[tuple[int, str], int] = OrderedDict()


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


def _descriptor(path: str) -> int:
    key = (os.getpid(), path)  # what was inherited from another process is not ours to close
    if key not in _open:
        if len(_open) >= _MOST_OPEN:
            _, oldest = _open.popitem(last=False)
            os.close(oldest)
        _open[key] = os.open(path, os.O_RDONLY)
    _open.move_to_end(key)
    return _open[key]
