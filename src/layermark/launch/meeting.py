"""The serving side of a rendezvous, in instance 0: one thread for each instance, one state behind a lock."""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from layermark.worker.channel import Channel, Closed

_INTRODUCTION_S = 5.0
LINGER_S = 1.5
"""How long those who see another one fail stay, so that the launcher learns first whose fault it was."""


class Meeting:
    """Replies to a collective call once every instance has made it; all fail when one cannot."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        size: int,
        join_s: float,
        prepare: Callable[[socket.socket], object],
        expected: Callable[[str], str],
    ) -> None:
        self._listener = listener
        self._size = size
        self._prepare = prepare
        self._expected = expected
        self._members: dict[int, Channel] = {}
        self._left: set[int] = set()
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._failure = ""
        self._changed = threading.Condition()
        self._ends = math.inf
        """When the timer of a collective call ends, on the monotonic clock."""
        self._timer = self._after(join_s, lambda: self._late_to_join(join_s))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Where instance 0 reaches itself."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def end(self, patience_s: float) -> None:
        """Wait until everybody has left, a failure is known or patience ends; then stop listening.

        After a failure the lines stay open until this process ends: their end is how others learn of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or len(self._left) == self._size, patience_s)
            self._timer.cancel()
            # Shutting down, not closing, is what wakes the thread that sleeps in accept().
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for channel in [] if self._failure else self._members.values():
                channel.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._attend, args=[line], daemon=True).start()

    def _attend(self, line: socket.socket) -> None:
        """Serve one connection from its introduction to its end; strangers are hung up on."""
        channel = Channel(line)
        try:
            self._prepare(line)
            rank = self._introduced(channel)
        except (Closed, OSError, ValueError, KeyError, TypeError):
            channel.close()
            return
        try:
            while self._handle(rank, channel.receive()):
                pass
        except (Closed, OSError, ValueError):
            self._fail(f"instance {rank} is gone: it ended, or the link to it was cut", unless_left=rank, linger=True)

    def _introduced(self, channel: Channel) -> int:
        """The rank at the other end, once it has shown that it belongs to this job."""
        challenge = secrets.token_hex(16)
        channel.send({"challenge": challenge})
        hello = channel.receive(_INTRODUCTION_S)
        rank = int(hello["rank"])
        if not hmac.compare_digest(str(hello["proof"]), self._expected(challenge)):
            raise Closed("not of this job")
        with self._changed:
            if hello["size"] != self._size or not 0 <= rank < self._size or rank in self._members:
                raise Closed("no such instance is expected")
            channel.send({"welcome": True})
            self._members[rank] = channel
            if self._failure:
                self._send(rank, {"failed": self._failure})
            elif len(self._members) == self._size:
                self._timer.cancel()
                self._reply(dict.fromkeys(self._members))
        return rank

    def _handle(self, rank: int, message: Mapping[str, Any]) -> bool:
        """Take one message; whether more are to come."""
        if message["do"] == "leave":
            self._leave(rank)
            return False
        if message["do"] == "fail":
            self._wait_for_end(rank)
            self._fail(f"instance {rank} failed: {message['reason']}", linger=True)
            return False
        with self._changed:
            self._waiting[rank] = message
            first = next(iter(self._waiting.values()))
            if self._failure:
                self._send(rank, {"failed": self._failure})
            elif message["what"] != first["what"]:
                self._fail(f"instances disagree: {self._who(first['what'])} {first['what']}, {rank} {message['what']}")
            elif self._left:
                self._fail(f"instance {min(self._left)} left before {message['what']}")
            else:
                self._complete_or_wait(message)
        return True

    def _complete_or_wait(self, message: Mapping[str, Any]) -> None:
        if len(self._waiting) < self._size:
            self._keep_time(message)
            return
        self._timer.cancel()
        values = [self._waiting[rank]["value"] for rank in range(self._size)]
        self._waiting.clear()
        self._reply(_answers(message["kind"], values))

    def _keep_time(self, message: Mapping[str, Any]) -> None:
        """Have the timer end the meeting when the first of those that wait has waited long enough."""
        ends = time.monotonic() + message["timeout"]
        if len(self._waiting) == 1 or ends < self._ends:
            self._timer.cancel()
            self._ends, self._timer = ends, self._after(message["timeout"], lambda: self._late(message))

    def _wait_for_end(self, rank: int) -> None:
        """Let an instance that failed end before its peers do, so that the launcher sees whose fault it was."""
        with contextlib.suppress(Closed, OSError, ValueError):
            if rank != 0:
                self._members[rank].receive(LINGER_S)

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            if self._waiting:
                self._fail(f"instance {rank} left before {next(iter(self._waiting.values()))['what']}")
            self._changed.notify_all()

    def _late(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            if any(each is message for each in self._waiting.values()):
                missing = sorted(set(range(self._size)) - set(self._waiting))
                self._fail(f"{_named(missing)} did not reach {message['what']} within {message['timeout']:g} s")

    def _late_to_join(self, join_s: float) -> None:
        with self._changed:
            missing = sorted(set(range(self._size)) - set(self._members))
            if missing:
                self._fail(f"{_named(missing)} did not come to the rendezvous within {join_s:g} s")

    def _fail(self, reason: str, *, unless_left: int = -1, linger: bool = False) -> None:
        """Tell everybody, once; `linger` is for a failure that ends an instance, which the launcher sees too."""
        with self._changed:
            if self._failure or unless_left in self._left:
                return
            self._failure = reason
            self._timer.cancel()
            for rank in self._members.keys() - self._left:
                self._send(rank, {"failed": reason, "linger": linger})
            self._changed.notify_all()

    def _reply(self, values: Mapping[int, Any]) -> None:
        for rank, value in values.items():
            self._send(rank, {"value": value})

    def _send(self, rank: int, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(Closed, OSError):
            self._members[rank].send(message)

    def _who(self, what: str) -> str:
        return ", ".join(str(rank) for rank, each in self._waiting.items() if each["what"] == what)

    def _after(self, seconds: float, do: Callable[[], None]) -> threading.Timer:
        timer = threading.Timer(seconds, do)
        timer.daemon = True
        timer.start()
        return timer


def _answers(kind: str, values: list[Any]) -> dict[int, Any]:
    ranks = range(len(values))
    if kind == "gather":
        return {rank: values if rank == 0 else None for rank in ranks}
    return dict.fromkeys(ranks, values[0] if kind == "broadcast" else None)


def _named(ranks: list[int]) -> str:
    return f"instance{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
