"""Measure many specs on many machines: a comparison group at a time on each, all kept in one store."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layermark import pipelines
from layermark.errors import UserError
from layermark.launch.machines import Answer, Machine, Machines
from layermark.outcome import Failed, Outcome, Skipped, from_json
from layermark.session.deadline import Deadline
from layermark.session.failure import BUDGET
from layermark.session.fleet_worker import describe_machine, measure_here, unusable_because
from layermark.session.listener import Listener
from layermark.session.ranks import check_plan
from layermark.session.run import Interrupted, groups
from layermark.session.writer import SessionWriter
from layermark.spec import Protocol, Spec
from layermark.store import SessionRecord, Store

MOST_MACHINES = 3
"""A group that this many machines were lost with is not given to another one."""
GRACE_S = 15.0
"""How long a machine may take to say that its budget is used up."""
PATIENCE_S = 30.0
"""After so long without a free machine, the user is told what is waited for."""


@dataclass(eq=False, kw_only=True)
class Job:
    """A comparison group that some machine is to measure, and where its outcomes are written."""

    members: Sequence[Spec]
    writer: SessionWriter
    machine: str | None = None
    """The id of the one machine that it is for; None for any."""
    lost_with: int = 0
    refused: dict[str, Sequence[Outcome]] = field(default_factory=dict)
    """What came of it on machines where the request was wrong, as where a file of weights is missing."""

    def keep(self, outcomes: Sequence[Outcome], *, complete: bool) -> None:
        """Write down what came of it; what is not complete is measured again on resume."""
        for outcome in outcomes:
            self.writer.append(outcome)
        if complete:
            self.writer.finish_group(self.members[0].group)


@dataclass(frozen=True, kw_only=True)
class FleetRequest:
    """What is measured, how, and where it is kept."""

    specs: Sequence[Spec]
    protocol: Protocol
    store: Store
    command: str = ""
    resume: SessionRecord | None = None
    listener: Listener = field(default_factory=Listener)

    def __post_init__(self) -> None:
        """Raise `UserError` for stages that each machine would cut in its own way."""
        if any(spec.pipeline_splits == pipelines.AUTO for spec in self.specs):
            raise UserError(
                "--pipeline-splits auto with --on: machines would cut in different ways; name the stages: "
                "--pipeline-splits NAME,NAME,..., as a run on one machine notes them"
            )

    def writer(self, machine: Mapping[str, Any] | None = None) -> SessionWriter:
        """Return the writer of a session of this request, of one machine's environment or of this process's."""
        return SessionWriter(
            self.store,
            self.specs,
            self.protocol,
            command=self.command,
            resume=self.resume,
            listener=self.listener,
            machine=machine,
        )


class _Plan(ABC):
    """Which jobs there are, and who may do them."""

    sessions: list[SessionWriter]

    @abstractmethod
    def total(self, machines: int) -> int:
        """How many measurements that makes on so many machines."""

    @abstractmethod
    def jobs(self) -> list[Job]:
        """The jobs that are known before a machine is."""

    @abstractmethod
    def jobs_of(self, machine: Machine, facts: Mapping[str, Any]) -> list[Job]:
        """The jobs that a machine brings with it, once it has said what it is."""

    @abstractmethod
    def wants(self, waiting: Sequence[Job], seen: bool) -> bool:
        """Whether a machine that is not held would have something to do; `seen` if it was held before."""


class _Once(_Plan):
    """Everything once, on whichever machine is free: one session."""

    def __init__(self, request: FleetRequest) -> None:
        self.sessions = [request.writer()]
        self._specs = request.specs

    def total(self, machines: int) -> int:
        """Every one that is left."""
        return sum(len(job.members) for job in self.jobs())

    def jobs(self) -> list[Job]:
        """All groups that are not complete."""
        (writer,) = self.sessions
        todo = {name: each for name, each in groups(self._specs).items() if name not in writer.finished_groups}
        return [Job(members=members, writer=writer) for members in todo.values()]

    def jobs_of(self, machine: Machine, facts: Mapping[str, Any]) -> list[Job]:
        """None."""
        return []

    def wants(self, waiting: Sequence[Job], seen: bool) -> bool:
        """Whoever comes may have what is waiting."""
        return bool(waiting)


class _Everywhere(_Plan):
    """Everything on every machine: a session each."""

    def __init__(self, request: FleetRequest) -> None:
        self.sessions = []
        self._request = request

    def total(self, machines: int) -> int:
        """All on each."""
        return len(self._request.specs) * machines

    def jobs(self) -> list[Job]:
        """None before a machine is there."""
        return []

    def jobs_of(self, machine: Machine, facts: Mapping[str, Any]) -> list[Job]:
        """All groups, in a session of this machine's."""
        writer = self._request.writer(facts["environment"])
        self.sessions.append(writer)
        found = groups(self._request.specs).values()
        return [Job(members=members, writer=writer, machine=machine.id) for members in found]

    def wants(self, waiting: Sequence[Job], seen: bool) -> bool:
        """Every machine is wanted, once."""
        return not seen


