"""Facts about this process: versions, thread pools, subnormal numbers."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from layermark.errors import Unsupported

v1 = tf.compat.v1

DEVICES: dict[str, str | None] = {"cpu": None, "cuda": "/device:GPU:0"}
"""What TensorFlow calls the devices; from a worker on the CPU all others are hidden."""

CALLER_TAKES_PART = "TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD"
"""Lets the calling thread take a share of oneDNN's loops, as it does of all others, instead of waiting."""


def threads() -> int:
    """How many threads kernels may use."""
    return int(os.environ.get("TF_NUM_INTRAOP_THREADS") or len(os.sched_getaffinity(0)))


def require(device: str) -> None:
    """Raise unless the device is there, and have it multiply float32 in full."""
    if device not in DEVICES:
        raise Unsupported(f"tensorflow runs on {' and '.join(DEVICES)} here, not on {device}")
    if device == "cpu":
        return
    if not tf.config.list_physical_devices("GPU"):
        reason = "it sees no GPU" if tf.test.is_built_with_cuda() else "this build has no CUDA"
        raise Unsupported(f"tensorflow has no device {device} here: {reason}")
    tf.config.experimental.enable_tensor_float_32_execution(False)


def session_config(*, optimise: bool) -> Any:
    """Operations on the caller's thread, kernels on a pool of the budget's size, memory of a GPU as it is needed.

    A negative number of inter-op threads asks for the first: no hop to another thread and back for
    every call, which on small layers costs more than the layer. Without `optimise` the graph rewriter stays away: XLA
    optimises by itself, and cannot compile some of what the rewriter puts in. An operation that its device does not
    have is an error, not placed elsewhere.
    """
    config = v1.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=threads())
    config.allow_soft_placement, config.gpu_options.allow_growth = False, True
    rewriting = config.graph_options.rewrite_options
    rewriting.disable_meta_optimizer = not optimise
    # Otherwise the rewriter takes no shape of a feed for granted, and then joins no sum with the convolution before it.
    rewriting.remapping = RewriterConfig.AGGRESSIVE
    return config


@cache
def facts() -> Mapping[str, str]:
    """Versions and capabilities of this build."""
    build = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "threads": f"{threads()}, {'with' if os.environ.get(CALLER_TAKES_PART) == '1' else 'besides'} the caller",
        "onednn": _onednn(),
        "cuda": str(build.get("cuda_version", "none")),
    }


def _onednn() -> str:
    """Whether oneDNN's kernels are switched on. Only a private module of TensorFlow tells, which may be gone."""
    try:
        from tensorflow.python.util._pywrap_util_port import IsMklEnabled
    except ImportError:
        return "unknown"
    return "on" if IsMklEnabled() else "off"


# Machine: where the control word lies in glibc's fenv_t, in 32-bit words, and the bits that flush.
_CONTROL_WORDS = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}


def flush_subnormals() -> str:
    """Flush subnormal numbers on this thread, as TensorFlow's own threads always do; return what really holds."""
    if subnormals() != "flush" and platform.machine() in _CONTROL_WORDS:
        word, bits = _CONTROL_WORDS[platform.machine()]
        library = ctypes.CDLL(ctypes.util.find_library("m"))
        state = (ctypes.c_uint32 * 64)()
        library.fegetenv(state)
        state[word] |= bits
        library.fesetenv(state)
    return subnormals()


def subnormals() -> str:
    """`flush`, `keep`, or `mixed` where threads differ, seen on products that the caller and the pool compute."""
    graph = tf.Graph()
    with graph.as_default(), v1.Session(graph=graph, config=session_config(optimise=True)) as session:
        fed = v1.placeholder(tf.float32, (None,))
        product = fed * 1e-10
        tiny = [session.run(product, {fed: np.full(size, 1e-30, "float32")}) for size in (64, 1 << 20)]
    # As integers, because a flushing thread reads subnormals as zero.
    kept = {bool(each) for values in tiny for each in (values.view("int32").min(), values.view("int32").max())}
    return "mixed" if len(kept) == 2 else "keep" if kept.pop() else "flush"
