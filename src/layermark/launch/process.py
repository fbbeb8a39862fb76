"""A worker as its parent sees it: a process, a line to it, and the file it logs to."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from layermark import registry
from layermark.backends.base import backend
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.spec import Spec
from layermark.worker.channel import Channel, Closed

LOG_LINES = 15
_GRACE_S = 5.0


class Worker:
    """A started worker process. `call` sleeps until the answer is there, the process dies, or time runs out."""

    def __init__(self, environment: Mapping[str, str], *, memory_limit: int = 0) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "layermark.worker", str(theirs.fileno()), str(memory_limit)]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            process_group=0,  # to end it with all it started; a session of its own would be scheduled apart
        )
        theirs.close()
        self._channel = Channel(ours)
        self._messages = 0
        self._doing = ""
        self._hung = ""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, do: str, timeout: float, **given: Any) -> dict[str, Any]:
        """Tell the worker to do something and wait for its answer.

        Raises `Unsupported` or `UserError` as the worker says, and `WorkerFailed` for everything else.
        """
        self.begin(do, **given)
        return self.finish(timeout)

    def begin(self, do: str, **given: Any) -> None:
        """Tell the worker to do something and do not wait."""
        self._messages += 1
        self._doing = do
        try:
            self._channel.send({"id": self._messages, "do": do, "with": given})
        except Closed:
            raise WorkerFailed(self._death(), self.log_tail()) from None

    def finish(self, timeout: float) -> dict[str, Any]:
        """Wait for the answer to what was begun last."""
        try:
            reply = self._channel.receive(timeout)
        except TimeoutError:
            self._hung = f"hung: no answer to {self._doing!r} within {timeout:g} s"
            self.kill()
            raise WorkerFailed(self._hung, self.log_tail()) from None
        except Closed:
            raise WorkerFailed(self._death(), self.log_tail()) from None
        return self._opened(reply)

    def _opened(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        if reply["id"] != self._messages:
            raise WorkerFailed(f"answered message {reply['id']} instead of {self._messages}", self.log_tail())
        if "ok" in reply:
            answer: dict[str, Any] = reply["ok"]
            return answer
        kind, reason = reply["error"]["kind"], reply["error"]["reason"]
        if kind == "unsupported":
            raise Unsupported(reason)
        if kind == "user":
            raise UserError(reason)
        raise WorkerFailed(reason, self.log_tail())

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

    def hire(self, environment: Mapping[str, str], *, memory_limit: int = 0) -> Worker:
        """Start a worker that this crew answers for."""
        worker = Worker(environment, memory_limit=memory_limit)
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

    def others(self, worker: Worker) -> list[int]:
        """The process ids of everybody else."""
        return [each.pid for each in self._workers if each is not worker]


def worker_environment(spec: Spec) -> dict[str, str]:
    """Everything a worker's environment must hold before it imports anything."""
    device = registry.find("devices", spec.device)
    return {**device.environment(spec), **backend(spec.backend).environment(spec)}
