"""Compiled models: their options, the names in them, and the types that they really compute in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import openvino
from onnx import ModelProto

from layermark import ops
from layermark.backends._onnx import quantised, subnormals
from layermark.backends._onnx.writer import Array
from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.spec import Spec, types_of

DEVICE = "CPU"
# What is not quantised in a quantised model is computed in full precision.
_HINTS = {"32": "f32", "16": "f16", "bf16": "bf16", "int8": "f32"}
TYPE_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_CONTRACTIONS = (
    "Convolution",
    "Deconvolution",
    "FullyConnected",
    "MatMul",
    "RNNCell",
    "RNNSeq",
    "TensorIterator",
    "Loop",
)
_MULTIPLYING = ("Convolution", "GroupConvolution", "MatMul")
_INTEGERS = ("u8", "i8")
_MOVES = ("Const", "Input", "Output", "Reorder", "Reshape", "Split", "Concatenation", "Convert", "Transpose", "Gather")


@cache
def core() -> openvino.Core:
    """The one core of this process."""
    return openvino.Core()


def facts() -> Mapping[str, str]:
    """Versions, and what the plug-in can compute in on this CPU."""
    return {
        "openvino": str(openvino.__version__),
        "device": str(core().get_property(DEVICE, "FULL_DEVICE_NAME")),
        "capabilities": ", ".join(core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")),
    }


def threads_of(spec: Spec) -> int:
    """The thread budget in effect."""
    return spec.threads or len(os.sched_getaffinity(0))


def compute_word(spec: Spec) -> str:
    """How the runtime calls the type that a precision computes in."""
    return _HINTS[types_of(spec.precision)[0]]


def compile_model(
    model: openvino.Model, spec: Spec, execution: str, threads: int, *, count: bool = False
) -> openvino.CompiledModel:
    """The model for one way of running it, in the type that the spec asks for and no other; it may count time."""
    wanted = compute_word(spec)
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": wanted,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": execution.upper(),
        "CPU_DENORMALS_OPTIMIZATION": spec.subnormals == "flush",
        "PERF_COUNT": count,
    }
    made = core().compile_model(model, DEVICE, options)
    devices = list(made.get_property("EXECUTION_DEVICES"))
    if devices != [DEVICE]:
        raise RuntimeError(f"openvino runs on {', '.join(devices)}, not on {DEVICE}")
    _require(made.get_property("INFERENCE_PRECISION_HINT").to_string(), wanted, f"{TYPE_NAMES[wanted]} models")
    return made


def read(model: ModelProto, graph: Graph) -> openvino.Model:
    """The runtime's form of a model; recurrent layers, which lose their names on the way, get them back."""
    found = core().read_model(model.SerializeToString())
    by_name = {name: each for each in found.get_ops() for out in each.outputs() for name in out.get_names()}
    for node in graph:
        name = f"{node.name}/{getattr(node.op, 'cell', '')}"
        if isinstance(node.op, ops.Recurrent) and name in by_name:
            _name_sequence(by_name[name], name)
    return found


def _name_sequence(last: Any, name: str) -> None:
    """Pass a name from the last operation of a recurrent layer up to the sequence itself."""
    above = last.input_value(0).get_node()
    while not above.get_type_name().endswith("Sequence") and above.get_input_size():
        above = above.input_value(0).get_node()
    if above.get_type_name().endswith("Sequence"):
        last.set_friendly_name(f"{name}/order")
        above.set_friendly_name(name)


def check_subnormals(spec: Spec) -> str:
    """What is done with subnormal numbers. The runtime's thread pools keep what they were first started with."""

    def run(model: ModelProto, x: Array) -> Array:
        read = core().read_model(model.SerializeToString())
        made = compile_model(read, spec.replace(precision="32.32"), "latency", threads_of(spec))
        return np.array(made.create_infer_request().infer({0: x})[0])

    return subnormals.require("openvino", spec.subnormals, run)


@dataclass(frozen=True)
class Executed:
    """One operation as the plug-in executes it."""

    name: str
    kind: str
    precision: str
    kernel: str


def executed(compiled: openvino.CompiledModel) -> Iterator[Executed]:
    """Every operation of the compiled model."""
    for each in compiled.get_runtime_model().get_ordered_ops():
        facts = each.get_rt_info()
        kind, precision, kernel = (facts[key].astype(str) for key in ("layerType", "runtimePrecision", "primitiveType"))
        yield Executed(each.get_friendly_name(), kind, precision, kernel)


def check_integers(compiled: openvino.CompiledModel, tool: str) -> dict[str, str]:
    """How much of a quantised model is computed with whole numbers, and by which kernels."""
    heavy = [each for each in executed(compiled) if each.kind in _CONTRACTIONS]
    found = quantised.describe(sum(each.precision in _INTEGERS for each in heavy), len(heavy), tool)
    return {**found, "kernels": ", ".join(sorted({each.kernel for each in heavy}))}


def products(model: openvino.Model) -> dict[str, Array]:
    """The weights that a model multiplies with, under the names of its operations, whatever form they are stored in."""
    heavy = [each for each in model.get_ops() if each.get_type_name() in _MULTIPLYING]
    names = [f"{_product_name(each.get_friendly_name())}/weight" for each in heavy]
    constants = openvino.Model([each.input_value(1) for each in heavy], [], "weights")
    found = core().compile_model(constants, DEVICE, {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request().infer()
    return {name: np.array(found[index]) for index, name in enumerate(names)}


def _product_name(name: str) -> str:
    return name.removesuffix("/WithoutBiases").removesuffix("/gemm")


def check_types(compiled: openvino.CompiledModel, spec: Spec) -> dict[str, str]:
    """The types and kernels that really run; raises where a contraction runs in another type than was asked for."""
    wanted = compute_word(spec)
    every = [each for each in executed(compiled) if each.kind not in _MOVES]
    heavy = [each for each in every if each.kind in _CONTRACTIONS]
    for each in heavy:
        _require(each.precision, wanted, f"the {TYPE_NAMES[wanted]} {each.kind} of {each.name}")
    floats = {each.precision for each in every if each.precision in TYPE_NAMES}
    if not heavy and floats and wanted not in floats:
        _require(floats.pop(), wanted, f"this {TYPE_NAMES[wanted]} graph")
    kernels = sorted({each.kernel for each in heavy or every})
    return {"compute_type": TYPE_NAMES[wanted], "kernels": ", ".join(kernels)}


def _require(found: str, wanted: str, what: str) -> None:
    if found == wanted:
        return
    reason = f"openvino computes {what} in {TYPE_NAMES.get(found, found)} on this CPU"
    if wanted == "f32":
        raise RuntimeError(reason)
    raise Unsupported(reason)
