"""Whether the runtime computes a model in the type it is written in: seen in the graph that it would run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from layermark.backends._onnx.writer import Array
from layermark.backends.onnxruntime import process
from layermark.errors import Unsupported

_NUMBERS = "/weight_quantized"


def require(model: ModelProto, options: process.Options, kind: str) -> None:
    """Raise `Unsupported` unless every node runs in the type that the model says."""
    try:
        optimised = _optimised(model, options)
    except Exception as error:  # the runtime's errors share no base class
        reason = str(error).strip().splitlines()[0]
        raise Unsupported(f"onnxruntime cannot compute in {kind} on this {options.device.upper()}: {reason}") from error
    own = {node.name for node in _nodes(model.graph)}
    casts = [node for node in _nodes(optimised.graph) if node.op_type == "Cast" and node.name not in own]
    if casts:
        reason = f"it put {len(casts)} casts around its nodes, such as {casts[0].name}"
        raise Unsupported(f"onnxruntime computes {kind} models in float32 on this {options.device.upper()}: {reason}")


def integer_products(model: ModelProto, options: process.Options) -> tuple[int, int]:
    """How many convolutions and products the runtime computes with whole numbers, and how many there are."""
    kinds = [node.op_type for node in _nodes(_optimised(model, options).graph)]
    every = [kind for kind in kinds if any(word in kind for word in ("Conv", "Gemm", "MatMul"))]
    return sum(kind.startswith("Q") or "Integer" in kind for kind in every), len(every)


def dequantised(model: ModelProto) -> dict[str, Array]:
    """The weights of a quantised model under the names that they had before."""
    held = {each.name: each for each in model.graph.initializer}
    found = {}
    for name in held:
        if name.endswith(_NUMBERS):
            stem = name.removesuffix("_quantized")
            parts = (numpy_helper.to_array(held[f"{stem}_{part}"]) for part in ("quantized", "scale", "zero_point"))
            found[stem] = _wide(*(part.astype("float32") for part in parts))
    return found


def _wide(numbers: Array, scale: Array, zero: Array) -> Array:
    """Whole numbers times their steps: one step for all, or one for each output channel."""
    shape = (-1, *[1] * (numbers.ndim - 1)) if scale.size > 1 else ()
    wide: Array = (numbers - zero.reshape(shape)) * scale.reshape(shape)
    return wide


def _optimised(model: ModelProto, options: process.Options) -> ModelProto:
    """The graph that a session of these options runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        try:
            process.session(model, options)
        finally:
            options.optimized_model_filepath = ""
        return onnx.load_model(str(path))


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of loop bodies included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
