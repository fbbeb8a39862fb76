"""What happens to subnormal numbers: asked of the runtime itself, by a product large enough for all its threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from layermark.backends._onnx.writer import IR_VERSION, OPSET, Array
from layermark.errors import Unsupported

_ELEMENTS = 1 << 20


def require(runtime: str, wanted: str, run: Callable[[ModelProto, Array], Array]) -> str:
    """`wanted`, if a program of the runtime (from a model and its input to the output) really does so."""
    made = run(product(), np.full(_ELEMENTS, 1e-30, "float32"))
    kept = int(np.count_nonzero(made.view("int32")))  # as integers: a flushing thread reads subnormals as zero
    found = {0: "flush", _ELEMENTS: "keep"}.get(kept, "mixed")
    if found != wanted:
        raise Unsupported(f"{runtime} cannot {wanted} subnormal numbers in this process, where it started to {found}")
    return found


@cache
def product() -> ModelProto:
    """The product of every element with 1e-10."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [_ELEMENTS]) for name in "xy")
    factor = numpy_helper.from_array(np.array([1e-10], "float32"), "factor")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "product", [x], [y], [factor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
