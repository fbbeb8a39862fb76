"""Whether the runtime computes a model in the type it is written in: seen in the graph that it would run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto
from onnxruntime import SessionOptions

from layermark.backends.onnxruntime import process
from layermark.errors import Unsupported


def require(model: ModelProto, options: SessionOptions, kind: str) -> None:
    """Raise `Unsupported` unless every node runs in the type that the model says."""
    try:
        optimised = _optimised(model, options)
    except Exception as error:  # the runtime's errors share no base class
        reason = str(error).strip().splitlines()[0]
        raise Unsupported(f"onnxruntime cannot compute in {kind} on this CPU: {reason}") from error
    own = {node.name for node in _nodes(model.graph)}
    casts = [node for node in _nodes(optimised.graph) if node.op_type == "Cast" and node.name not in own]
    if casts:
        reason = f"it put {len(casts)} casts around its nodes, such as {casts[0].name}"
        raise Unsupported(f"onnxruntime computes {kind} models in float32 on this CPU: {reason}")


def _optimised(model: ModelProto, options: SessionOptions) -> ModelProto:
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
