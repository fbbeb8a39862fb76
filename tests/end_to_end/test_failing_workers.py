"""A worker that dies, raises, hangs or runs out of memory costs its own measurement and no other."""

import os
import signal
import time
from pathlib import Path

import pytest

from conftest import QUICKLY, CommandLine

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    run = CommandLine(tmp_path_factory.mktemp("failing"))
    failing = "killed,raises,hangs,torch"
    finished = run("run", "dense", "--size", "256", "--backend", failing, "--timeout", "10s", "--json", *QUICKLY)
    assert 1 == finished.status, finished.stderr
    return {doc["spec"]["backend"]: doc for doc in finished.documents}


def test_the_others_are_complete(documents):
    assert "ok" == documents["torch"]["status"], documents["torch"]["reason"]
    assert documents["torch"]["throughput"]["value"] > 0


def test_killed(documents):
    assert "failed" == documents["killed"]["status"]
    assert "SIGKILL" in documents["killed"]["reason"]
    assert "planted: about to die" in documents["killed"]["log"]


def test_raised(documents):
    assert "failed" == documents["raises"]["status"]
    assert "planted failure" in documents["raises"]["reason"]
    assert documents["raises"]["log"].endswith("RuntimeError: planted failure")


def test_hung(documents):
    assert "failed" == documents["hangs"]["status"]
    assert "hung" in documents["hangs"]["reason"]


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
    sizes = "8,16,24,32,40,48,56,64"
    process = layermark.start("run", "dense", "--size", sizes, "--backend", "null", "--execution", "auto", "--json")
    first = process.stdout.readline()
    wait_for(lambda: workers_of(process))
    workers = workers_of(process)
    process.send_signal(sign)
    rest, stderr = process.communicate(timeout=30)
    assert 130 == process.returncode, stderr
    assert "Traceback" not in stderr
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert "--resume" in stderr
    session = stderr.split("--resume ")[1].split()[0]
    resumed = layermark("run", "--resume", session, "--json")
    assert 0 == resumed.status, resumed.stderr
    kept = [line for line in [first, *rest.splitlines(keepends=True)] if line.strip()]
    assert 8 == len(resumed.documents)
    assert {"ok"} == {doc["status"] for doc in resumed.documents}
    assert len(kept) < 8


def test_workers_end_with_a_parent_that_is_killed(layermark):
    process = layermark.start("run", "dense", "--backend", "torch", "--execution", "eager", "--json")
    workers = wait_for(lambda: workers_of(process))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()], 20)
