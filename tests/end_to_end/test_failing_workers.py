"""A worker that dies, raises, hangs or runs out of memory costs its own measurement and no other."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from conftest import QUICKLY


def test_a_worker_that_fails_costs_no_other_measurement(layermark):
    failing = "killed,raises,hangs,torch"
    finished = layermark("run", "dense", "--size", "256", "--backend", failing, "--timeout", "20s", "--json", *QUICKLY)
    assert 1 == finished.status, finished.stderr
    found = {each["spec"]["backend"]: each for each in finished.documents}
    assert "ok" == found["torch"]["status"], found["torch"]["reason"]
    assert found["torch"]["throughput"]["value"] > 0
    assert ["failed"] * 3 == [found[name]["status"] for name in ("killed", "raises", "hangs")]
    assert "SIGKILL" in found["killed"]["reason"]
    assert "planted: about to die" in found["killed"]["log"]
    assert "planted failure" in found["raises"]["reason"]
    assert found["raises"]["log"].endswith("RuntimeError: planted failure")
    said = re.fullmatch(r"hung: no answer to '\w+' within ([\d.]+) s", found["hangs"]["reason"])
    assert said and float(said[1]) >= 20, found["hangs"]["reason"]


def test_out_of_memory(layermark):
    finished = layermark(
        "run", "dense", "--size", "64", "--backend", "torch,memory_hog", "--memory-limit", "6G", "--json", *QUICKLY
    )
    honest, greedy = finished.documents
    assert 1 == finished.status
    assert "ok" == honest["status"], honest["reason"]
    assert "failed" == greedy["status"]
    assert "out of memory" in greedy["reason"]


def workers_of(process):
    """Process ids of the workers that a session has started."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def wait_for(condition, seconds=60):
    """Sleep until something holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_keeps_what_was_measured(layermark, sign):
    sizes = "8,16,24,32"
    process = layermark.start("run", "dense", "--size", sizes, "--backend", "null", "--block", "100ms", "--json")
    first = process.stdout.readline()
    wait_for(lambda: workers_of(process))
    workers = workers_of(process)
    process.send_signal(sign)
    rest, stderr = process.communicate(timeout=30)
    assert 130 == process.returncode, stderr
    assert "Traceback" not in stderr
    # One that was just being started is nobody's yet; it ends when it finds its line closed.
    wait_for(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()], seconds=10)
    assert "--resume" in stderr
    session = stderr.split("--resume ")[1].split()[0]
    resumed = layermark("run", "--resume", session, "--json")
    assert 0 == resumed.status, resumed.stderr
    kept = [line for line in [first, *rest.splitlines(keepends=True)] if line.strip()]
    assert 4 == len(resumed.documents)
    assert {"ok"} == {doc["status"] for doc in resumed.documents}
    assert len(kept) < 4


def test_workers_end_with_a_parent_that_is_killed(layermark):
    process = layermark.start("run", "dense", "--backend", "torch", "--execution", "eager", "--json")
    workers = wait_for(lambda: workers_of(process))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()], 20)
