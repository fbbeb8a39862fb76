"""Where the instances of a job meet: instance 0 serves, the others connect; messages are framed as a worker's are.

    with Rendezvous(place) as meeting:
        meeting.barrier("timed")
        rates = meeting.gather(rate)     # a list on rank 0, None elsewhere

Every call is collective: all instances make the same calls in the same order. The first that dies, raises, hangs past
a time-out or is cut off ends the waiting of all, with its reason.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from layermark.errors import UserError, WorkerFailed
from layermark.launch.meeting import LINGER_S, Meeting
from layermark.launch.ranks import JobPlace
from layermark.worker.channel import Channel, Closed

JOIN_S = 120.0
WAIT_S = 600.0
SILENCE_S = 10.0
_RETRY_S = 0.05


# Lines of failed meetings: their end tells the peers that this process has ended; nothing may close them before.
_open_until_the_end: list[Channel] = []


class PeerLost(WorkerFailed):
    """An instance of the job died, failed, hung or was cut off; the reason names it."""


class Rendezvous:
    """This instance's end of the meeting; leaving the `with` block by an exception tells the others why.

    `join_s` bounds the wait for all to come, `silence_s` how long a cut link may go unnoticed.
    """

    def __init__(self, place: JobPlace, *, join_s: float = JOIN_S, silence_s: float = SILENCE_S) -> None:
        self._place = place
        self._silence_s = silence_s
        self._server = _serve(place, join_s, silence_s) if place.rank == 0 else None
        try:
            address = self._server.address if self._server else (place.master_address, place.master_port)
            self._channel = _join(place, address, join_s, silence_s)
        except BaseException:
            self._end_server()
            raise
        try:
            self._answer("joining", join_s)
        except BaseException as error:
            self.close(_reason(error))
            raise

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close(_reason(error))

    @property
    def rank(self) -> int:
        """Which instance this is."""
        return self._place.rank

    def fileno(self) -> int:
        """The descriptor that becomes readable outside of a call only once an instance has failed."""
        return self._channel.fileno()

    def raise_alarm(self) -> None:
        """Raise `PeerLost` for the failure that made the descriptor readable."""
        self._answer("work", 0.0)

    def barrier(self, name: str, *, timeout: float = WAIT_S) -> None:
        """Return when every instance has come here; raise `PeerLost` if one cannot."""
        self._meet("barrier", name, None, timeout)

    def gather(self, value: Any, *, name: str = "", timeout: float = WAIT_S) -> list[Any] | None:
        """Return the values of all instances by rank on rank 0, None elsewhere; values are what JSON can hold."""
        values: list[Any] | None = self._meet("gather", name, value, timeout)
        return values

    def broadcast(
        self, value: Any = None, *, name: str = "", timeout: float = WAIT_S, watch: Callable[[int], None] | None = None
    ) -> Any:
        """Return rank 0's value on every instance.

        `watch` waits until the descriptor it is given is readable, and may raise for what it sees beside it.
        """
        return self._meet("broadcast", name, value if self._place.rank == 0 else None, timeout, watch)

    def close(self, reason: str = "") -> None:
        """Leave. A `reason` ends the waiting of all others, once this process has ended or after two seconds."""
        with contextlib.suppress(Closed, OSError):
            self._channel.send({"do": "fail", "reason": reason} if reason else {"do": "leave"})
        if reason:
            _open_until_the_end.append(self._channel)
        else:
            self._channel.close()
        self._end_server()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.end(self._silence_s)
            self._server = None

    def _meet(
        self, kind: str, name: str, value: Any, timeout: float, watch: Callable[[int], None] | None = None
    ) -> Any:
        what = f"{kind} {name!r}" if name else kind
        # What was decided while this instance computed is read below, even if the line takes nothing more.
        with contextlib.suppress(Closed, OSError):
            self._channel.send({"do": "meet", "kind": kind, "what": what, "value": value, "timeout": timeout})
        if watch is not None:
            watch(self.fileno())
        return self._answer(what, timeout)

    def _answer(self, what: str, timeout: float) -> Any:
        # Instance 0 keeps the time; the longer wait here is for the case that it is itself stopped.
        try:
            reply = self._channel.receive(timeout + self._silence_s)
        except TimeoutError as error:
            if error.errno == errno.ETIMEDOUT:
                raise PeerLost(self._cut_off(what)) from None
            raise PeerLost(f"instance 0 gave no answer to {what} within {timeout:g} s: it hangs") from None
        except (Closed, OSError):
            time.sleep(LINGER_S)
            raise PeerLost(self._cut_off(what)) from None
        if "failed" in reply:
            time.sleep(LINGER_S if reply.get("linger") else 0)
            raise PeerLost(reply["failed"])
        return reply["value"]

    def _cut_off(self, what: str) -> str:
        where = f"{self._place.master_address}:{self._place.master_port}"
        return f"instance 0 at {where} is gone during {what}: it ended, or the link to it was cut"


def _reason(error: BaseException | None) -> str:
    """What the others are told about an error; nothing if it is none."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return ""
    if isinstance(error, SystemExit):
        return f"it exited with status {error.code}"
    return str(error).partition("\n")[0] or type(error).__name__


