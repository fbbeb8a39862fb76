"""What a result says about ranks that worked together: the lanes of a pipeline, and what averaging took."""

import dataclasses
import pickle

import numpy as np
import pytest

from layermark.backends._led import LedProgram, Line, Order, of_all_stages
from layermark.report.together import lines, text_lanes
from layermark.spec import Group
from layermark.workloads.base import task

from .samples import a_spec


def bar(lane, name, start_s, end_s):
    return {"lane": lane, "name": name, "start_s": start_s, "end_s": end_s}


def test_lanes_show_who_works_on_which_micro_batch_and_who_waits():
    bars = [
        bar("rank 0", "forward 0 of stage 0", 0.0, 1.0),
        bar("rank 0", "forward 11 of stage 0", 1.0, 2.0),
        bar("rank 1", "forward 0 of stage 1", 1.0, 2.0),
        bar("rank 1", "backward 0 of stage 1", 2.0, 3.5),
        bar("rank 1", "weights 0 of stage 1", 3.5, 4.0),
    ]
    assert ["rank 0 |0011....|", "rank 1 |..00aaaw|"] == list(text_lanes(bars, columns=8))


def test_the_shortest_work_is_seen_and_the_last_ends_with_the_lane():
    bars = [bar("rank 0", "forward 1 of stage 0", 0.0, 1e-9), bar("rank 1", "backward 2 of stage 1", 9.999, 10.0)]
    assert ["rank 0 |1.........|", "rank 1 |.........c|"] == list(text_lanes(bars, columns=10))
    assert [] == list(text_lanes([])) == list(text_lanes([bar("rank 0", "forward 0 of stage 0", 0.0, 0.0)]))


SUM = {"bytes": 301_000, "seconds": 1e-3, "bus_bytes_per_s": 2e9, "right": True}
SHARED = {"replicas": 2, "gradient_bytes": 301_000, "average_s": 0.004, "hidden": 0.15, "all_reduce": [SUM]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overlaps": True}, "2 replicas average 301kB of gradients in 4 ms, 15% of it behind the backward pass; "),
        ({}, "15% of it behind the backward pass; "),
        ({"overlaps": False, "hidden": 0.0}, "in 4 ms, not overlapped with anything; "),
        ({"all_reduce": [SUM, {**SUM, "right": False}]}, "2 GB/s on the bus; WRONG SUMS"),
    ],
)
def test_the_line_of_replicas_says_how_much_of_averaging_hides(changes, said):
    (line,) = lines({"communication": {**SHARED, **changes}})
    assert said in line


def test_what_averaging_takes_is_told_of_all_stages():
    """They average at the same time: bytes add up, the slowest counts, and one wrong sum is a wrong sum."""
    small, large = {**SUM, "bytes": 4096, "seconds": 1e-4}, {**SUM, "bytes": 900_000, "seconds": 3e-3}
    first = {**SHARED, "all_reduce": [small, SUM]}
    last = {**SHARED, "gradient_bytes": 900_000, "average_s": 0.007}
    last["all_reduce"] = [{**small, "seconds": 2e-4, "right": False}, large]
    found = of_all_stages([first, last])
    assert (1_201_000, 0.007) == (found["gradient_bytes"], found["average_s"])
    assert [{**small, "seconds": 2e-4, "right": False}, SUM, large] == found["all_reduce"]
    assert [(301_000, 0.004), (900_000, 0.007)] == [tuple(each.values()) for each in found["stages"]]
    assert first == of_all_stages([first])


class Recorded(Line):
    """A line on which rank 0 is alone, and what it says."""

    def __init__(self):
        self.objects = []

    def numbers(self, values):
        return list(values)

    def object(self, value):
        self.objects.append(value)
        return pickle.loads(pickle.dumps(value))

    def gathered(self, value):
        return [value]

    def barrier(self):
        pass


class Led(LedProgram):
    """A program of which only loading matters."""

    settings = {}

    def _run_own(self, batches):
        pass

    def _load_own(self, weights, state):
        self.loaded = weights

    def _answer(self, order: Order):
        return None

    def _held(self, order: Order):
        return {}


ONE, TWO = ("127.0.0.1:1", "127.0.0.1:2"), ("10.0.0.1:1", "10.0.0.2:1")


@pytest.mark.parametrize(
    ("addresses", "weights", "sent"), [(ONE, "", False), (TWO, "", True), (ONE, "some.safetensors", True)]
)
def test_the_first_weights_are_sent_where_another_host_or_file_could_hold_others(addresses, weights, sent):
    made = task(a_spec(mode="train"))
    spec = dataclasses.replace(a_spec(mode="train"), weights=weights)
    line = Recorded()
    program = Led(spec, made, Group(rank=0, addresses=addresses), line)
    program.load(made.weights())
    assert [sent] == [each is not None for each in line.objects]
    expected = made.weights()
    assert expected.keys() == program.loaded.keys()
    assert all(np.array_equal(expected[name], program.loaded[name]) for name in expected)


def test_other_weights_than_the_first_are_always_sent():
    made = task(a_spec(mode="train"))
    line = Recorded()
    program = Led(a_spec(mode="train"), made, Group(rank=0, addresses=ONE), line)
    program.load({name: each + 1 for name, each in made.weights().items()})
    assert line.objects[0] is not None
