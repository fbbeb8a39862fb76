"""TensorFlow's pool for kernels, brought down to the thread budget.

The thread that runs an operation takes its share of most parallel loops, and a pool of n workers takes the rest, in
turns: n + 1 threads are busy on a budget of n. A pool of n - 1 does not help, because kernels also take the number of
shares from it. So one of n workers is given a task that waits on a semaphore; its queue is emptied by the others. The
task is handed over through XLA's foreign function interface, whose C structures are spelled out here by their
offsets; any other version of them is left alone.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tensorflow as tf

from layermark.backends.tensorflow import process
from layermark.devices import cpu

TARGET = b"layermark_hold_worker"
PLATFORM = b"Host"
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

_BUSY_SHARE = 0.1
"""A thread that used more than this share of what the busiest one did had work; the machine itself may be loaded."""

_MODULE = f"""
module {{
  func.func public @main() -> tensor<f32> {{
    %done = stablehlo.custom_call @{TARGET.decode()}() {{
      api_version = 4 : i32, has_side_effect = true
    }} : () -> tensor<f32>
    return %done : tensor<f32>
  }}
}}
"""

_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _RegisterArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("name_length", ctypes.c_size_t),
        ("platform", ctypes.c_char_p),
        ("platform_length", ctypes.c_size_t),
        ("instantiate", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("initialize", ctypes.c_void_p),
        ("execute", ctypes.c_void_p),
        ("traits", ctypes.c_uint32),
    ]


class _ScheduleArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("task", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    ]


class Holder:
    """Keeps one worker of the pool waiting from `hold` to `release`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc.sem_init(self._semaphore, 0, 0)
        self._handler = _Handler(self._called)
        self.held = False
        self._target = _target() if self._registers() else None
        atexit.register(self.release)  # the pool waits for its workers when the process ends

    def hold(self) -> bool:
        """Hand the waiting task to the pool, if none waits; answers whether one does."""
        if not self.held and self._target:
            self._target()
        return self.held

    def release(self) -> None:
        """Let the worker go."""
        if self.held:
            self._libc.sem_post(self._semaphore)
            self.held = False

    def _registers(self) -> bool:
        try:
            return self._register()
        except (AttributeError, OSError):  # a build that does not show the interface
            return False

    def _register(self) -> bool:
        api = _interface()
        if (_integer(api + _API_MAJOR).value, _integer(api + _API_MINOR).value) not in KNOWN_VERSIONS:
            return False
        execute = ctypes.cast(self._handler, ctypes.c_void_p)
        sizes = ctypes.sizeof(_RegisterArgs)
        names = (TARGET, len(TARGET), PLATFORM, len(PLATFORM))
        self._registration = _RegisterArgs(sizes, None, *names, None, None, None, execute, 0)
        return not _Handler(_pointer(api + _REGISTER))(ctypes.addressof(self._registration))

    def _called(self, frame: int) -> None:
        api, extension = _pointer(frame + _FRAME_API), _pointer(frame + _FRAME_EXTENSION)
        while extension:
            if _integer(extension + _EXTENSION_TYPE).value == _METADATA_TYPE:
                return _answer_version(api, _pointer(extension + _METADATA))
            extension = _pointer(extension + _EXTENSION_NEXT)
        return self._schedule(_pointer(api + _SCHEDULE), _pointer(frame + _FRAME_CONTEXT))

    def _schedule(self, function: int, context: int) -> None:
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p)
        args = _ScheduleArgs(ctypes.sizeof(_ScheduleArgs), None, context, wait, ctypes.addressof(self._semaphore))
        self.held = not _Handler(function)(ctypes.addressof(args))


@cache
def _holder() -> Holder | None:
    """The holder, where holding makes sense.

    oneDNN's loops take the caller's thread only if asked to, and if the pool has as many workers as there are CPUs.
    """
    alone = process.threads() == 1 or process.threads() != len(os.sched_getaffinity(0))
    return None if alone or os.environ.get(process.CALLER_TAKES_PART) != "1" else Holder()


def hold(wanted: bool) -> str:
    """Take one worker out of the pool, or give it back; answers which threads have work now."""
    holder, threads = _holder(), process.threads()
    if threads == 1:
        return "caller"
    if holder and wanted and holder.hold():
        return f"caller and {threads - 1} of {threads} workers"
    if holder:
        holder.release()
    return f"caller and {threads} workers"


def within_budget(step: Callable[[], object], seconds: float = 0.1) -> bool:
    """Whether no more threads than the budget have work while a step is repeated for so long."""
    before, began = cpu.thread_times_ns(), time.perf_counter_ns()
    while time.perf_counter_ns() - began < seconds * 1e9:
        step()
    gained = [now - before.get(name, 0) for name, now in cpu.thread_times_ns().items()]
    return sum(each > _BUSY_SHARE * max(gained) for each in gained) <= process.threads()


def _target() -> Callable[[], object]:
    """A call of the registered function."""
    from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_call_module

    def run() -> tf.Tensor:
        return xla_call_module(
            args=[],
            version=9,
            module=_MODULE,
            Sout=[tf.TensorShape([])],
            Tout=[tf.float32],
            platforms=["CPU"],
        )[0]

    graph = tf.Graph()
    with graph.as_default():
        result = tf.function(run, jit_compile=True, autograph=False)()
    session = process.v1.Session(graph=graph, config=process.session_config(optimise=False))
    return lambda: session.run(result)


def _interface() -> int:
    """The address of XLA's interface in this build."""
    library = ctypes.CDLL(str(Path(tf.sysconfig.get_lib()) / "libtensorflow_cc.so.2"))
    function = library._ZN3xla3ffi12GetXlaFfiApiEv
    function.restype = ctypes.c_void_p
    return int(function())


def _answer_version(api: int, metadata: int) -> None:
    """XLA asks a handler once which version of the interface it was built for: the one it is called with."""
    _integer(metadata + _METADATA_MAJOR).value = _integer(api + _API_MAJOR).value
    _integer(metadata + _METADATA_MINOR).value = _integer(api + _API_MINOR).value


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _integer(address: int) -> ctypes.c_int:
    return ctypes.c_int.from_address(address)
