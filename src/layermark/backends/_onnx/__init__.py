"""Graphs as ONNX models, shared by the runtimes that read them. `onnx` is imported when a model is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layermark.graph import Graph

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

    Arrays = Mapping[str, np.ndarray[Any, Any]]


def model(graph: Graph, weights: Arrays, precision: str = "32.32", unroll: int = 0) -> ModelProto:
    """The model of a graph with these parameters (canonical names and layout) in it.

    Tensors are named after the graph's nodes, initialisers `node/parameter`. The precision is the compute
    type and the type of the stored weights; recurrent loops of up to `unroll` steps are written out.
    """
    from layermark.backends._onnx.writer import write

    return write(graph, weights, precision, unroll)


def write_model(graph: Graph, weights: Arrays, path: str | Path, precision: str = "32.32") -> None:
    """Write the model of a graph to a file that any ONNX runtime or viewer opens."""
    import onnx

    found = model(graph, weights, precision)
    onnx.checker.check_model(found, full_check=True)
    onnx.save_model(found, str(path))
