"""Softmax and the losses, which are computed in fp32 whatever the rest is computed in."""

from __future__ import annotations

from onnx import TensorProto

from layermark import ops
from layermark.backends._onnx.writer import Site


def softmax(op: ops.Softmax, site: Site) -> str:
    """Jointly over every axis from the given one on."""
    if op.axis == len(site.shape) - 1:
        return site.call("Softmax", site.x, axis=op.axis)
    flat = site.reshape(site.x, (*site.shape[: op.axis], -1), "flat")
    return site.reshape(site.call("Softmax", flat, suffix="softmax", axis=op.axis), site.shape)


def _wide(site: Site, index: int) -> str:
    """Something that a loss reads, in fp32."""
    op = site.writer.graph.by_name[site.node.inputs[index]].op
    if site.writer.compute == TensorProto.FLOAT or (isinstance(op, ops.Input) and op.role == "target"):
        return site.args[index]
    return site.call("Cast", site.args[index], suffix=f"wide{index}", to=TensorProto.FLOAT)


def _reduced(site: Site, kind: str, value: str, suffix: str = "") -> str:
    """All elements reduced to a scalar, rows first: one long chain of fp32 additions would lose digits."""
    rank = len(site.shapes[0])
    if rank < 2:
        return site.call(kind, value, suffix=suffix, keepdims=0)
    last = site.integers("last_axis", [rank - 1])
    rows = site.call(kind, value, last, suffix=f"{suffix or 'total'}/rows", keepdims=0)
    return site.call(kind, rows, suffix=suffix, keepdims=0)


def _square(site: Site) -> str:
    difference = site.call("Sub", _wide(site, 0), _wide(site, 1), suffix="difference")
    return site.call("Mul", difference, difference, suffix="square")


def mean_squared_error(op: ops.MeanSquaredError, site: Site) -> str:
    """The mean of the squared differences."""
    return _reduced(site, "ReduceMean", _square(site))


def sum_squared_error(op: ops.SumSquaredError, site: Site) -> str:
    """The sum of the squared differences."""
    return _reduced(site, "ReduceSum", _square(site))


def mean(op: ops.Mean, site: Site) -> str:
    """The mean of everything."""
    return _reduced(site, "ReduceMean", _wide(site, 0))


def cross_entropy(op: ops.CrossEntropy, site: Site) -> str:
    """The logarithm of the softmax against distributions or whole numbers."""
    logarithms = site.call("LogSoftmax", _wide(site, 0), suffix="log", axis=-1)
    if site.shapes[0] == site.shapes[1]:
        weighted = site.call("Mul", logarithms, _wide(site, 1), suffix="weighted")
        rows = site.call("ReduceSum", weighted, site.integers("last_axis", [-1]), suffix="rows", keepdims=0)
    else:
        rows = _labelled(op, site, logarithms)
    return site.call("Neg", site.call("ReduceMean", rows, suffix="mean", keepdims=0))


def _labelled(op: ops.CrossEntropy, site: Site, logarithms: str) -> str:
    """The labelled element of each row; with smoothing, a share of all the others too."""
    chosen = _chosen(site, logarithms)
    if not op.smoothing:
        return chosen
    others = op.smoothing / (site.shapes[0][-1] - 1)
    own = _float(site, "own_share", 1 - op.smoothing - others)
    total = site.call("ReduceSum", logarithms, site.integers("last_axis", [-1]), suffix="sum", keepdims=1)
    shared = site.call("Mul", total, _float(site, "other_share", others), suffix="shared")
    return site.call("Add", site.call("Mul", chosen, own, suffix="owned"), shared, suffix="smoothed")


def _chosen(site: Site, values: str) -> str:
    column = site.call("Unsqueeze", site.args[1], site.integers("column_axis", [-1]), suffix="column")
    return site.call("GatherElements", values, column, suffix="chosen", axis=-1)


def negative_log_likelihood(op: ops.NegativeLogLikelihood, site: Site) -> str:
    """The sum of the labelled elements' logarithms."""
    safe = site.call("Add", _chosen(site, _wide(site, 0)), _float(site, "epsilon", op.epsilon), suffix="safe")
    return site.call("Neg", site.call("ReduceSum", site.call("Log", safe, suffix="log"), suffix="sum", keepdims=0))


def _float(site: Site, name: str, value: float) -> str:
    return site.floats(name, value, int(TensorProto.FLOAT))
