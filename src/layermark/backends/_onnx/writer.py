"""The writing of a model: values, nodes and initialisers under the names of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import layermark
from layermark import ops
from layermark.errors import Unsupported
from layermark.graph import Graph, Node
from layermark.laws import Shape
from layermark.spec import types_of

OPSET = 22
"""The first whose convolutions and recurrent layers may be bfloat16; ONNX Runtime and OpenVINO both read it."""
IR_VERSION = 10

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

# A model is quantised after it was written, so that int8 begins as float32.
_TYPES = {"32": TensorProto.FLOAT, "16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "int8": TensorProto.FLOAT}


@dataclass
class Writer:
    """A model in the writing. `values` says which tensor holds the output of each graph node."""

    graph: Graph
    weights: Arrays
    compute: int = TensorProto.FLOAT
    stored: int = TensorProto.FLOAT
    unroll: int = 0
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def constant(self, name: str, array: Array, kind: int) -> str:
        """An initialiser; a name that is taken gets a number."""
        made = tensor(name, array, kind)
        while made.name in self.constants and self.constants[made.name] != made:
            made.name += "_"
        self.constants[made.name] = made
        return str(made.name)


@dataclass(frozen=True)
class Site:
    """One graph node in the writing: what it reads, its parameters, and how to write it down.

    `body` collects the nodes of a loop's body, `prefix` tells the time steps of a written-out loop apart.
    """

    writer: Writer
    node: Node
    args: tuple[str, ...]
    shapes: tuple[Shape, ...]
    body: list[NodeProto] | None = None
    prefix: str = ""

    @property
    def x(self) -> str:
        """The first thing it reads."""
        return self.args[0]

    @property
    def shape(self) -> Shape:
        """The shape of its output."""
        return self.writer.graph.shapes[self.node.name]

    def array(self, parameter: str) -> Array:
        """A parameter of the node as it was given."""
        return self.writer.weights[f"{self.node.name}/{parameter}"]

    def call(self, kind: str, *inputs: str, suffix: str = "", **attributes: Any) -> str:
        """An ONNX node with one output, under the graph node's name or below it."""
        return self.calls(kind, *inputs, outputs=1, suffix=suffix, **attributes)[0]

    def calls(self, kind: str, *inputs: str, outputs: int, suffix: str = "", **attributes: Any) -> list[str]:
        """An ONNX node with several outputs."""
        name = "/".join(part for part in (self.node.name, self.prefix, suffix) if part)
        names = [name] if outputs == 1 else [f"{name}/{index}" for index in range(outputs)]
        place = self.writer.nodes if self.body is None else self.body
        place.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names

    def parameter(self, name: str, array: Array | None = None) -> str:
        """An initialiser with a parameter (or with what was made from it), cast on use where it is stored wider."""
        values = self.array(name) if array is None else array
        stored = self.writer.constant(f"{self.node.name}/{name}", values, self.writer.stored)
        if self.writer.stored == self.writer.compute:
            return stored
        return self.call("Cast", stored, suffix=f"{name}/cast", to=self.writer.compute)

    def floats(self, name: str, array: Array | float, kind: int | None = None) -> str:
        """An initialiser of fixed numbers in the compute type (or another)."""
        values = np.asarray(array, "float32")
        return self.writer.constant(f"{self.node.name}/{name}", values, self.writer.compute if kind is None else kind)

    def integers(self, name: str, values: Sequence[int]) -> str:
        """An initialiser of whole numbers, such as axes or a shape."""
        return self.writer.constant(f"{self.node.name}/{name}", np.array(values, "int64"), TensorProto.INT64)

    def reshape(self, value: str, shape: Sequence[int], suffix: str = "") -> str:
        """The value in another shape."""
        return self.call("Reshape", value, self.integers(f"{suffix or 'final'}_shape", shape), suffix=suffix)

    def column(self, name: str, array: Array) -> str:
        """One number per channel as an initialiser that broadcasts over the node's pictures."""
        return self.parameter(name, array.reshape(-1, *[1] * (len(self.shapes[0]) - 2)))


def tensor(name: str, array: Array, kind: int) -> TensorProto:
    """An array as an ONNX tensor of a type; `ml_dtypes` behind NumPy does the rounding."""
    return numpy_helper.from_array(np.asarray(array, helper.tensor_dtype_to_np_dtype(kind), order="C"), name)


def input_type(op: ops.Input, compute: int) -> int:
    """The element type of something the graph is fed with; targets stay wide for the loss."""
    if op.item_bytes == 1:
        return int(TensorProto.UINT8)
    if op.item_bytes == 4:
        return int(TensorProto.INT32)
    return int(TensorProto.FLOAT) if op.role == "target" else compute


def compute_type(precision: str) -> int:
    """The element type that a precision such as 16.32 computes in."""
    return _type(precision.split(".")[0])


def _type(word: str) -> int:
    if word not in _TYPES:
        raise Unsupported(f"no {word}-bit floats in ONNX models here; torch, tensorflow and jax have --precision 64.64")
    return int(_TYPES[word])


def write(graph: Graph, weights: Arrays, precision: str = "32.32", unroll: int = 0) -> ModelProto:
    """The whole model."""
    from layermark.backends._onnx.lowering import lower_op

    compute, stored = (_type(word) for word in types_of(precision))
    writer = Writer(graph, weights, compute, stored, unroll)
    for node in graph:
        if isinstance(node.op, ops.Input):
            writer.values[node.name] = node.name
        else:
            args = tuple(writer.values[name] for name in node.inputs)
            writer.values[node.name] = lower_op(node.op, Site(writer, node, args, graph.input_shapes(node)))
    return _assemble(writer)


def _assemble(writer: Writer) -> ModelProto:
    graph = writer.graph
    inputs = [_info(name, input_type(op, writer.compute), op.dims) for name, op in graph.inputs.items()]
    outputs = [_info(_result(writer, name), value_type(writer, name), graph.shapes[name]) for name in graph.outputs]
    made = {each.name for each in outputs}
    inner = [
        _info(node.name, value_type(writer, node.name), graph.shapes[node.name])
        for node in graph
        if writer.values[node.name] == node.name and node.name not in made and node.name not in graph.inputs
    ]
    body = helper.make_graph(
        writer.nodes, "layermark", inputs, outputs, list(writer.constants.values()), value_info=inner
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        body,
        producer_name="layermark",
        producer_version=layermark.__version__,
        opset_imports=[opset],
        ir_version=IR_VERSION,
    )


def _result(writer: Writer, name: str) -> str:
    """The tensor of an output; what merely passes through gets a tensor of its own."""
    if writer.values[name] == name and name not in writer.graph.inputs:
        return name
    made = name if name not in writer.graph.inputs else f"{name}/output"
    writer.nodes.append(helper.make_node("Identity", [writer.values[name]], [made], name=made))
    return made


def value_type(writer: Writer, name: str) -> int:
    """The element type of a graph node's output: losses are wide, everything else has the compute type."""
    op = writer.graph.by_name[name].op
    if isinstance(op, ops.Input):
        return input_type(op, writer.compute)
    return int(TensorProto.FLOAT) if isinstance(op, ops.Loss) else writer.compute


def _info(name: str, kind: int, shape: Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))
