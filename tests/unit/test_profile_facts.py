"""What documents, tables and insights say of a profile."""

import io

import pytest

from layermark import stats
from layermark.outcome import Ceiling, from_json, to_json
from layermark.report.profile import ROWS_SHOWN, profile_lines, render_profiles

from .samples import a_run, a_spec


def operator(seconds, node=("conv1",), name="conv", kind="Conv2d", calls=2, flops=1_000_000, moved=4000):
    facts = {"operator": name, "calls": calls, "seconds": seconds, "node": list(node), "kind": kind}
    return {**facts, "flops": flops, "bytes": moved}


def profiled(*operators, batches=2, pass_s=0.02, backend="null", execution="auto", **more):
    """The document of a run with a step of 10 ms and this profile."""
    told = {"batches": batches, "pass_s": pass_s, "operators": list(operators), "memory": {}, "files": [], **more}
    ceiling = Ceiling(flops_per_s=(1e9,), bytes_per_s=(1e9,), flops=1_000_000, bytes=4000, probe="null")
    run = a_run(profile=told, ceiling=ceiling, spec=a_spec(backend=backend), settings={"execution": execution})
    assert run == from_json(to_json(run))
    return stats.document(run, session="s")


def codes(document):
    return [each["code"] for each in document["profile"]["insights"]]


def test_a_document_without_a_profile_says_so():
    assert stats.document(a_run(), session="s")["profile"] is None


def test_times_are_those_of_a_batch_beside_the_timed_step():
    found = profiled(operator(0.015), operator(0.005, node=(), name="rest", flops=None, moved=None))["profile"]
    assert pytest.approx((0.01, 0.01, 0.0)) == (found["step_s"], found["sum_s"], found["gap"])
    assert pytest.approx((0.01, 0.0, 0.75)) == (found["pass_s"], found["overhead"], found["tied"])
    first, rest = found["operators"]
    assert (["conv1"], "conv", 1) == (first["node"], first["operator"], first["calls"])
    assert pytest.approx((0.0075, 0.75)) == (first["time_s"], first["share"])
    assert pytest.approx((1e6 / 0.0075, 0.001 / 0.0075)) == (first["flops_per_s"], first["of_ceiling"])
    assert rest["flops_per_s"] is None and rest["of_ceiling"] is None


@pytest.mark.parametrize(("seconds", "said"), [(0.0185, False), (0.0215, False), (0.017, True), (0.023, True)])
def test_a_sum_that_misses_the_step_by_more_than_a_tenth_is_said(seconds, said):
    assert said == ("gap" in codes(profiled(operator(seconds))))


def test_the_profilers_own_time_is_said():
    assert "overhead" in codes(profiled(operator(0.02), pass_s=0.03))
    assert "overhead" not in codes(profiled(operator(0.02), pass_s=0.021))


def test_time_without_nodes_is_said():
    assert "untied" in codes(profiled(operator(0.018), operator(0.002, node=())))
    assert "untied" not in codes(profiled(operator(0.0195), operator(0.0005, node=())))


def test_slow_products_are_counted_and_another_execution_named():
    rows = [operator(0.006, (f"conv{number}",)) for number in range(3)]
    document = profiled(*rows, operator(0.002, ("relu",), "relu", "Activation"), backend="torch", execution="eager")
    (text,) = [each["text"] for each in document["profile"]["insights"] if each["code"] == "slow_products"]
    assert "60% of the time is in 2 convolutions at 33% of the ceiling: try --execution compile" == text


def test_where_the_time_is_stands_there_even_where_nothing_is_to_be_changed():
    rows = [operator(0.012, flops=4_000_000), operator(0.005, ("fc", "relu"), "gemm")]
    document = profiled(*rows, operator(0.002, (), "copy_", ""), operator(0.001, ("pool",), "pool", ""))
    assert ["where"] == [each for each in codes(document) if each != "untied"]
    (text,) = [each["text"] for each in document["profile"]["insights"] if each["code"] == "where"]
    assert "95% of the time is in 3 of 4 operators: conv1 (conv) 60%, fc and 1 more (gemm) 25%, copy_ 10%" == text
    (text,) = [each["text"] for each in profiled(operator(0.02))["profile"]["insights"] if each["code"] == "where"]
    assert "100% of the time is in one operator: conv1 (conv) 100%" == text


def test_products_at_the_ceiling_need_less_work():
    assert "near_ceiling" in codes(profiled(operator(0.0205, flops=9_500_000)))


def test_norms_of_their_own_layouts_and_small_calls_are_found():
    norms = operator(0.008, ("bn",), "batch_norm", "Norm")
    moves = operator(0.008, ("conv1",), "ReorderInput", "Conv2d")
    assert {"not_fused", "layout"} <= set(codes(profiled(norms, moves, operator(0.004))))
    assert "small_calls" in codes(profiled(operator(0.02, calls=10_000)))
    assert not {"not_fused", "layout", "small_calls"} & set(codes(profiled(operator(0.02))))


def test_the_table_has_the_sum_and_the_overhead():
    lines = list(profile_lines("it", profiled(operator(0.017), pass_s=0.024)["profile"]))
    assert ["conv1", "conv", "1", "8.50", "100%", "0.118", "11.8%"] == lines[2].split()
    assert "sum of operators  8.50 ms, -15% beside the timed step of 10.0 ms" in lines
    assert any(line.startswith("gap: ") for line in lines)
    assert any("+20% on the timed step" in line for line in lines)


def test_a_long_table_says_what_it_leaves_out():
    rows = [operator(0.001, (f"n{number}",)) for number in range(ROWS_SHOWN + 5)]
    assert "and 5 more with 20.0% of the time" in list(profile_lines("it", profiled(*rows)["profile"]))


def test_hostile_names_stay_in_their_line():
    hostile = "\x1b[2Jevil\nline\x07" + "x" * 500
    memory = {"peak_bytes": 5, "alive": [{"node": hostile, "bytes": 5}]}
    document = profiled(operator(0.02, (hostile,), hostile), memory=memory)
    shown = io.StringIO()
    render_profiles([document], shown)
    assert "\x1b" not in shown.getvalue() and "\x07" not in shown.getvalue()
    assert not any(line.startswith("line") for line in shown.getvalue().splitlines())


def test_what_is_alive_at_the_peak_is_told():
    memory = {"peak_bytes": 3000, "alive": [{"node": "conv1", "bytes": 2000}]}
    lines = list(profile_lines("it", profiled(operator(0.02), memory=memory)["profile"]))
    assert "most memory       3.00 kB" in lines
    assert "  conv1  2.00 kB  66.7%" == lines[lines.index("alive at the peak of memory") + 1]
