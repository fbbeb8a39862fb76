"""Entry of the worker process: answers the parent's messages until the line is closed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from layermark import timing
from layermark.backends.base import backend
from layermark.devices.cpu import CPUS
from layermark.errors import Unsupported, UserError
from layermark.worker.channel import Channel, Closed
from layermark.worker.service import Service

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve the socket whose file descriptor is the first argument; the second is the memory limit in bytes.

    A third is the runtime that is imported at once. The worker then says so before it is asked anything.
    """
    descriptor, memory_limit = int(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer; it ends the workers
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(CPUS):  # before a runtime counts the CPUs to size its pool
        os.sched_setaffinity(0, set(map(int, os.environ[CPUS].split(","))))
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    channel = Channel(socket.socket(fileno=descriptor))
    service = Service()
    try:
        for name in arguments[2:]:
            channel.send({"id": 0, "ok": {"import_s": import_ahead(name)}})
        while True:
            message = channel.receive()
            reply = answer(service, message)
            channel.send({"id": message["id"], "trial_s": timing.TRIALS.seconds, **reply})
            if message["do"] == "close":
                return 0
    except Closed:
        return 0


def import_ahead(name: str) -> float:
    """Import a runtime and return how long it took. What goes wrong goes wrong again when it is needed."""
    began = time.perf_counter()
    with contextlib.suppress(Exception):
        backend(name).load()
    return time.perf_counter() - began


def answer(service: Service, message: dict[str, Any]) -> dict[str, Any]:
    """What the service says to one message; whatever goes wrong is an answer too."""
    try:
        return {"ok": service.handle(message["do"], message.get("with", {}))}
    except Unsupported as error:
        return _trouble("unsupported", str(error), code=error.code, instead=error.instead)
    except UserError as error:
        return _trouble("user", str(error))
    except MemoryError as error:
        return _trouble("memory", f"out of memory: {error}" if str(error) else "out of memory", code="out_of_memory")
    except Exception as error:  # a worker answers for everything its framework may raise
        traceback.print_exc()
        full = _is_out_of_memory(error)
        text = f"{'out of memory: ' if full else ''}{type(error).__name__}: {error}"
        return _trouble("memory" if full else "error", text, code="out_of_memory" if full else "error")


def _is_out_of_memory(error: Exception) -> bool:
    """Frameworks raise their own types when an allocation fails; the words are all they share."""
    words = ("not enough memory", "out of memory", "bad_alloc", "can't allocate memory", "cannot allocate memory")
    return any(word in str(error).lower() for word in words)


def _trouble(kind: str, reason: str, code: str = "error", instead: Mapping[str, str] | None = None) -> dict[str, Any]:
    words = " ".join(reason.split())[:2000]
    return {"error": {"kind": kind, "reason": words, "code": code, "instead": dict(instead or {})}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
