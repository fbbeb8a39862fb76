"""The workloads as ONNX graphs, node by node, for the two runtimes that read them."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from native.data import HIDDEN, REPEATS, SHAPES

ORDERS = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
"""Gates in ONNX's order."""


def reordered(cell, array):
    gates = len(ORDERS[cell])
    return array.reshape(gates, -1, *array.shape[1:])[list(ORDERS[cell])].reshape(array.shape)


def layer(cell, weights, x, hidden, suffix="", squeezed=True):
    """One recurrent node with its initialisers, and the Squeeze of its direction axis."""
    bias = reordered(cell, weights["bias" + suffix])
    second = np.zeros_like(bias)
    if cell == "gru":
        second[2 * hidden :] = weights["recurrent_bias"]
    held = {
        f"W{suffix}": reordered(cell, weights["weight" + suffix])[None],
        f"R{suffix}": reordered(cell, weights["recurrent" + suffix])[None],
        f"B{suffix}": np.concatenate([bias, second])[None],
        "axis": np.array([1]),
    }
    extra = {"linear_before_reset": 1} if cell == "gru" else {}
    names, y = list(held)[:3], f"Y{suffix}"
    nodes = [helper.make_node(cell.upper(), [x, *names], [y], hidden_size=hidden, **extra)]
    nodes.append(helper.make_node("Squeeze", [y, "axis"], [f"s{suffix}"]))
    return nodes, held


def dense(weights):
    nodes = [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)]
    return nodes, weights


def dense_matmul(weights):
    nodes = [helper.make_node("MatMul", ["x", "turned"], ["xw"]), helper.make_node("Add", ["xw", "bias"], ["y"])]
    return nodes, {"turned": weights["weight"].T.copy(), "bias": weights["bias"]}


def conv(weights):
    nodes = [helper.make_node("Conv", ["x", "weight", "bias"], ["y"], strides=[2, 2], pads=[3, 3, 3, 3])]
    return nodes, weights


def conv_folded(weights):
    """Squares of 2 x 2 pixels as channels: more of them than the picture has, for kernels that want 16."""
    kernel = weights["weight"].reshape(64, 4, 2, 2, 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(64, 16, 2, 2)
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["wide"]),
        helper.make_node("SpaceToDepth", ["wide"], ["deep"], blocksize=2),
        helper.make_node("Conv", ["deep", "kernel", "bias"], ["y"]),
    ]
    return nodes, {"pads": np.array([0, 0, 3, 3, 0, 0, 3, 3]), "kernel": kernel.copy(), "bias": weights["bias"]}


def grouped_conv(weights):
    names = ["x", *(f"y{index}" for index in range(1, REPEATS)), "y"]
    nodes = [
        helper.make_node("Conv", [names[index], f"weight{index}"], [names[index + 1]], pads=[1] * 4, group=64)
        for index in range(REPEATS)
    ]
    return nodes, weights


def recurrent(cell, weights):
    nodes, held = layer(cell, weights, "x", HIDDEN)
    nodes[-1].output[0] = "y"
    return nodes, held


def lstm_multi(weights):
    one, first = layer("lstm", weights, "x", 256, "1")
    two, second = layer("lstm", weights, "s1", 256, "2")
    last = [
        helper.make_node("Gather", ["s2", "end"], ["last"], axis=0),
        helper.make_node("Gemm", ["last", "weight", "bias"], ["y"], transB=1),
    ]
    held = first | second | {"end": np.array(-1), "weight": weights["weight"], "bias": weights["bias"]}
    return one + two + last, held


def lstm_multi_state(weights):
    """The last hidden state is an output of the node itself."""
    one, first = layer("lstm", weights, "x", 256, "1")
    two, second = layer("lstm", weights, "s1", 256, "2")
    del two[1]
    two[0].output[0] = ""
    two[0].output.append("h")
    last = [
        helper.make_node("Squeeze", ["h", "front"], ["last"]),
        helper.make_node("Gemm", ["last", "weight", "bias"], ["y"], transB=1),
    ]
    held = first | second | {"front": np.array([0]), "weight": weights["weight"], "bias": weights["bias"]}
    return one + two + last, held


WRITERS = {
    "dense": {"Gemm": dense, "MatMul and Add": dense_matmul},
    "conv": {"Conv": conv, "folded to 16 channels": conv_folded},
    "grouped_conv": {"Conv": grouped_conv},
    "rnn": {"RNN": lambda weights: recurrent("rnn", weights)},
    "gru": {"GRU": lambda weights: recurrent("gru", weights)},
    "lstm": {"LSTM": lambda weights: recurrent("lstm", weights)},
    "lstm_multi": {"LSTM, gathered": lstm_multi, "LSTM, last state": lstm_multi_state},
}


def models(workload, data):
    """Serialised models by the name of their formulation."""
    return {name: _model(workload, *write(data.weights)) for name, write in WRITERS[workload].items()}


def _model(workload, nodes, held):
    shapes = SHAPES[workload]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("xy", shapes, strict=True))
    initialisers = [numpy_helper.from_array(np.array(each, order="C"), name) for name, each in held.items()]
    graph = helper.make_graph(nodes, workload, [x], [y], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
