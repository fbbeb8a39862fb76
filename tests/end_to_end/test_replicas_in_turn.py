"""`layermark run --replicas 1,2`: one process with all threads against two with half of them, in turn."""

import pytest

from layermark.backends.base import backend
from needed import need


def test_one_process_against_two_names_the_faster(layermark):
    asked = ["dense", "--backend", "null", "--size", "64", "--threads", "2", "--replicas", "1,2", "--time-box", "1s"]
    done = layermark("run", *asked)
    assert 0 == done.status, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if "null/reference" in line and " ok " in line]
    assert 2 == len(rows) and 1 == sum(" x2 " in row for row in rows)
    assert "fastest: null/reference x2" in done.stdout or "cannot tell" in done.stdout
    one, two = sorted(layermark.kept(), key=lambda each: each["spec"]["plan"]["replicas"])
    assert [(1, 2), (2, 2)] == [(each["spec"]["plan"]["replicas"], each["spec"]["threads"]) for each in (one, two)]
    assert one["group"] == two["group"] and two["scaling"]["efficiency"] and 2 == len(two["ranks"])
    # The ceiling of the null runtime is that of a process, so that of two processes at once is twice as high.
    ceilings = [each["ceiling"]["flops_per_s"] for each in (one, two)]
    assert 1.9 < ceilings[1] / ceilings[0] < 2.1


@pytest.mark.alone
def test_two_copies_on_real_runtimes_stay_below_what_the_machine_reaches(layermark):
    """Once two honest copies were set against the ceiling of one, and called impossible."""
    for name in ("torch", "onnxruntime"):
        need(backend(name).installed, name)
    small = ["--size", "512", "--batch-size", "64", "--threads", "2", "--time-box", "1s", "--precision-goal", "0.5"]
    done = layermark("run", "dense", "--replicas", "2", "--backend", "torch,onnxruntime", *small)
    assert 0 == done.status, done.stdout + done.stderr
    kept = layermark.kept()
    assert [("ok", "")] * 2 == [(each["status"], each["reason"]) for each in kept]
    for found in kept:
        assert not found["impossible"] and 0 < found["efficiency"] < 1
        rates, total = [each["rate"] for each in found["ranks"]], found["throughput"]["value"]
        assert 2 == len(rates) and max(rates) < total < 1.1 * sum(rates)
