"""Framed JSON messages over a socket: the only thing that crosses between parent and worker."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

VERSION = 1
_HEADER = struct.Struct(">I")
_LARGEST = 1 << 28


class Closed(Exception):
    """The other end is gone."""


class Channel:
    """One end of the line. `receive` sleeps until a whole message is there."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; raises `Closed` if nobody is there to take it."""
        body = json.dumps({"version": VERSION, **message}).encode()
        if self._line.fileno() < 0:
            raise Closed
        self._line.settimeout(None)
        try:
            self._line.sendall(_HEADER.pack(len(body)) + body)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message; raises `Closed` at the end of the line and `TimeoutError` when nothing came."""
        self._line.settimeout(timeout)
        (length,) = _HEADER.unpack(self._exactly(_HEADER.size))
        if length > _LARGEST:
            raise Closed(f"a message of {length} bytes is not one of ours")
        message: dict[str, Any] = json.loads(self._exactly(length))
        if message.get("version") != VERSION:
            raise Closed(f"the other end speaks version {message.get('version')}, this one {VERSION}")
        return message

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            try:
                part = self._line.recv(min(count, 1 << 20))
            except ConnectionResetError:
                raise Closed from None
            if not part:
                raise Closed
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def fileno(self) -> int:
        """The descriptor of the line."""
        return self._line.fileno()

    def close(self) -> None:
        """Hang up."""
        self._line.close()
