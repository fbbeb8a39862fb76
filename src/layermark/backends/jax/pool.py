"""XLA's thread pool on the CPU, brought down to the thread budget.

The thread that runs a program takes its share of every parallel loop, and a pool of n workers takes the rest, in
turns: n + 1 threads are busy on a budget of n. A pool of n - 1 does not help, because XLA also takes the number of
shares from it. So one of n workers is given a task that waits on a semaphore until the process ends; its
queue is emptied by the others. The task is handed over through XLA's foreign function interface, whose C structures
are spelled out here by their offsets; any other version of them is left alone.
"""

from __future__ import annotations

import atexit
import ctypes
from typing import Any

import jax
import jax.numpy as jnp

TARGET = "layermark_hold_worker"
KNOWN_VERSIONS = ((0, 1), (0, 2), (0, 3))
"""Versions of the interface in which the fields below are where they are read."""

_WORD = ctypes.sizeof(ctypes.c_void_p)
_FRAME_EXTENSION, _FRAME_API, _FRAME_CONTEXT = 1 * _WORD, 2 * _WORD, 3 * _WORD
_EXTENSION_TYPE, _EXTENSION_NEXT, _METADATA = 1 * _WORD, 2 * _WORD, 3 * _WORD
_METADATA_TYPE = 1
_API_MAJOR, _API_MINOR = 4 * _WORD, 4 * _WORD + 4
_METADATA_MAJOR, _METADATA_MINOR = 3 * _WORD, 3 * _WORD + 4
_SCHEDULE = (6 + 11) * _WORD
_SEMAPHORE_BYTES = 64

_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _ScheduleArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("task", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    ]


class Holder:
    """Keeps one worker of the pool waiting from `hold` to the end of the process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc.sem_init(self._semaphore, 0, 0)
        self._handler = _Handler(self._called)
        self.held = False

    def hold(self) -> bool:
        """Hand the waiting task to the pool; answers whether that worked."""
        jax.ffi.register_ffi_target(TARGET, _capsule(self._handler), platform="cpu", api_version=1)
        call = jax.ffi.ffi_call(TARGET, jnp.zeros(()), has_side_effect=True)
        jax.jit(call)().block_until_ready()
        if self.held:
            atexit.register(self.release)  # the pool waits for its workers when the process ends
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
        if (_integer(api + _API_MAJOR).value, _integer(api + _API_MINOR).value) in KNOWN_VERSIONS:
            self._schedule(_pointer(api + _SCHEDULE), _pointer(frame + _FRAME_CONTEXT))
        return None

    def _schedule(self, function: int, context: int) -> None:
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p)
        args = _ScheduleArgs(ctypes.sizeof(_ScheduleArgs), None, context, wait, ctypes.addressof(self._semaphore))
        self.held = not _Handler(function)(ctypes.addressof(args))


def _answer_version(api: int, metadata: int) -> None:
    """XLA asks a handler once which version of the interface it was built for: the one it is called with."""
    _integer(metadata + _METADATA_MAJOR).value = _integer(api + _API_MAJOR).value
    _integer(metadata + _METADATA_MINOR).value = _integer(api + _API_MINOR).value


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _integer(address: int) -> ctypes.c_int:
    return ctypes.c_int.from_address(address)


def _capsule(handler: Any) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.cast(handler, ctypes.c_void_p), None, None)