def run_fleet(
    request: FleetRequest, machines: Machines, *, budget_s: float | None = None, everywhere: bool = False
) -> list[dict[str, Any]]:
    """Measure every spec on one of the machines, or with `everywhere` on each, and return the documents.

    A machine that is lost is named, and what it was doing goes to another. Raises `Interrupted` like `run_session`.
    """
    for spec in request.specs:
        check_plan(spec)
    if not machines.present():
        raise UserError("no machine of the cluster offers a CPU; ray status shows what it has")
    plan = _Everywhere(request) if everywhere else _Once(request)
    try:
        _Dispatch(plan, machines, request, Deadline(budget_s)).run()
    except KeyboardInterrupt:
        raise Interrupted(" ".join(each.id for each in plan.sessions), _documents(plan)) from None
    return _documents(plan)


def _documents(plan: _Plan) -> list[dict[str, Any]]:
    return [document for writer in plan.sessions for document in writer.documents]


class _Dispatch:
    """Gives jobs to machines until all are done, or nobody is left to do them, or time is up."""

    def __init__(self, plan: _Plan, machines: Machines, request: FleetRequest, deadline: Deadline) -> None:
        self._plan, self._machines, self._deadline = plan, machines, deadline
        self._protocol, self._listener = request.protocol, request.listener
        self._waiting = deque(plan.jobs())
        self._held: dict[str, Machine] = {}
        self._doing: dict[str, Job] = {}
        self._seen: set[str] = set()
        self._lost: dict[str, str] = {}
        self._patient = True
        self._listener.started(plan.total(len(machines.present())))

    def run(self) -> None:
        """Do all jobs; no machine is held afterwards, whatever happened."""
        try:
            self._hold()
            while self._held and (self._waiting or self._doing or self._greeting):
                answers = self._machines.wait(self._patience())
                if not answers and not self._wait_on():
                    break
                for answer in answers:
                    self._take(answer)
                self._hold()
            self._give_up()
        finally:
            for machine in self._held.values():
                self._machines.release(machine)

    @property
    def _greeting(self) -> bool:
        """Whether a machine that has not said yet what it is could bring jobs of its own."""
        return self._plan.wants((), seen=False) and len(self._held) > len(self._doing)

    def _hold(self) -> None:
        """Ask for every machine that would have something to do."""
        if self._deadline.left() == 0:
            return
        for machine in self._machines.present():
            free = machine.id not in self._held and machine.id not in self._lost
            waiting = [job for job in self._waiting if machine.id not in job.refused]
            if free and self._plan.wants(waiting, seen=machine.id in self._seen):
                self._seen.add(machine.id)
                self._held[machine.id] = machine
                self._machines.hold(machine)
                self._machines.begin(machine, describe_machine, "{}")

    def _patience(self) -> float | None:
        left = self._deadline.left()
        if self._patient and not self._doing:
            return min(left, PATIENCE_S)
        return None if math.isinf(left) else left + (GRACE_S if self._doing else 0.0)

    def _wait_on(self) -> bool:
        """Return whether there is still time, now that nothing has happened for a while."""
        if self._deadline.left() == 0:
            return False
        if self._patient and not self._doing:
            names = ", ".join(machine.name for machine in self._held.values())
            self._listener.note(f"no machine is free yet; waiting for {names}")
            self._patient = False
        return True

    def _take(self, answer: Answer) -> None:
        machine, job = answer.machine, self._doing.pop(answer.machine.id, None)
        if answer.text is None:
            self._lose(machine, job, answer.failure)
        elif job is None:
            self._greeted(machine, json.loads(answer.text))
        else:
            self._finished(machine, job, json.loads(answer.text))
            self._next(machine)

    def _greeted(self, machine: Machine, facts: Mapping[str, Any]) -> None:
        threads = max((spec.threads for job in self._waiting for spec in job.members), default=0)
        wrong, notes = unusable_because(facts, threads)
        for note in notes:
            self._listener.note(f"machine {machine.name}: {note}")
        if wrong:
            self._machines.release(machine)
            self._lose(machine, None, wrong)
            return
        self._waiting.extend(self._plan.jobs_of(machine, facts))
        self._next(machine)

    def _next(self, machine: Machine) -> None:
        """Give a machine the first job that it may do, or let it go."""
        may = (each for each in self._waiting if each.machine in (None, machine.id) and machine.id not in each.refused)
        job = next(may, None)
        if job is None or self._deadline.left() == 0:
            self._machines.release(machine)
            del self._held[machine.id]
            return
        budget_s = self._share(job)
        self._waiting.remove(job)
        self._doing[machine.id] = job
        self._listener.phase(job.members[0], f"on {machine.name}")
        work = {"specs": [spec.to_json() for spec in job.members], "protocol": self._protocol.to_json()}
        self._machines.begin(machine, measure_here, json.dumps(work | {"budget_s": budget_s}))

    def _share(self, job: Job) -> float | None:
        """What a job may take, so that all that wait have as much on the machines that are held."""
        left = self._deadline.left()
        if math.isinf(left):
            return None
        rivals = [each for each in self._waiting if each.machine == job.machine]
        waiting = sum(len(each.members) for each in rivals)
        hands = len(self._held) if job.machine is None else 1
        return min(left, left * len(job.members) * hands / waiting)

    def _finished(self, machine: Machine, job: Job, told: Mapping[str, Any]) -> None:
        for note in told["notes"]:
            self._listener.note(f"machine {machine.name}: {note}")
        outcomes = [from_json(each) for each in told["outcomes"]]
        if self._refused(machine, job, outcomes):
            return
        job.keep(outcomes, complete=not all(isinstance(each, Skipped) and each.code == BUDGET for each in outcomes))

    def _refused(self, machine: Machine, job: Job, outcomes: Sequence[Outcome]) -> bool:
        """Put back a job whose request was wrong on this machine, where another one may have what it lacks."""
        reasons = [each.reason for each in outcomes if isinstance(each, Failed) and each.code == "wrong_request"]
        if job.machine is not None or not reasons or len(reasons) < len(outcomes):
            return False
        job.refused[machine.id] = outcomes
        if all(each.id in job.refused or each.id in self._lost for each in self._machines.present()):
            return False
        self._listener.note(f"machine {machine.name}: {reasons[0]}; it is tried elsewhere")
        self._waiting.append(job)
        return True

    def _lose(self, machine: Machine, job: Job | None, reason: str) -> None:
        """Name a machine that is gone, and put back what it was doing."""
        self._held.pop(machine.id, None)
        self._lost[machine.id] = f"{machine.name} ({reason})"
        self._listener.note(
            f"machine {machine.name} is lost: {reason}" + ("; its work goes elsewhere" if self._may_move(job) else "")
        )
        if job is None:
            return
        job.lost_with += 1
        if self._may_move(job):
            self._waiting.appendleft(job)
        else:
            text = f"machine {machine.name} was lost meanwhile: {reason}"
            job.keep([Failed(spec=spec, reason=text, code="machine_lost") for spec in job.members], complete=False)

    @staticmethod
    def _may_move(job: Job | None) -> bool:
        return job is not None and job.machine is None and job.lost_with < MOST_MACHINES

    def _give_up(self) -> None:
        """Say of what is left why it was not measured."""
        if not (self._plan.sessions or self._deadline.left() == 0):
            raise UserError(f"no machine to measure on{self._names_of_lost()}; ray status shows those of a cluster")
        for job in (*self._doing.values(), *self._waiting):
            refused = next(iter(job.refused.values()), None)
            job.keep(refused or [self._unmeasured(spec) for spec in job.members], complete=False)

    def _unmeasured(self, spec: Spec) -> Outcome:
        if self._deadline.left() == 0:
            return Skipped(spec=spec, reason="not measured: the budget was used up", code=BUDGET)
        return Failed(spec=spec, reason=f"no machine is left{self._names_of_lost()}", code="no_machine")

    def _names_of_lost(self) -> str:
        return f": lost are {', '.join(self._lost.values())}" if self._lost else ""
