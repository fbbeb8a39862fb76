"""Whole runs on the null backend: no framework, no noise, the same numbers every time."""

import sqlite3

import pytest

from layermark import measure
from layermark.errors import UserError
from layermark.spec import Plan, Protocol, Spec

DOCUMENT_FIELDS = {
    "schema", "session", "group", "rank", "status", "reason", "spec", "settings", "throughput", "sustained",
    "latency_ms", "compile_s", "memory", "efficiency", "impossible", "noise_floor", "verified", "samples",
    "environment", "command", "warnings",
}  # fmt: skip


def null(layermark, *arguments):
    """A run on the null backend with small shapes."""
    return layermark("run", *arguments, "--backend", "null", "--execution", "auto", "--block", "20ms")


def test_documents_have_every_field_and_are_ok(layermark):
    finished = null(layermark, "dense,lstm", "--size", "256", "--hidden-size", "8", "--json")
    assert 0 == finished.status, finished.stdout + finished.stderr
    dense, lstm = finished.documents
    assert DOCUMENT_FIELDS <= dense.keys()
    assert ["dense", "lstm"] == [dense["spec"]["workload"], lstm["spec"]["workload"]]
    assert "ok" == dense["status"]
    assert dense["verified"]["ok"]
    assert not dense["impossible"]
    assert 0.4 < dense["efficiency"] <= 0.5


def test_the_same_request_gives_the_same_rate(layermark):
    rates = [null(layermark, "dense", "--size", "64", "--json").documents[0]["throughput"]["value"] for _ in range(2)]
    assert rates[0] == pytest.approx(rates[1], rel=0.01)


def test_a_plan_of_the_python_interface_is_carried_out_or_refused():
    spec = Spec(workload="dense", backend="null", params={"size": 8}, threads=2, plan=Plan(replicas=2))
    found = measure(spec, Protocol(time_box=0.1, block=0.02, precision_goal=0.5))
    assert "ok" == found["status"] and 2 == found["spec"]["plan"]["replicas"] == len(found["ranks"])
    with pytest.raises(UserError, match="plan micro_batches=2: not carried out here; expected micro_batches=1"):
        measure(spec.replace(plan=Plan(micro_batches=2)))


def test_comma_lists_are_axes(layermark):
    finished = null(layermark, "dense", "--size", "8,16", "--batch-size", "1,2", "--mode", "infer,eval", "--json")
    assert 8 == len(finished.documents)
    assert {"ok"} == {doc["status"] for doc in finished.documents}
    assert 8 == len({Spec.from_json(doc["spec"]).key for doc in finished.documents})


def test_unsupported_is_skipped_with_the_reason_and_status_0(layermark):
    finished = null(layermark, "dense", "--size", "8", "--mode", "infer,train", "--json")
    assert 0 == finished.status
    assert ["ok", "skipped"] == [doc["status"] for doc in finished.documents]
    assert "null computes no gradients" == finished.documents[1]["reason"]


def test_results_are_stored(layermark):
    finished = null(layermark, "dense", "--size", "8", "--json")
    with sqlite3.connect(layermark.environment["LAYERMARK_STORE"]) as database:
        (count,) = database.execute("select count(*) from outcomes").fetchone()
    assert 1 == count
    again = layermark("run", "--resume", finished.documents[0]["session"], "--json")
    assert 0 == again.status, again.stderr
    assert finished.documents[0]["throughput"] == again.documents[0]["throughput"]


def test_table_names_everything(layermark):
    finished = null(layermark, "dense", "--size", "8", "--mode", "infer,train")
    assert 0 == finished.status, finished.stderr
    for word in ("dense", "null", "infer", "null computes no gradients"):
        assert word in finished.stdout


def test_a_budget_is_shared_by_all(layermark):
    finished = null(layermark, "dense", "--size", "8,9,10", "--batch-size", "1,2,3,4", "--budget", "50s", "--json")
    assert 0 == finished.status, finished.stderr
    assert 12 == len(finished.documents)
    assert [] == [doc["reason"] for doc in finished.documents if not doc["throughput"]["value"]]
    assert all(doc["verified"]["ok"] for doc in finished.documents)
    assert "12 measurements share a budget of 50 s" in finished.stderr


def test_what_a_budget_has_no_time_for_is_skipped(layermark):
    finished = null(layermark, "dense", "--size", "8,16", "--budget", "100ms", "--json")
    assert 0 == finished.status
    assert ["budget", "budget"] == [doc["reason_code"] for doc in finished.documents]


def test_a_closed_pipe_is_no_error(layermark):
    process = layermark.start("list", "workloads")
    process.stdout.close()
    stderr = process.stderr.read()
    assert "Traceback" not in stderr
    assert process.wait(20) in (0, 141, -13)
