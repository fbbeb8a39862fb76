"""Ports that are kept free for the ranks of a team until they listen on them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType

from layermark.spec import LOOPBACK


class Ports:
    """Some free ports of this host, which nobody else is given as long as this object is open.

    Each is bound by a socket that never listens. That keeps the kernel from giving it to others, while a rank, whose
    runtime sets SO_REUSEADDR as all of them do, can bind it too and listen.
    """

    def __init__(self, count: int) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(count):
            self.hold()

    def __enter__(self) -> Ports:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def hold(self, host: str = "", number: int = 0) -> int:
        """Hold one more port, of this number unless any will do, and return it; raises `OSError` if it is taken."""
        held = socket.socket()
        self._sockets.append(held)
        # Before binding, what has just been closed there is no obstacle; after it, the kernel looks for one all free.
        if number:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, number))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return int(held.getsockname()[1])

    @property
    def numbers(self) -> Sequence[int]:
        """The ports."""
        return [each.getsockname()[1] for each in self._sockets]

    def addresses(self, host: str = LOOPBACK) -> list[str]:
        """Return `host:port` of each."""
        return [f"{host}:{port}" for port in self.numbers]

    def close(self) -> None:
        """Let go of them."""
        for each in self._sockets:
            each.close()
        self._sockets = []


def own_address(towards: str) -> str:
    """Return the address of this host as another one sees it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
