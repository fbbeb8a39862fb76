"""A worker as its parent sees it: a process, a line to it, and the file it logs to."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from layermark import registry
from layermark.backends.base import backend
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.processes import python_module
from layermark.spec import Spec
from layermark.worker.channel import Channel, Closed

LOG_LINES = 15
_GRACE_S = 5.0
_LOST_S = 1.0
"""How long the end of a rank may take to be seen after another has failed because of it."""


class Worker:
    """A started worker process. `call` sleeps until the answer is there, the process dies, or time runs out."""

    def __init__(self, environment: Mapping[str, str], *, memory_limit: int = 0, runtime: str = "") -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()
        command = [*python_module("layermark.worker"), str(theirs.fileno()), str(memory_limit)]
        command += [runtime] if runtime else []
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            process_group=0,  # to end it with all it started; a session of its own would be scheduled separately
        )
        theirs.close()
        self._channel = Channel(ours)
        self._greets = bool(runtime)
        self._messages = 0
        self._began = time.monotonic()
        self._doing = ""
        self._hung = ""
        self.trial_s = 0.0
        """How long this worker has let ways to run its program compete so far."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def import_s(self, timeout: float) -> float:
        """Wait until the runtime that it was started with is imported, and return how long that took it."""
        if not self._greets:
            return 0.0
        self._doing, self._greets = "import", False
        return float(self.finish(timeout)["import_s"])

    def call(self, do: str, timeout: float, **given: Any) -> dict[str, Any]:
        """Tell the worker to do something and wait for its answer.

        Raises `Unsupported` or `UserError` as the worker says, and `WorkerFailed` for everything else.
        """
        self.begin(do, **given)
        return self.finish(timeout)

    def begin(self, do: str, **given: Any) -> None:
        """Tell the worker to do something and do not wait."""
        self._messages += 1
        self._doing, self._began = do, time.monotonic()
        try:
            self._channel.send({"id": self._messages, "do": do, "with": given})
        except Closed:
            raise self._died() from None

    def fileno(self) -> int:
        """The descriptor that becomes readable once there is an answer, or nobody left to give one."""
        return self._channel.fileno()

    def finish(self, timeout: float) -> dict[str, Any]:
        """Wait for the answer to what was begun last."""
        try:
            reply = self._channel.receive(timeout)
        except TimeoutError:
            raise self.given_up() from None
        except Closed:
            raise self._died() from None
        return self._opened(reply)

    def given_up(self, who: str = "") -> WorkerFailed:
        """End the worker, which has not answered in time, and return the failure; `who` of several ranks hangs."""
        # Not the time-out of one wait: of several that began together, the last is asked for a moment only.
        self._hung = f"hung: no answer to {self._doing!r} within {time.monotonic() - self._began:.3g} s"
        self._hung += f"; {who}" if who else ""
        self.kill()
        return self._died()

    def _opened(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        if reply["id"] != self._messages:
            raise WorkerFailed(f"answered message {reply['id']} instead of {self._messages}", self.log_tail())
        self.trial_s = reply.get("trial_s", 0.0)
        if "ok" in reply:
            answer: dict[str, Any] = reply["ok"]
            return answer
        error = reply["error"]
        # A worker of an older checkout, which `gate --base` starts, knows no codes.
        code = error.get("code", "error")
        if error["kind"] == "unsupported":
            raise Unsupported(error["reason"], code=code, instead=error.get("instead", {}))
        if error["kind"] == "user":
            raise UserError(error["reason"])
        raise WorkerFailed(error["reason"], self.log_tail(), code=code)

    def _died(self) -> WorkerFailed:
        reason = self._death()
        return WorkerFailed(reason, self.log_tail(), code="hung" if self._hung else "died")

    def _death(self) -> str:
        """Why the process is gone."""
        if self._hung:
            return self._hung
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its line without ending"
        if status >= 0:
            return f"exited with status {status}"
        hint = " (out of memory?)" if -status == signal.SIGKILL else ""
        return f"killed by signal {signal.Signals(-status).name}{hint}"

    def log_tail(self) -> str:
        """The last lines that the worker wrote."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 8192))
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-LOG_LINES:])

    def cpu_time_ns(self) -> int:
        """CPU time that the process has used."""
        return cpu.process_time_ns(self.pid)

    def close(self) -> None:
        """Ask the worker to end, and make sure that it does."""
        with contextlib.suppress(WorkerFailed, Unsupported, UserError):
            if self._process.poll() is None:
                self.call("close", _GRACE_S)
        self.kill()

    def kill(self) -> None:
        """End the worker and whatever it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()


class Crew:
    """Every worker of a session; leaving the `with` block leaves no process behind, whatever happened."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def hire(self, environment: Mapping[str, str], *, memory_limit: int = 0, runtime: str = "") -> Worker:
        """Start a worker that this crew answers for; one with a runtime imports it before it is asked anything."""
        worker = Worker(environment, memory_limit=memory_limit, runtime=runtime)
        self._workers.append(worker)
        return worker

    def dismiss(self, worker: Worker) -> None:
        """End a worker that is no longer needed."""
        worker.close()
        if worker in self._workers:
            self._workers.remove(worker)

    @property
    def pids(self) -> list[int]:
        """The process ids of everybody."""
        return [each.pid for each in self._workers]

    def others(self, *workers: Worker) -> list[int]:
        """The process ids of everybody else."""
        return [each.pid for each in self._workers if each not in workers]


class Alarm(Protocol):
    """Something besides workers that may end the waiting for them."""

    def fileno(self) -> int:
        """The descriptor that becomes readable then."""

    def raise_alarm(self) -> None:
        """Raise the reason."""


Blame = Callable[[], str]
"""Says which of the ranks that wait for each other hangs; nothing where it cannot tell."""


def await_all(
    workers: Sequence[Worker], timeout: float, alarm: Alarm | None = None, blame: Blame | None = None
) -> list[dict[str, Any]]:
    """Wait for the answers to what was begun last, all at work at the same time.

    The first that fails ends the others at once, and its failure is raised: nobody waits for a time-out. So does an
    alarm, such as that of another instance whose rank is gone, which a rank here may wait for inside a collective.
    """
    answers: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for index, worker in enumerate(workers):
            selector.register(worker.fileno(), selectors.EVENT_READ, index)
        if alarm is not None:
            selector.register(alarm.fileno(), selectors.EVENT_READ, None)
        try:
            while len(answers) < len(workers):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                # Nobody is ready: the first that is still silent has hung.
                late = next(index for index in range(len(workers)) if index not in answers)
                told = [key.data for key, _ in ready]
                if alarm is not None and None in told:
                    alarm.raise_alarm()
                if not told and blame is not None:
                    raise workers[late].given_up(blame())
                for index in told or [late]:
                    answers[index] = workers[index].finish(max(0.001, deadline - time.monotonic()))
                    selector.unregister(workers[index].fileno())
        except (Unsupported, UserError, WorkerFailed):
            for index, worker in enumerate(workers):
                if index not in answers:
                    worker.kill()
            raise
    return [answers[index] for index in range(len(workers))]


def await_lead(
    workers: Sequence[Worker], timeout: float, alarm: Alarm | None = None, blame: Blame | None = None
) -> dict[str, Any]:
    """Wait for the answer of the first worker, while the others follow it.

    One of them that says anything has failed, and an alarm tells of one elsewhere. Where the first fails itself, it may
    be because of another that is gone: then that one's reason is raised. Nobody outlives a failure.
    """
    lead, followers = workers[0], workers[1:]
    try:
        with selectors.DefaultSelector() as selector:
            for index, worker in enumerate(workers):
                selector.register(worker.fileno(), selectors.EVENT_READ, index)
            if alarm is not None:
                selector.register(alarm.fileno(), selectors.EVENT_READ, None)
            told = {key.data for key, _ in selector.select(timeout)}
            if not told:
                raise lead.given_up(blame() if blame else "")
            if not told & {0}:
                _raise_lost(workers, told, alarm)
        try:
            return lead.finish(1.0)
        except WorkerFailed:
            with selectors.DefaultSelector() as selector:
                for index, worker in enumerate(followers, 1):
                    selector.register(worker.fileno(), selectors.EVENT_READ, index)
                if alarm is not None:
                    selector.register(alarm.fileno(), selectors.EVENT_READ, None)
                if selector.get_map():
                    _raise_lost(workers, {key.data for key, _ in selector.select(_LOST_S)}, alarm)
            raise
    except (Unsupported, UserError, WorkerFailed):
        for worker in workers:
            worker.kill()
        raise


def _raise_lost(workers: Sequence[Worker], told: set[int | None], alarm: Alarm | None) -> None:
    """Raise the failure of a follower that has spoken, or of another instance."""
    for index in sorted(each for each in told if each):
        workers[index].finish(1.0)
        raise WorkerFailed(f"rank {index} stopped following", workers[index].log_tail())
    if alarm is not None and None in told:
        alarm.raise_alarm()


def worker_environment(spec: Spec) -> dict[str, str]:
    """Everything a worker's environment must hold before it imports anything."""
    device = registry.find("devices", spec.device)
    return {**device.environment(spec), **backend(spec.backend).environment(spec)}
