"""The output of all instances on its way to the terminal: whole lines, tagged with rank and stream, in their order."""

from __future__ import annotations

import hmac
import json
import os
import select
import selectors
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from layermark.launch.instance import HEADER, STREAMS
from layermark.launch.rendezvous import keep_alive
from layermark.launch.topology import Observed

LAST_LINES = 15
_CHUNK = 1 << 16
_LONGEST = 1 << 20
_SILENCE_S = 10.0
_DESCRIPTORS = {"stdout": 1, "stderr": 2}
_LIFE = "life"
_UNKNOWN = "a connection that has not said whose it is"


@dataclass(kw_only=True)
class OutputStream:
    """One stream of one instance; `rank` is None for what the launcher itself says."""

    rank: int | None
    name: str
    descriptor: int
    rest: bytes = b""
    begun: bool = False


@dataclass(kw_only=True)
class Lines:
    """Reads every stream and writes whole lines; `only` hides all instances but one.

    `last` holds the last lines of each instance, `ended` is how many instances are known to have ended.
    """

    tagged: bool = False
    only: int | None = None
    token: str = ""
    started: Callable[[Observed], None] = lambda seen: None
    last: dict[int | None, deque[str]] = field(default_factory=dict)
    ended: int = 0
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _streams: dict[int, OutputStream] = field(default_factory=dict)

    def add(self, rank: int | None, name: str, descriptor: int) -> None:
        """Read a stream from now on; the descriptor is closed at its end."""
        os.set_blocking(descriptor, False)
        self._streams[descriptor] = OutputStream(rank=rank, name=name, descriptor=descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._read(descriptor))

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call when the descriptor is ready: the end of a process, or a connection."""
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no longer."""
        self._selector.unregister(descriptor)

    def listen(self, listener: socket.socket) -> None:
        """Take streams of instances on other hosts; each begins with a line that holds the job's token."""
        self.watch(
            listener.fileno(), lambda: self.add(None, _UNKNOWN, keep_alive(listener.accept()[0], _SILENCE_S).detach())
        )

    @property
    def open(self) -> bool:
        """Whether a stream has not ended yet."""
        return bool(self._streams)

    def step(self, timeout: float | None) -> bool:
        """Sleep until something is ready and handle it, watched descriptors first; False when nothing came."""
        ready = [key for key, _ in self._selector.select(timeout)]
        # The end of a process is learnt before its peers' complaints about it are printed.
        for key in sorted(ready, key=lambda key: key.fd in self._streams):
            if key.fd in self._selector.get_map():
                key.data()
        return bool(ready)

    def close(self) -> None:
        """Write what is left and stop reading."""
        for descriptor in list(self._streams):
            self._end(descriptor)
        self._selector.close()

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a connection that was reset
            data = b""
        stream = self._streams[descriptor]
        if not data:
            self._end(descriptor)
            return
        if stream.name == _LIFE:  # a program found its descriptor and wrote into it
            return
        *whole, stream.rest = (stream.rest + data).split(b"\n")
        if len(stream.rest) > _LONGEST:
            whole, stream.rest = [*whole, stream.rest], b""
        self._take(stream, whole)

    def _end(self, descriptor: int) -> None:
        stream = self._streams.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self.ended += stream.name == _LIFE
        if stream.rest and stream.name != _UNKNOWN:
            self._take(stream, [stream.rest])

    def _take(self, stream: OutputStream, whole: list[bytes]) -> None:
        if whole and stream.name == _UNKNOWN:
            whole = whole[1:] if self._introduced(stream, whole[0]) and stream.name != _LIFE else []
        if whole and not stream.begun:
            stream.begun = True
            whole = whole[self._is_header(whole[0]) :]
        if not whole:
            return
        kept = self.last.setdefault(stream.rank, deque(maxlen=LAST_LINES))
        kept.extend(line.decode(errors="replace") for line in whole[-LAST_LINES:])
        if self.only is None or stream.rank in (None, self.only):
            self._write(stream, whole)

    def _is_header(self, line: bytes) -> bool:
        """Whether the first line is for poprun: where the instance runs."""
        if not line.startswith(HEADER.encode()):
            return False
        facts = json.loads(line[len(HEADER.encode()) :])
        self.started(Observed(**facts | {name: tuple(facts[name]) for name in ("cpus", "memory_nodes")}))
        return True

    def _introduced(self, stream: OutputStream, line: bytes) -> bool:
        """Give a connection its place; hang up on one that does not know the token."""
        try:
            facts = json.loads(line)
            known = hmac.compare_digest(str(facts["token"]), self.token) and facts["stream"] in STREAMS
        except (ValueError, KeyError, TypeError):
            known = False
        if known:
            stream.rank, stream.name = int(facts["rank"]), facts["stream"]
        else:
            self._end(stream.descriptor)
        return known

    def _write(self, stream: OutputStream, whole: list[bytes]) -> None:
        tag = b"" if not self.tagged or stream.rank is None else f"[1,{stream.rank}]<{stream.name}>:".encode()
        write(_DESCRIPTORS[stream.name], b"".join(tag + line + b"\n" for line in whole))


def write(descriptor: int, data: bytes) -> None:
    """Write everything, however often it takes."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # the terminal's other users may have made it so
            select.select([], [descriptor], [])
