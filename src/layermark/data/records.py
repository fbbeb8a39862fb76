"""The framing of TFRecord files: length, checksum of the length, data, checksum of the data."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from layermark.data.base import BadData, needed
from layermark.data.files import read_part, written

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
HEADER = _LENGTH.size + _CHECKSUM.size
_MASK = 0xA282EAD8

Span = tuple[int, int]
"""Where the data of a record begin in the file, and how long they are."""


def masked_crc(data: bytes) -> int:
    """CRC-32C, turned by 15 bits and moved: a checksum of data that hold checksums would otherwise be weak.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc = int(needed("google_crc32c").value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write a file of records and return how many."""
    count = 0
    with written(path) as file:
        for data in records:
            length = _LENGTH.pack(len(data))
            file.write(length + _CHECKSUM.pack(masked_crc(length)) + data + _CHECKSUM.pack(masked_crc(data)))
            count += 1
    return count


def spans(path: str, size: int) -> Iterator[Span]:
    """Where the records of a file of this size are. Only their headers are read; `BadData` where one is broken."""
    place = 0
    while place < size:
        if place + HEADER > size:
            raise BadData(path, f"truncated: a record begins at byte {place}, the file ends at {size}")
        header = read_part(path, place, HEADER)
        _check(path, place, "length", header[:8], header[8:])
        (length,) = _LENGTH.unpack(header[:8])
        end = place + HEADER + length + _CHECKSUM.size
        if end > size:
            raise BadData(path, f"truncated: the record at byte {place} ends at {end}, the file at {size}")
        yield place + HEADER, length
        place = end


def read_record(path: str, span: Span) -> bytes:
    """The data of a record, checked."""
    start, length = span
    data = read_part(path, start, length + _CHECKSUM.size)
    _check(path, start - HEADER, "data", data[:length], data[length:])
    return data[:length]


def _check(path: str, place: int, what: str, data: bytes, stored: bytes) -> None:
    if masked_crc(data) != _CHECKSUM.unpack(stored)[0]:
        raise BadData(path, f"the {what} of the record at byte {place} does not match its checksum")
