"""Recurrent layers: ONNX's own LSTM, GRU and RNN, and one cell per time step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import GraphProto, NodeProto, helper

from layermark import ops
from layermark.backends._onnx.recurrent_steps import LOOP_ORDER, STEPS, Recurrence, ordered
from layermark.backends._onnx.writer import Array, Site

# Where ONNX's order of the gates (rnn; update, reset, new; input, output, forget, cell) lies in the graph's.
_ONNX_ORDER = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}


def recurrent_layer(op: ops.Recurrent, site: Site) -> str:
    """The hidden states of every time step."""
    if op.form == "fused":
        return _fused(op, site)
    steps = site.shapes[0][0]
    return _unrolled(op, site) if steps <= site.writer.unroll else _scan(op, site)


def _bias(op: ops.Recurrent, site: Site) -> Array | None:
    """The bias of all gates with the forget bias in it, if there is either."""
    found = site.array("bias").astype("float32") if op.bias else np.zeros(op.gates * op.hidden, "float32")
    if op.cell == "lstm" and op.forget_bias:
        shift = np.zeros((op.gates, op.hidden), "float32")
        shift[1] = op.forget_bias
        return found + shift.reshape(-1)
    return found if op.bias else None


def _fused(op: ops.Recurrent, site: Site) -> str:
    order = _ONNX_ORDER[op.cell]
    weights = [site.parameter(name, ordered(op, site.array(name), order)[None]) for name in ("weight", "recurrent")]
    bias = _bias(op, site)
    if bias is not None:
        second = np.zeros_like(bias)
        if _second_bias(op):
            second[2 * op.hidden :] = site.array("recurrent_bias")
        both = np.concatenate([ordered(op, bias, order), second])
        weights.append(site.parameter("bias", both[None]))
    extra = {"linear_before_reset": int(op.reset == "after")} if op.cell == "gru" else {}
    made = site.call(op.cell.upper(), site.x, *weights, suffix=op.cell, hidden_size=op.hidden, **extra)
    return site.call("Squeeze", made, site.integers("direction_axis", [1]))


def _second_bias(op: ops.Recurrent) -> bool:
    return op.bias and op.cell == "gru" and op.reset == "after"


def _projected(op: ops.Recurrent, site: Site) -> str:
    """The product of all inputs with the weights, before the loop: `[time x batch, gates x hidden]`."""
    steps, batch, features = site.shapes[0]
    order, bias = LOOP_ORDER[op.cell], _bias(op, site)
    operands = [site.reshape(site.x, (steps * batch, features), "rows")]
    operands.append(site.parameter("weight", ordered(op, site.array("weight"), order)))
    if bias is not None:
        operands.append(site.parameter("bias", ordered(op, bias, order)))
    return site.call("Gemm", *operands, suffix="projection", transB=1)


def _recurrence(op: ops.Recurrent, site: Site) -> Recurrence:
    rows = ordered(op, site.array("recurrent"), LOOP_ORDER[op.cell])
    second = site.parameter("recurrent_bias") if _second_bias(op) else ""
    if op.cell == "gru" and op.reset == "before":
        gates, new = rows[: 2 * op.hidden], rows[2 * op.hidden :]
        return Recurrence(op.hidden, site.parameter("recurrent", gates), site.parameter("recurrent_new", new), second)
    return Recurrence(op.hidden, site.parameter("recurrent", rows), "", second)


def _start(op: ops.Recurrent, site: Site) -> list[str]:
    zeros = site.floats("start", np.zeros((site.shapes[0][1], op.hidden)))
    return [zeros] * (2 if op.cell == "lstm" else 1)


def _scan(op: ops.Recurrent, site: Site) -> str:
    """A loop of the runtime's own; the weights are read from outside of its body."""
    start = _start(op, site)
    body = _body(op, site, len(start))
    steps, batch, _ = site.shapes[0]
    projected = site.reshape(_projected(op, site), (steps, batch, op.gates * op.hidden), "projected")
    name = site.node.name
    finals = [f"{name}/final{index}" for index in range(len(start))]
    site.writer.nodes.append(
        helper.make_node("Scan", [*start, projected], [*finals, name], name=name, body=body, num_scan_inputs=1)
    )
    return name


def _body(op: ops.Recurrent, site: Site, states: int) -> GraphProto:
    nodes: list[NodeProto] = []
    inside = replace(site, body=nodes, prefix="step")
    recurrence = _recurrence(op, inside)  # casts belong to the body: OpenVINO takes only constants from outside
    read = [f"{site.node.name}/step/in{index}" for index in range(states)]
    projected = f"{site.node.name}/step/projected"
    made = list(STEPS[op.cell](inside, recurrence, projected, tuple(read)))
    made.append(inside.call("Identity", made[0], suffix="out"))
    batch, kind = site.shapes[0][1], site.writer.compute
    rows = {name: helper.make_tensor_value_info(name, kind, [batch, op.hidden]) for name in (*read, *made)}
    fed = helper.make_tensor_value_info(projected, kind, [batch, op.gates * op.hidden])
    return helper.make_graph(
        nodes, f"{site.node.name}/step", [*(rows[name] for name in read), fed], [rows[name] for name in made]
    )


def _unrolled(op: ops.Recurrent, site: Site) -> str:
    """Every time step written out: for few of them quicker than a loop, whose turns cost as much as a small step."""
    steps, batch, _ = site.shapes[0]
    recurrence, state = _recurrence(op, site), tuple(_start(op, site))
    rows = _projected(op, site)
    parts = site.calls("Split", rows, outputs=steps, suffix="each", axis=0, num_outputs=steps) if steps > 1 else [rows]
    outputs = []
    for index, projected in enumerate(parts):
        state = STEPS[op.cell](replace(site, prefix=f"step{index}"), recurrence, projected, state)
        outputs.append(state[0])
    joined = site.call("Concat", *outputs, suffix="joined", axis=0)
    return site.reshape(joined, (steps, batch, op.hidden))
