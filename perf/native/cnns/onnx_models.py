"""The networks as ONNX, written by hand."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from native.cnns.networks import CLASSES, NETWORKS, SIZE, Add, Conv, Gate, MaxPool


class Writer:
    """Nodes and constants, numbered."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, kind, *inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(self, x, weight, bias, **attributes):
        return self.node("Conv", x, self.constant(weight), self.constant(bias), **attributes)

    def active(self, x, activation):
        if activation == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        return self.node("Relu", x) if activation else x

    def written(self, each, values):
        """Write one operation; return the name of what it gives."""
        x = values[each.x]
        if isinstance(each, Conv):
            edges, stride = [each.padding] * 4, [each.stride] * 2
            y = self.conv(x, each.weight, each.bias, strides=stride, pads=edges, group=each.groups)
            return self.active(y, each.activation)
        if isinstance(each, Add):
            return self.active(self.node("Add", x, values[each.other]), each.activation)
        if isinstance(each, MaxPool):
            return self.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        mean = self.node("GlobalAveragePool", x)
        if isinstance(each, Gate):
            square = [weight[..., None, None] for weight in each.weights]
            hidden = self.active(self.conv(mean, square[0], each.biases[0]), "silu")
            return self.node("Mul", x, self.node("Sigmoid", self.conv(hidden, square[1], each.biases[1])))
        flat = self.node("Flatten", mean)
        return self.node("Gemm", flat, self.constant(each.weight), self.constant(each.bias), transB=1)


def model(name, batch):
    """The bytes of a model from `x` to `y`."""
    writer, values = Writer(), ["x"]
    for each in NETWORKS[name]():
        values.append(writer.written(each, values))
    writer.nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (int(batch), 3, SIZE, SIZE))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (int(batch), CLASSES))
    graph = helper.make_graph(writer.nodes, name, [x], [y], writer.constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()
