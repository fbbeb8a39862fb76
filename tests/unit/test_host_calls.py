"""Whole host calls: timed in the worker, put together over copies in the parent."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import TRACE_FILE, Profile, Timeline, backend
from layermark.errors import Unsupported
from layermark.session.ranks import merge_ranks
from layermark.session.threads import thread_faults
from layermark.spec import Spec
from layermark.worker.host_calls import seconds_per_batch, single_latencies, timed_call
from layermark.worker.profile import write_profile
from layermark.worker.score import made_up_label, right_answers
from layermark.workloads.base import task

from .samples import MS, a_block


@pytest.fixture
def program():
    spec = Spec(workload="dense", backend="null", batch_size=2, threads=1, params={"size": 64})
    return backend("null").prepare(spec, task(spec))


def test_a_call_is_one_sample_of_all_its_batches(program):
    answer = timed_call(program, 7)
    assert (1, 7) == (answer["block"]["calls"], answer["block"]["batches"])
    assert [sum(answer["block"]["latencies_ns"])] == list(answer["block"]["samples_ns"])
    assert 7 == len(answer["block"]["latencies_ns"])


def test_the_time_of_a_batch_is_that_of_the_calls(program):
    found = seconds_per_batch(program)
    assert found == pytest.approx(timed_call(program, 100)["block"]["samples_ns"][0] / 1e9 / 100, rel=0.01)


def test_a_step_may_be_several_calls(program):
    block = timed_call(program, 7, calls=3)["block"]
    assert (3, 21, 21) == (block["calls"], block["batches"], len(block["latencies_ns"]))
    assert [sum(block["latencies_ns"])] == list(block["samples_ns"])


class Handing:
    """A stream that hands every batch over half a millisecond before it is done."""

    def __init__(self):
        self.list = []

    def counters(self):
        return {}

    def watch(self):
        self.list = []
        return self.list


def test_waiting_for_pictures_is_no_latency(program):
    stream = Handing()
    run = program.run

    def loading_run(batches):
        timeline = run(batches)
        stream.list.extend(done - MS // 2 for done in timeline.done)
        return timeline

    program.run = loading_run
    assert {MS // 2} == set(timed_call(program, 5, calls=2, stream=stream)["block"]["latencies_ns"])


def test_a_loop_inside_the_runtime_tells_no_latencies(program):
    run = program.run

    def looping_run(batches):
        timeline = run(batches)
        return Timeline(timeline.handed_over[:1], timeline.done[-1:])

    program.run = looping_run
    assert () == timed_call(program, 5)["block"]["latencies_ns"]
    found = single_latencies(program, seconds=3600.0, most=4)
    assert 4 == len(found) and all(each > 0 for each in found)
    assert 1 == len(single_latencies(program, seconds=0.0, most=4))


def test_right_answers_are_counted():
    spec = Spec(workload="resnet8-cifar", backend="null", batch_size=3, threads=1, params={"image_size": (8, 8)})
    made = task(spec)
    program = backend("null").prepare(spec, made)
    program.load(made.weights())
    program.run(1)
    (logits,) = program.outputs().values()
    first, *others = logits.argmax(axis=1)
    labelled = dataclasses.replace(made, stream=Labelled([first, *(each + 1 for each in others)]))
    program.load(made.weights())
    assert 1 == right_answers(program, labelled, 1)
    program.load(made.weights())
    made_up = made_up_label(spec.seed, 10)
    assert [first, *others].count(made_up) == right_answers(program, made, 1)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_no_numbers_are_no_right_answer(broken):
    """NumPy takes the first of them for the largest: a network that has diverged would sort all into class 0."""
    logits = np.array([[broken, 1.0, 2.0], [broken] * 3, [3.0, 1.0, broken], [3.0, 1.0, 2.0]])
    program = SimpleNamespace(run=lambda batches: None, outputs=lambda: {"logits": logits})
    assert 1 == right_answers(program, SimpleNamespace(stream=Labelled(np.zeros(4, int))), 1)


class Labelled:
    """A stream of which only the labels are asked for."""

    def __init__(self, labels):
        self.labels = labels


def as_answer(block, began_ns):
    return {"block": vars(block) | {"samples_ns": list(block.samples_ns)}, "began_ns": began_ns}


def test_copies_last_from_the_first_start_to_the_last_end():
    found = merge_ranks([as_answer(a_block(10), 0), as_answer(a_block(12, busy_threads=3), 5 * MS)])
    assert (17 * MS,) == found.samples_ns
    assert ((10 * MS, 12 * MS),) == found.ranks_ns
    assert 5 == found.context["busy_threads"]


def test_copies_beyond_their_budget_are_found_together():
    """Each alone takes half of the CPUs; only what all of them take tells that there are too many threads."""
    each = a_block(2000, cpu_s=1.9, wall_s=2.0, busy_threads=2.0, cpus=2)
    assert [] == thread_faults(2, [each])
    both = merge_ranks([as_answer(each, 0), as_answer(each, 0)])
    assert ["keeps 4.0 threads busy on a budget of 2"] == [each.text for each in thread_faults(2, [both])]


def test_one_copy_is_taken_as_it_is():
    assert a_block(10) == merge_ranks([as_answer(a_block(10), 3)])


def test_a_runtime_without_a_profiler_says_so(program, tmp_path):
    with pytest.raises(Unsupported, match="no profiler"):
        write_profile(program, tmp_path, "dense", 1)


def test_profiles_are_three_files(program, tmp_path):
    spans = [
        Span("main", "gemm.1", 0, 3e6, "gemm"),
        Span("main", "add.1", 3e6, 1e6, "add"),
        Span("main", "wait", 0, 9e6),
    ]

    def profile(folder, batches):
        write_trace(spans, folder)
        return Profile(by_operator(spans), 0.009)

    program.profile = profile
    graph = task(Spec(workload="conv", backend="null", batch_size=2, threads=1)).graph
    found = write_profile(program, tmp_path / "new", "dense", 2, graph=graph)
    assert [node.name for node in graph] == found["nodes"] and len(found["nodes"]) > 1
    assert ["dense.trace.json", "dense.profile.txt", "dense.profile.json"] == [
        path.rsplit("/", 1)[1] for path in found["files"]
    ]
    events = json.loads((tmp_path / "new" / "dense.trace.json").read_text())["traceEvents"]
    assert ["process_name", "thread_name", "wait", "gemm.1", "add.1"] == [event["name"] for event in events]
    summary = json.loads((tmp_path / "new" / "dense.profile.json").read_text())
    assert (2, 0.009, {}) == (summary["batches"], summary["pass_s"], summary["memory"])
    rows = [(each["operator"], each["calls"], each["seconds"], each["node"]) for each in summary["operators"]]
    assert [("gemm", 1, 0.003, []), ("add", 1, 0.001, [])] == rows
    assert not (tmp_path / "new" / TRACE_FILE).exists()
