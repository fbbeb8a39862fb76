"""`tf.train.Example` as bytes: a map from names to lists of bytes, floats or whole numbers.

Example { 1: Features { 1: repeated entry { 1: name, 2: Feature { 1: bytes | 2: floats | 3: int64s } } } }, each of the
three lists being a message whose field 1 is repeated; numbers may be packed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

Values = Sequence[bytes] | Sequence[float] | Sequence[int]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOATS, _INTEGERS = 2, 3
_SIGN, _WRAP = 1 << 63, 1 << 64


class Malformed(ValueError):
    """Bytes that are no such message."""


def encode(features: Mapping[str, Values]) -> bytes:
    """The message; the type of the first value decides the kind of list.

    >>> decode(encode({"a": [b"x"], "b": [1, -2], "c": [0.5]}))
    {'a': [b'x'], 'b': [1, -2], 'c': [0.5]}
    """
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(values))) for name, values in sorted(features.items())
    )
    return _field(1, entries)


def decode(data: bytes) -> dict[str, list[bytes] | list[float] | list[int]]:
    """The map; raises `Malformed`."""
    found = {}
    for _, _, features in _fields(memoryview(data), 1):
        for _, _, entry in _fields(_message(features), 1):
            parts = {number: value for number, _, value in _fields(_message(entry))}
            if 1 in parts and 2 in parts:
                found[_text(parts[1])] = _values(_message(parts[2]))
    return found


def _feature(values: Values) -> bytes:
    first = values[0] if values else b""
    if isinstance(first, bytes):
        return _field(1, b"".join(_field(1, each) for each in values))  # type: ignore[arg-type]
    if isinstance(first, float):
        return _field(_FLOATS, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _field(_INTEGERS, _field(1, b"".join(_varint(int(each) % _WRAP) for each in values)))


def _values(feature: memoryview) -> list[bytes] | list[float] | list[int]:
    for kind, _, body in _fields(feature):
        items = list(_fields(_message(body), 1))
        if kind == _FLOATS:
            return [each for _, wire, value in items for each in _floats(wire, value)]
        if kind == _INTEGERS:
            return [each for _, wire, value in items for each in _integers(wire, value)]
        return [bytes(_message(value)) for _, _, value in items]
    return []


def _floats(wire: int, value: memoryview | int) -> tuple[float, ...]:
    if wire == _FIXED32 and isinstance(value, int):
        return struct.unpack("<f", value.to_bytes(4, "little"))
    body = _message(value)
    if len(body) % 4:
        raise Malformed("a list of floats has a length that is no multiple of four")
    return struct.unpack(f"<{len(body) // 4}f", body)


def _integers(wire: int, value: memoryview | int) -> Iterator[int]:
    if isinstance(value, int):
        yield _signed(value)
        return
    place = 0
    while place < len(value):
        number, place = _read_varint(value, place)
        yield _signed(number)


def _signed(value: int) -> int:
    return value - _WRAP if value >= _SIGN else value


def _text(value: memoryview | int) -> str:
    try:
        return bytes(_message(value)).decode()
    except UnicodeDecodeError:
        raise Malformed("the name of a feature is not UTF-8") from None


def _message(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise Malformed("a number stands where a message should be")
    return value


def _fields(data: memoryview, only: int = 0) -> Iterator[tuple[int, int, memoryview | int]]:
    """Every field as (number, wire type, value), or only those of one number."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        number, wire = key >> 3, key & 7
        value, place = _read_value(data, place, wire)
        if only in (0, number):
            yield number, wire, value


def _read_value(data: memoryview, place: int, wire: int) -> tuple[memoryview | int, int]:
    if wire == _VARINT:
        return _read_varint(data, place)
    if wire == _BYTES:
        length, place = _read_varint(data, place)
    elif wire in (_FIXED32, _FIXED64):
        length = 4 if wire == _FIXED32 else 8
    else:
        raise Malformed(f"wire type {wire} at byte {place}")
    if place + length > len(data):
        raise Malformed(f"a field at byte {place} ends beyond its message")
    part = data[place : place + length]
    return (part if wire == _BYTES else int.from_bytes(part, "little")), place + length


def _read_varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if place >= len(data):
            raise Malformed("a number ends beyond its message")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise Malformed("a number of more than 64 bits")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(body)) + body