def keep_alive(line: socket.socket, silence_s: float) -> socket.socket:
    """Have the kernel report a peer that is cut off within `silence_s`, however idle the line is."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s / 3)))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))
    return line


def response(token: str, challenge: str) -> str:
    """Return the proof of knowing the token, which itself never crosses the network."""
    return hmac.new(token.encode(), challenge.encode(), hashlib.sha256).hexdigest()


def _serve(place: JobPlace, join_s: float, silence_s: float) -> Meeting:
    """Listen on MASTER_ADDR:MASTER_PORT, or on every address where that name is not one of this host's."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        _bind(listener, place.master_address, place.master_port)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on MASTER_PORT {place.master_port} of {place.master_address}:"
            f" {os.strerror(error.errno or errno.EADDRINUSE)}; set MASTER_PORT to a free port"
        ) from None
    listener.listen(place.size + 8)
    return Meeting(
        listener,
        size=place.size,
        join_s=join_s,
        prepare=lambda line: keep_alive(line, silence_s),
        expected=lambda challenge: response(place.token, challenge),
    )


def _bind(listener: socket.socket, address: str, port: int) -> None:
    try:
        listener.bind((address, port))
    except OSError as error:
        if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
            raise
        listener.bind(("", port))


def _join(place: JobPlace, address: tuple[str, int], join_s: float, silence_s: float) -> Channel:
    """Connect to instance 0, which may not have started yet."""
    until = time.monotonic() + join_s
    reason = "nobody listens there"
    while time.monotonic() < until:
        try:
            return _introduce(place, address, until, silence_s)
        except Closed as error:
            reason = str(error) or "it hung up: another job's port?"
        except (OSError, ValueError) as error:
            reason = str(error) or reason
        time.sleep(_RETRY_S)
    where = f"{place.master_address}:{place.master_port}"
    raise PeerLost(f"instance {place.rank} could not join instance 0 at {where} within {join_s:g} s: {reason}")


def _introduce(place: JobPlace, address: tuple[str, int], until: float, silence_s: float) -> Channel:
    left = max(_RETRY_S, until - time.monotonic())
    line = socket.create_connection(address, timeout=min(left, silence_s))
    try:
        channel = Channel(keep_alive(line, silence_s))
        challenge = channel.receive(min(left, silence_s)).get("challenge", "")
        proof = response(place.token, challenge)
        channel.send({"rank": place.rank, "size": place.size, "proof": proof, "host": socket.gethostname()})
        # Only a welcome shows that the other end is this job's instance 0.
        if not channel.receive(min(left, silence_s)).get("welcome"):
            raise Closed("it is another job's")
    except BaseException:
        line.close()
        raise
    return channel
