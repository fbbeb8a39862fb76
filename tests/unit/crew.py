"""A crew without processes: workers that say what they were told to say, and a clock that only moves when told."""

import copy
import socket

from layermark.errors import WorkerFailed
from layermark.session.deadline import Deadline
from layermark.session.resources import Resources

MS = 1_000_000
VERIFIED = {"ok": True, "max_error": 1e-6, "tolerance": 1e-3, "against": "reference"}
WRONG = {**VERIFIED, "ok": False, "max_error": 1.0, "reason": "wrong result"}
CONTEXT = {"cpu_s": 0.1, "wall_s": 0.1, "busy_threads": 1.0, "steal_s": 0.0}


def a_block(samples_ms=(10,), batches=1, latencies_ns=()):
    return {
        "calls": 1,
        "batches": batches,
        "samples_ns": [each * MS for each in samples_ms],
        "latencies_ns": list(latencies_ns),
        "context": CONTEXT,
    }


HONEST = {
    "prepare": {
        "timings_s": {"import": 1.0, "data": 0.0, "compile": 0.5},
        "settings": {"execution": "plain"},
        "accuracy": None,
        "clock": "perf_counter",
        "versions": {"fake": "1"},
    },
    "copy": {},
    "verify": VERIFIED,
    "warm_up": {"first_step_s": 0.2, "warm_up_s": 0.3, "step_ns": 10 * MS, "steady": True},
    "batch_seconds": {"seconds": 0.01},
    "measure": a_block((10, 10, 10, 10, 10)),
    "step": {"block": a_block(), "began_ns": 0},
    "latencies": {"latencies_ns": [MS]},
    "score": {"right": 3},
    "seconds_per_batch": {"seconds": 0.01},
    "begin_training": {"update": 0, "epoch": 0.0},
    "train": {"block": a_block((1000,), 4), "loss": 2.0, "right": 8},
    "save": {"path": "ckpt"},
    "loader_rate": {"batches": 10, "seconds": 1.0},
    "copy_seconds": {"seconds": 0.05},
    "profile": {"files": ["profile.json"], "batches": 1, "operators": []},
    "facts": {"memory": {"peak_rss_bytes": 100}, "environment": {"cpu": "fake"}},
}


class FakeWorker:
    """Says `answers[message]`: a document, an exception to raise, or a list of these for one time after the other."""

    def __init__(self, pid, answers):
        self.pid, self.answers, self.asked, self.ended = pid, answers, [], False
        self.trial_s = 0.0
        self._line, other = socket.socketpair()
        other.close()  # so that the line is always readable

    def fileno(self):
        return self._line.fileno()

    def begin(self, do, **given):
        self.asked.append((do, given))

    def finish(self, timeout):
        do = self.asked[-1][0]
        answer = self.answers[do]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = answer()
        if isinstance(answer, BaseException):
            raise answer
        return copy.deepcopy(answer)

    def call(self, do, timeout, **given):
        self.begin(do, **given)
        return self.finish(timeout)

    def import_s(self, timeout):
        return 1.5

    def kill(self):
        self.ended = True

    def said(self):
        return [do for do, _ in self.asked]


class FakeCrew:
    """Hires workers one after the other; each gets the next of the given differences from an honest one."""

    def __init__(self, *differences):
        self._differences, self.workers, self.variables = list(differences), [], []

    def hire(self, environment, *, memory_limit=0, runtime=""):
        self.variables.append(environment)
        changes = self._differences.pop(0) if self._differences else {}
        self.workers.append(FakeWorker(len(self.workers), {**HONEST, **changes}))
        return self.workers[-1]

    def dismiss(self, worker):
        worker.kill()

    def others(self, *workers):
        return []


class FakeOracle:
    def seconds(self, spec, within):
        return 0.0

    def __init__(self):
        self.asked, self.begun, self.knows = [], [], False

    def known(self, spec):
        return self.knows

    def begin(self, spec):
        self.begun.append(spec)

    def settle(self):
        pass

    def answer(self, spec):
        self.asked.append(spec)
        return "answer.npz"


class FakeCeilings:
    """The machine reaches so many FLOPs and bytes per second."""

    def __init__(self, flops_per_s=1e12, bytes_per_s=1e12):
        self.reached = {"flops_per_s": flops_per_s, "bytes_per_s": bytes_per_s}
        self.failure, self.copies, self.among, self.held = None, [], (), 0

    def held_bytes(self):
        return self.held

    def begin(self, spec, copies=1):
        pass

    def settle(self):
        pass

    def probes(self, spec):
        return ["fake"]

    def reading(self, spec, working_set, seconds, copies):
        if self.failure:
            raise self.failure
        self.copies.append(copies)
        return self.reached


class Clock:
    """Seconds that pass when `wait` says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds, then=None):
        """An answer that takes so long."""

        def answer():
            self.now += seconds
            return then

        return answer


def resources(*differences, clock=None, budget_s=None, ceilings=None):
    crew = FakeCrew(*differences)
    deadline = Deadline(budget_s, clock=clock or Clock())
    return Resources(
        crew=crew, oracle=FakeOracle(), ceilings=ceilings or FakeCeilings(), deadline=deadline, timeout=600.0
    )


DEAD = WorkerFailed("killed by signal SIGKILL", "last line", code="died")
