"""Which of several ranks hangs: processes that are stopped, that compute, and that wait."""

import os
import signal
import subprocess
import sys

import pytest

from layermark.errors import WorkerFailed
from layermark.launch.process import Crew, await_all, await_lead
from layermark.launch.stuck import Seen, look, who_hangs

BUSY = "while True: pass"
WAITS = "import time; time.sleep(600)"


@pytest.fixture
def started():
    made = []

    def start(*programs):
        made.extend(subprocess.Popen([sys.executable, "-c", each]) for each in programs)
        return [each.pid for each in made]

    yield start
    for each in made:
        each.kill()
        each.wait()


def until(what):
    for _ in range(200):
        found = what()
        if found:
            return found
    raise AssertionError("never seen")


def test_one_that_is_stopped_is_named_though_another_computes(started):
    pids = started(BUSY, WAITS, WAITS)
    os.kill(pids[2], signal.SIGSTOP)
    # A busy machine may need a moment to deliver the signal, and to start the others.
    until(lambda: look(pids, 4).stopped)
    assert "rank 6 hangs: it is stopped (state T)" == who_hangs([look(pids, 4)])


def test_one_that_computes_while_the_others_wait_is_named(started):
    pids = started(WAITS, BUSY)
    assert "rank 1 hangs: it computes, and the others wait" == until(lambda: who_hangs([look(pids)]))


def test_what_was_seen_crosses_the_line_to_another_instance():
    seen = Seen(stopped={3: "T"}, busy=[2], count=2)
    assert seen == Seen.from_json(seen.to_json())


@pytest.mark.parametrize("finish", [await_all, await_lead])
def test_who_gives_up_names_the_rank_that_hangs(finish):
    with Crew() as crew:
        workers = [crew.hire({}) for _ in range(2)]
        os.kill(workers[1].pid, signal.SIGSTOP)
        if finish is await_all:
            for worker in workers:
                worker.begin("facts")
        else:
            os.kill(workers[0].pid, signal.SIGSTOP)
            workers[0].begin("facts")
        with pytest.raises(WorkerFailed, match=r"no answer to 'facts' within .*; rank 1 hangs: .*state T") as error:
            finish(workers, 5.0, None, lambda: who_hangs([look([worker.pid for worker in workers[1:]], 1)]))
        assert "hung" == error.value.code
        assert workers[1]._process.poll() is not None
