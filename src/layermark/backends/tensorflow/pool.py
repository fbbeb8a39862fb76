"""TensorFlow's pool for kernels: how it is reached through XLA, and who has work in it.

`layermark.backends._xla` says why one of its workers is held. Here it is let go where the caller stays idle.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from layermark.backends import _xla
from layermark.backends.tensorflow import process
from layermark.devices import cpu

_PLATFORM = "Host"
_BUSY_SHARE = 0.1
"""A thread that used more than this share of what the busiest one did had work; the machine itself may be loaded."""

_MODULE = f"""
module {{
  func.func public @main() -> tensor<f32> {{
    %done = stablehlo.custom_call @{_xla.TARGET}() {{
      api_version = 4 : i32, has_side_effect = true
    }} : () -> tensor<f32>
    return %done : tensor<f32>
  }}
}}
"""


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


@cache
def _holder() -> _xla.Holder | None:
    """The holder, where holding makes sense.

    oneDNN's loops take the caller's thread only if asked to, and if the pool has as many workers as there are CPUs.
    """
    alone = process.threads() == 1 or process.threads() != len(os.sched_getaffinity(0))
    return None if alone or os.environ.get(process.CALLER_TAKES_PART) != "1" else _xla.Holder(_enter)


def _enter(handler: Any) -> _xla.Entry | None:
    try:
        return _target() if _xla.register(_interface(), handler, _PLATFORM) else None
    except (AttributeError, OSError):  # a build that does not show the interface
        return None


def _target() -> _xla.Entry:
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
