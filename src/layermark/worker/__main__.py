"""Entry of the worker process: answers the parent's messages until the line is closed."""

from __future__ import annotations

import ctypes
import resource
import signal
import socket
import sys
import traceback
from typing import Any

from layermark.errors import Unsupported, UserError
from layermark.worker.channel import Channel, Closed
from layermark.worker.service import Service

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve the socket whose file descriptor is the first argument; the second is the memory limit in bytes."""
    descriptor, memory_limit = int(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer; it ends the workers
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    channel = Channel(socket.socket(fileno=descriptor))
    service = Service()
    try:
        while True:
            message = channel.receive()
            channel.send({"id": message["id"], **answer(service, message)})
            if message["do"] == "close":
                return 0
    except Closed:
        return 0


def answer(service: Service, message: dict[str, Any]) -> dict[str, Any]:
    """What the service says to one message; whatever goes wrong is an answer too."""
    try:
        return {"ok": service.handle(message["do"], message.get("with", {}))}
    except Unsupported as error:
        return _trouble("unsupported", str(error))
    except UserError as error:
        return _trouble("user", str(error))
    except MemoryError as error:
        return _trouble("memory", f"out of memory: {error}" if str(error) else "out of memory")
    except Exception as error:  # a worker answers for everything its framework may raise
        traceback.print_exc()
        kind = "memory" if _is_out_of_memory(error) else "error"
        return _trouble(kind, f"{'out of memory: ' if kind == 'memory' else ''}{type(error).__name__}: {error}")


def _is_out_of_memory(error: Exception) -> bool:
    """Frameworks raise their own types when an allocation fails; the words are all they share."""
    words = ("not enough memory", "out of memory", "bad_alloc", "can't allocate memory", "cannot allocate memory")
    return any(word in str(error).lower() for word in words)


def _trouble(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "reason": " ".join(reason.split())[:2000]}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
