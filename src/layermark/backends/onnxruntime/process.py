"""Sessions: their options, their provider, and what happens to subnormal numbers in them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

import onnx
import onnxruntime
from onnx import ModelProto

from layermark.backends._onnx import subnormals
from layermark.backends._onnx.writer import Array
from layermark.errors import Unsupported
from layermark.spec import Spec

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {"cpu": (CPU, {}), "cuda": (CUDA, {"use_tf32": "0"})}
"""The provider of every device, and its options: 32.32 is real float32."""
_X86 = ("x86_64", "AMD64")
_FLUSH_BITS = 0x8040  # MXCSR: flush results to zero, and take subnormal operands as zero


def facts() -> Mapping[str, str]:
    """Versions and providers of this build."""
    return {
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
        "providers": ", ".join(onnxruntime.get_available_providers()),
        "build": onnxruntime.get_build_info(),
    }


def threads_of(spec: Spec) -> int:
    """The thread budget in effect."""
    return spec.threads or len(os.sched_getaffinity(0))


class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
    """What a session is opened with, and the device that it runs on."""

    device: str = "cpu"


def provider_of(spec: Spec) -> str:
    """The provider of the device, where this build has it."""
    name, _ = PROVIDERS[spec.device]
    if name not in onnxruntime.get_available_providers():
        raise Unsupported(f"onnxruntime has no device {spec.device} here: this build has no {name}")
    return name


def options(spec: Spec) -> Options:
    """One pool of `threads`, the caller included, that spins between nodes; every optimisation.

    Where there are as many callers as threads, each is its own pool.
    """
    found = Options()
    found.device = spec.device
    found.intra_op_num_threads = 1 if spec.execution == "throughput" else threads_of(spec)
    found.inter_op_num_threads = 1
    found.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    found.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    found.log_severity_level = 3
    found.add_session_config_entry("session.intra_op.allow_spinning", "1")
    found.add_session_config_entry("session.set_denormal_as_zero", "1" if spec.subnormals == "flush" else "0")
    if spec.device != "cpu":
        found.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return found


def session(model: ModelProto, found: Options) -> onnxruntime.InferenceSession:
    """A session on the provider of its device and no other; a fallback is a failure.

    The runtime always lists the CPU's provider last; `disable_cpu_ep_fallback` makes it refuse to run nodes there.
    """
    name, facts = PROVIDERS[found.device]
    made = onnxruntime.InferenceSession(model.SerializeToString(), found, providers=[(name, dict(facts))])
    if made.get_providers() != list(dict.fromkeys((name, CPU))):
        raise RuntimeError(f"onnxruntime runs on {', '.join(made.get_providers())}, not on {name} alone")
    return made


def set_subnormals(spec: Spec) -> str:
    """Flush or keep in the calling thread and in the pools of later sessions; raises where that does not hold.

    The runtime obeys its switch in the first session of a process only. New pool threads inherit the mode of
    the thread that starts them, so that thread is switched first. Another device does as it does.
    """
    if spec.device != "cpu":
        return "as the device does"
    if platform.machine() in _X86:
        _set_flushing(spec.subnormals == "flush")

    def run(model: ModelProto, x: Array) -> Array:
        made: Array = session(model, options(spec)).run(None, {"x": x})[0]
        return made

    return subnormals.require("onnxruntime", spec.subnormals, run)


def _set_flushing(flush: bool) -> None:
    libm = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()  # glibc's fenv_t on x86-64; its last word is MXCSR
    libm.fegetenv(state)
    state[7] = state[7] | _FLUSH_BITS if flush else state[7] & ~_FLUSH_BITS
    libm.fesetenv(state)
