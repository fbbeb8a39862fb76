"""What a worker keeps of a pass over time: memory, told or derived from the graph, and one batch of its operators."""

import math

import pytest

from layermark import ops
from layermark.graph import Graph, Node
from layermark.worker import profile_memory
from layermark.worker.profile_timeline import BARS, timeline

SIDE = 8
CHAIN = Graph(
    (
        Node("x", ops.Input((2, SIDE))),
        Node("fc1", ops.Dense(2 * SIDE), ("x",)),
        Node("relu", ops.Activation("relu"), ("fc1",)),
        Node("fc2", ops.Dense(SIDE), ("relu",)),
        Node("sum", ops.Add(), ("fc2", "x")),
    ),
    ("sum",),
)
BYTES = 4 * 2 * SIDE  # of a value as wide as the input


def held(found):
    return [size for _, size in found["points"]]


def test_a_value_lives_from_its_node_to_its_last_reader():
    found = profile_memory.derived(CHAIN, "infer", 4)
    assert ("graph", "node") == (found["source"], found["unit"])
    assert [0, 2 * BYTES, 4 * BYTES, 3 * BYTES, 2 * BYTES] == held(found)
    assert (4 * BYTES, 2) == (found["peak_bytes"], found["peak_at"])
    assert [("fc1", 2 * BYTES), ("relu", 2 * BYTES)] == [(each["node"], each["bytes"]) for each in found["alive"]]


def test_what_is_read_late_is_held_until_then():
    nodes = list(CHAIN.nodes)
    nodes[4] = Node("sum", ops.Add(), ("fc2", "fc2"))
    late = Graph((*nodes, Node("cat", ops.Concat(), ("sum", "relu"))), ("cat",))
    assert "relu" in {each["node"] for each in profile_memory.derived(late, "infer", 4)["alive"]}


def test_views_have_no_memory_of_their_own_and_keep_what_they_show():
    nodes = (
        Node("x", ops.Input((2, 3, 4, 4))),
        Node("relu", ops.Activation("relu"), ("x",)),
        Node("flat", ops.Flatten(), ("relu",)),
        Node("fc", ops.Dense(5), ("flat",)),
    )
    size = 4 * 2 * 3 * 4 * 4
    assert [0, size, size, size + 4 * 2 * 5] == held(profile_memory.derived(Graph(nodes, ("fc",)), "infer", 4))


def test_training_keeps_values_for_the_backward_pass():
    found, forwards = profile_memory.derived(CHAIN, "train", 4), profile_memory.derived(CHAIN, "infer", 4)
    assert 2 * len(CHAIN.nodes) == len(found["points"]) and len(CHAIN.nodes) == len(forwards["points"])
    assert [0, 2 * BYTES, 4 * BYTES, 5 * BYTES] == held(found)[:4]  # nothing is let go of on the way
    assert found["peak_bytes"] > forwards["peak_bytes"] and found["peak_at"] >= len(CHAIN.nodes)
    weights = 4 * sum(each.count for each in CHAIN.parameters.values())
    # In the end: the gradients of all weights.
    assert weights == held(found)[-1]


def test_smaller_types_need_less():
    whole, half = (profile_memory.derived(CHAIN, "infer", size)["peak_bytes"] for size in (4, 2))
    assert whole == 2 * half


def test_long_curves_are_thinned_and_keep_their_peak():
    points = [(at / 1e6, 1000 + at % 97) for at in range(5000)]
    points[1234] = (1234e-6, 9999)
    found = profile_memory.told(points, [{"node": "conv", "bytes": 9}])
    assert profile_memory.POINTS >= len(found["points"]) > profile_memory.POINTS / 2
    assert (9999, pytest.approx(1234e-6)) == (found["peak_bytes"], found["peak_at"])
    assert max(held(found)) == 9999 and "allocator" == found["source"]


def event(name, began, lasted, lane=0, operator="Conv", nodes=("conv1",)):
    args = {"nodes": list(nodes)} if nodes else {}
    return {"ph": "X", "pid": 0, "tid": lane, "name": name, "cat": operator, "ts": began, "dur": lasted, "args": args}


def a_trace(*events):
    lane = {"ph": "M", "pid": 0, "tid": 0, "ts": 0, "name": "thread_name", "args": {"name": "thread 0"}}
    return {"traceEvents": [lane, *events]}


def test_a_timeline_is_the_last_batch_without_what_is_no_operator():
    events = [event("a", at * 1000 + began, 300) for at in range(3) for began in (0, 400)]
    found = timeline(a_trace(*events, event("run", 0, 3000, operator="runtime")), 3, ["conv1"])
    assert [(0.0, 0.0003), (0.0004, 0.0007)] == [(each["start_s"], each["end_s"]) for each in found["bars"]]
    assert {("thread 0", "conv1 (Conv)")} == {(each["lane"], each["name"]) for each in found["bars"]}


def test_a_loop_is_shown_by_what_runs_inside():
    events = [event("while", 0, 1000, operator="while", nodes=()), event("a", 0, 400), event("b", 500, 400)]
    found = timeline(a_trace(*events), 1, ["conv1"])
    assert ["conv1 (Conv)"] * 2 == [each["name"] for each in found["bars"]]


def test_neighbours_are_not_inside_of_each_other_by_rounding():
    assert 0.1 + 0.2 > 0.3
    found = timeline(a_trace(event("a", 0.1, 0.2), event("b", 0.3, 0.2)), 1, ["conv1"])
    assert 2 == len(found["bars"])


def test_the_shortest_are_left_out_and_counted():
    events = [event("a", 20 * at, 1 + at % 10) for at in range(2 * BARS)]
    found = timeline(a_trace(*events), 1, ["conv1"])
    assert (BARS, BARS) == (len(found["bars"]), found["left_out"])
    shown = [each["end_s"] - each["start_s"] for each in found["bars"]]
    whole = sum(each["dur"] for each in events) / 1e6
    assert math.isclose(whole, sum(shown) + found["left_out_s"], rel_tol=1e-6)
    assert found["left_out_s"] < sum(shown)


def test_a_trace_without_operators_has_an_empty_timeline():
    assert {"bars": [], "left_out": 0, "left_out_s": 0} == timeline(a_trace(), 1, [])
