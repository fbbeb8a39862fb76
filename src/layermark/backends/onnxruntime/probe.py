"""What this machine can do at best through ONNX Runtime: products with packed weights, and simple streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnxruntime import OrtValue

from layermark.backends._onnx.writer import IR_VERSION, OPSET, Array
from layermark.backends.base import Probe
from layermark.backends.onnxruntime import process
from layermark.laws import Shape
from layermark.spec import Spec
from layermark.timing import Kernel, Step

SIZES = (1024, 2048)


class OnnxRuntimeProbe(Probe):
    """Best-of figures, made as upper bounds: honest programs stay below them. Arithmetic is fp32, its fastest type."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        process.set_subnormals(spec)
        self._streams: dict[int, list[Kernel]] = {}

    def peak(self, seconds: float) -> float:
        """Scalar operations per second of the best product of 1024 or 2048 cubed with a packed constant weight."""
        return best(self._products, seconds)

    def bandwidth(self, working_set: int, seconds: float) -> float:
        """Bytes per second of the best of a sum of arrays and a product of matrix and vector over this many bytes."""
        if working_set not in self._streams:
            self._streams[working_set] = [self._sum(working_set), self._vector_product(working_set)]
        return best(self._streams[working_set], seconds)

    @cached_property
    def _products(self) -> list[Kernel]:
        make = self._integers if self._spec.quantised else lambda size: self._product(size, size, size)
        return [Kernel(2 * size**3, make(size)) for size in SIZES]

    def _integers(self, size: int) -> Step:
        """A product of unsigned and signed bytes, as convolutions of quantised models compute."""
        draw = np.random.default_rng(0)
        x = OrtValue.ortvalue_from_numpy(draw.integers(0, 256, (size, size), "uint8"))
        weight = numpy_helper.from_array(draw.integers(-128, 128, (size, size), "int8"), "weight")
        fed, given = _info("x", (size, size), TensorProto.UINT8), _info("z", (size, size), TensorProto.INT32)
        node = helper.make_node("MatMulInteger", ["x", "weight"], ["z"])
        session = process.session(
            _model(helper.make_graph([node], "integers", [fed], [given], [weight])), process.options(self._spec)
        )
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("z", OrtValue.ortvalue_from_shape_and_type((size, size), np.int32))
        return partial(session.run_with_iobinding, binding)

    def _product(self, rows: int, inner: int, columns: int) -> Step:
        weight = numpy_helper.from_array(_random((inner, columns)), "weight")
        return self._step("MatMul", ["x", "weight"], [(rows, inner)], (rows, columns), [weight])

    def _sum(self, working_set: int) -> Kernel:
        third = max(working_set // 12, 64)
        return Kernel(12 * third, self._step("Add", ["x", "y"], [(third,), (third,)], (third,), []))

    def _vector_product(self, working_set: int) -> Kernel:
        columns = min(1024, max(working_set // 4, 64))
        rows = max(working_set // 4 // columns, 1)
        return Kernel(4 * rows * columns, self._product(1, rows, columns))

    def _step(
        self, kind: str, read: list[str], shapes: Sequence[Shape], shape: Shape, constants: list[TensorProto]
    ) -> Step:
        """A bound session of one node, whose inputs are those it reads that are not constants."""
        fed = [name for name in read if name not in {each.name for each in constants}]
        inputs = [_info(name, each) for name, each in zip(fed, shapes, strict=True)]
        node = helper.make_node(kind, read, ["z"])
        model = _model(helper.make_graph([node], kind.lower(), inputs, [_info("z", shape)], constants))
        session = process.session(model, process.options(self._spec))
        binding = session.io_binding()
        for name, each in zip(fed, shapes, strict=True):
            value = OrtValue.ortvalue_from_shape_and_type(each, np.float32)
            value.update_inplace(_random(each))
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("z", OrtValue.ortvalue_from_shape_and_type(shape, np.float32))
        return partial(session.run_with_iobinding, binding)


def _random(shape: Shape) -> Array:
    return np.random.default_rng(0).standard_normal(shape, "float32")


def _info(name: str, shape: Shape, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(graph: GraphProto) -> ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def best(kernels: Sequence[Kernel], seconds: float) -> float:
    """The highest rate of any kernel; each has one stretch of the time to itself.

    They must not take turns: the pool of a session that has just run spins for some 40 ms on the cores that
    the next one needs, which cost a third of the peak.
    """
    return max(_highest(each, seconds / len(kernels)) for each in kernels)


def _highest(kernel: Kernel, seconds: float) -> float:
    """The highest rate of any group of calls within this long, and of at least two."""
    fastest, end = kernel.rate(), time.perf_counter() + seconds
    while True:
        fastest = max(fastest, kernel.rate())
        if time.perf_counter() >= end:
            return fastest
