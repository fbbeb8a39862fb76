"""XLA's thread pool on the CPU, brought down to the thread budget. No framework is imported here.

Why: the thread that runs a program takes its share of every parallel loop, and a pool of n workers takes the rest, in
turns: n + 1 threads are busy on a budget of n, where every other runtime has n. A pool of n - 1 does not help, because
kernels also take the number of shares from it. So one of n workers is given a task that waits on a semaphore.
Whatever lands in its queue meanwhile is taken by the others, as in every work-stealing pool.

How: neither JAX nor TensorFlow shows its pool, but XLA's foreign function interface does. It is a C interface with
a version, spelled out here by the offsets of its fields; a version that is not known is left alone, and so is a
build that does not show it. Then nothing is held, and the settings say so.

What it rests on: a signal handler that ran on the waiting thread would end the wait (`sem_wait` answers EINTR).
The kernel hands a process's signals to its main thread while that accepts them, and workers are measured without
timers; if it ever happened, the busy threads counted in every block would exceed the budget and be reported.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from typing import Any

TARGET = "layermark_hold_worker"
KNOWN_VERSIONS = ((0, 1), (0, 2), (0, 3))
"""Versions of the interface in which the fields below are where they are read."""

_WORD = ctypes.sizeof(ctypes.c_void_p)
_FRAME_EXTENSION, _FRAME_API, _FRAME_CONTEXT = 1 * _WORD, 2 * _WORD, 3 * _WORD
_EXTENSION_TYPE, _EXTENSION_NEXT, _METADATA = 1 * _WORD, 2 * _WORD, 3 * _WORD
_METADATA_TYPE = 1
_API_MAJOR, _API_MINOR = 4 * _WORD, 4 * _WORD + 4
_METADATA_MAJOR, _METADATA_MINOR = 3 * _WORD, 3 * _WORD + 4
_REGISTER, _SCHEDULE = (6 + 3) * _WORD, (6 + 11) * _WORD
_SEMAPHORE_BYTES = 64

Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
"""A function of the interface: one structure in, an error (or nothing) out."""
Entry = Callable[[], object]


class _RegisterArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("name_length", ctypes.c_size_t),
        ("platform", ctypes.c_char_p),
        ("platform_length", ctypes.c_size_t),
        *((stage, ctypes.c_void_p) for stage in ("instantiate", "prepare", "initialize", "execute")),
        ("traits", ctypes.c_uint32),
    ]


class _ScheduleArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("extension", "context", "task", "data")),
    ]


class Holder:
    """Keeps one worker of a pool waiting from `hold` to `release`, or to the end of the process.

    `enter` registers a handler with the framework's XLA under `TARGET` and answers how to call it, or None where
    that cannot be done.
    """

    def __init__(self, enter: Callable[[Any], Entry | None]) -> None:
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc.sem_init(self._semaphore, 0, 0)
        self._handler = Handler(self._called)  # XLA keeps its address: it must live as long as the process
        self.held = False
        self._entry = enter(self._handler)
        atexit.register(self.release)  # the pool waits for its workers when the process ends

    def hold(self) -> bool:
        """Hand the waiting task to the pool, if none waits; answers whether one does."""
        if not self.held and self._entry is not None:
            self._entry()
        return self.held

    def release(self) -> None:
        """Let the worker go."""
        if self.held:
            self._libc.sem_post(self._semaphore)
            self.held = False

    def _called(self, frame: int) -> None:
        api, extension = _pointer(frame + _FRAME_API), _pointer(frame + _FRAME_EXTENSION)
        while extension:
            if _integer(extension + _EXTENSION_TYPE).value == _METADATA_TYPE:
                return _answer_version(api, _pointer(extension + _METADATA))
            extension = _pointer(extension + _EXTENSION_NEXT)
        if _known(api):
            self._schedule(_pointer(api + _SCHEDULE), _pointer(frame + _FRAME_CONTEXT))
        return None

    def _schedule(self, function: int, context: int) -> None:
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p)
        args = _ScheduleArgs(ctypes.sizeof(_ScheduleArgs), None, context, wait, ctypes.addressof(self._semaphore))
        self.held = not Handler(function)(ctypes.addressof(args))


def register(api: int, handler: Any, platform: str) -> bool:
    """Make a handler known under `TARGET` to the XLA whose interface lies at `api`; answers whether that worked."""
    if not _known(api):
        return False
    texts = [text for each in (TARGET, platform) for text in (each.encode(), len(each))]
    execute = ctypes.cast(handler, ctypes.c_void_p)
    args = _RegisterArgs(ctypes.sizeof(_RegisterArgs), None, *texts, None, None, None, execute, 0)
    return not Handler(_pointer(api + _REGISTER))(ctypes.addressof(args))


def capsule(handler: Any) -> Any:
    """The handler as Python hands addresses of C functions around."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.cast(handler, ctypes.c_void_p), None, None)


def _known(api: int) -> bool:
    return (_integer(api + _API_MAJOR).value, _integer(api + _API_MINOR).value) in KNOWN_VERSIONS


def _answer_version(api: int, metadata: int) -> None:
    """XLA asks a handler once which version of the interface it was built for: the one it is called with."""
    _integer(metadata + _METADATA_MAJOR).value = _integer(api + _API_MAJOR).value
    _integer(metadata + _METADATA_MINOR).value = _integer(api + _API_MINOR).value


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _integer(address: int) -> ctypes.c_int:
    return ctypes.c_int.from_address(address)
