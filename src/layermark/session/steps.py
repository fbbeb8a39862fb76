"""Timed host calls of a fixed number of batches, one after the other, as the seed scripts ask for them."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from layermark.devices import cpu
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.ceilings import Ceilings
from layermark.launch.oracle import Oracle
from layermark.launch.process import Crew, Worker, worker_environment
from layermark.outcome import Block, Failed, Outcome, Run, Skipped, Verification
from layermark.session.deadline import Deadline
from layermark.session.group import PROBE_SECONDS, Contender, finished_run, needed_bytes, thread_faults, unsettled
from layermark.session.pace import READINGS, Course, Pace, fitted
from layermark.spec import Plan, Spec
from layermark.worker import environment
from layermark.workloads.base import task

TIMEOUT_S = 600.0
_PROBE_START_S = 4.0
_READING_SHARE = 0.5
"""Readings of the ceilings between the steps may take this share of the steps' own time; one is taken in any case."""
_LATENCY_SHARE = 0.1
_LATENCIES = 100
"""Single batches that are timed apart may take this share of a step, and be so many."""
_ADDED = ("cpu_s", "busy_threads", "voluntary_switches", "involuntary_switches", "minor_faults", "major_faults")
"""What the copies of a program have each for themselves; of anything else the first one's stands for all."""
OUT_OF_BUDGET = "not measured: the budget was used up before the first step"


class StepListener:
    """Told what happens, in this order. This one hears nothing; a seed script's prints."""

    def expected(self, seconds: float) -> None:
        """All steps together will take about this long."""

    def shortened(self, course: Course, asked: Course) -> None:
        """The budget allows less than what was asked for."""

    def compiled(self, seconds: float) -> None:
        """The program is ready (and warmed up, where the course asks for it)."""

    def scored(self, right: int, pictures: int) -> None:
        """So many of so many pictures were sorted into their class."""

    def step(self, block: Block, items: int) -> None:
        """One host call is over; it processed so many items."""

    def stopped(self, done: int) -> None:
        """The budget ended the steps after so many."""

    def profiled(self, files: Sequence[str]) -> None:
        """These files hold the profile."""

    def note(self, text: str) -> None:
        """Something that a person should know."""


@dataclass
class Ranks:
    """The copies of a program that run at the same time; the first stands for all where one is enough."""

    members: list[Contender]
    at_once: int = 1
    """Copies that have threads of their own; where there are more, they take turns."""

    @property
    def first(self) -> Contender:
        """The copy that is asked for facts."""
        return self.members[0]

    def together(self, do: Callable[[Contender], dict[str, Any]]) -> list[dict[str, Any]]:
        """What every copy answers, all at work at the same time."""
        if len(self.members) == 1:
            return [do(self.first)]
        answers: list[Any] = [None] * len(self.members)

        def ask(index: int) -> None:
            try:
                answers[index] = do(self.members[index])
            except Exception as failure:  # raised again below, in the thread that asked
                answers[index] = failure

        # Daemons: after Ctrl-C nobody waits for them, and they end with their workers.
        threads = [threading.Thread(target=ask, args=(each,), daemon=True) for each in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


class StepMeasurement:
    """Prepares, proves, times every step, and proves again, within a crew and a deadline."""

    def __init__(self, crew: Crew, deadline: Deadline, listener: StepListener) -> None:
        self._crew, self._deadline, self._listener = crew, deadline, listener
        self._oracle = Oracle(crew, TIMEOUT_S)
        self._ceilings = Ceilings(crew, TIMEOUT_S)
        self._read_s = 0.0

    def measure(self, spec: Spec, course: Course) -> Outcome:
        """The one outcome of a spec; whatever goes wrong is an outcome too."""
        free, need = cpu.free_memory(), needed_bytes(spec) * spec.plan.replicas
        if need > free:
            reason = f"not measured: needs about {need >> 20} MiB of memory, {free >> 20} MiB are free"
            return Skipped(spec=spec, reason=reason)
        try:
            return self._measured(spec, course)
        except Unsupported as failure:
            return Skipped(spec=spec, reason=str(failure))
        except WorkerFailed as failure:
            if self._deadline.left() == 0:
                return Skipped(spec=spec, reason=OUT_OF_BUDGET)
            return Failed(spec=spec, reason=failure.reason, log=failure.log)

    def _measured(self, spec: Spec, course: Course) -> Outcome:
        ranks = self._hired(spec)
        first = ranks.first
        proof_s = self._proven(ranks, spec)
        if any(each.faults or not (each.verified and each.verified.ok) for each in ranks.members):
            return self._finished(ranks, spec)
        pace = self._pace(ranks, proof_s)
        if first.faults:
            return self._finished(ranks, spec)
        if course.judged:
            self._read_ceilings(first)
        self._listener.expected(pace.seconds(course))
        possible = fitted(course, pace, self._deadline.left())
        if possible != course:
            self._listener.shortened(possible, course)
        compile_s = max(each.prepared["timings_s"]["compile"] for each in ranks.members)
        self._listener.compiled(compile_s + (self._warm_up(ranks, possible, pace) if course.warm_up else 0.0))
        self._score(first, possible, pace)
        self._steps(ranks, possible, pace)
        drop_first(first, possible.dropped)
        self._settle_ceilings(ranks)
        self._profile(first, possible)
        self._prove_again(ranks)
        return self._finished(ranks, spec)

    def _hired(self, spec: Spec) -> Ranks:
        copies = spec.plan.replicas
        share = max(1, spec.threads // copies)
        specs = [
            spec.replace(seed=spec.seed + rank, threads=share, plan=Plan()) if copies > 1 else spec
            for rank in range(copies)
        ]
        members = [Contender(each, task(each), self._crew.hire(worker_environment(each))) for each in specs]
        ranks = Ranks(members, at_once=min(copies, max(1, spec.threads // share)))
        if copies > spec.threads:
            ranks.first.warnings.append(f"{copies} copies of one thread each share a budget of {spec.threads}")
        return ranks

    def _call(self, worker: Worker, do: str, patience_s: float = TIMEOUT_S, **given: Any) -> dict[str, Any]:
        return worker.call(do, self._deadline.at_most(patience_s), **given)

    def _proven(self, ranks: Ranks, spec: Spec) -> float:
        """Prepare and prove every copy; answers how long one proof took."""
        twin = None if spec.values == "random" else self._prove_twin(ranks.first)
        if twin and not twin.ok:
            return 0.0
        for each, prepared in zip(ranks.members, ranks.together(self._prepare), strict=True):
            each.prepared = prepared
            self._oracle.answer(each.spec)  # computed once, and so no part of what a proof takes
        began = time.monotonic()
        for each in ranks.members:
            each.verified = self._verification(each.worker, each.spec)
        took_s = time.monotonic() - began
        if twin and ranks.first.verified:
            ranks.first.verified = max(twin, ranks.first.verified, key=lambda each: each.max_error / each.tolerance)
        return took_s

    def _prepare(self, contender: Contender) -> dict[str, Any]:
        return self._call(contender.worker, "prepare", spec=contender.spec.to_json())

    def _prove_twin(self, contender: Contender) -> Verification:
        """Zeros prove little: the same program is first built and proven on random values, in a worker of its own."""
        twin = contender.spec.replace(values="random")
        worker = self._crew.hire(worker_environment(twin))
        contender.prepared = self._call(worker, "prepare", spec=twin.to_json())
        contender.verified = self._verification(worker, twin)
        self._crew.dismiss(worker)
        if not contender.verified.ok:
            contender.faults.append(f"on random values: {contender.verified.reason}")
        return contender.verified

    def _verification(self, worker: Worker, spec: Spec) -> Verification:
        return Verification(**self._call(worker, "verify", oracle=str(self._oracle.answer(spec))))

    def _pace(self, ranks: Ranks, proof_s: float) -> Pace:
        found = ranks.together(lambda each: self._call(each.worker, "calibrate"))
        ranks.first.faults += [each["fault"] for each in found if "fault" in each]
        return Pace(batch_s=max(each.get("seconds_per_batch", 0.0) for each in found), proof_s=proof_s)

    def _warm_up(self, ranks: Ranks, course: Course, pace: Pace) -> float:
        block = self._step(ranks, course, pace)
        seconds = block.samples_ns[0] / 1e9
        ranks.first.warmed = {"first_step_s": seconds, "warm_up_s": seconds}
        return seconds

    def _score(self, contender: Contender, course: Course, pace: Pace) -> None:
        if course.scored:
            patience = max(TIMEOUT_S, 10 * course.scored * pace.batch_s)
            found = self._call(contender.worker, "score", patience, batches=course.scored)
            self._listener.scored(found["right"], course.scored * contender.task.items)

    def _steps(self, ranks: Ranks, course: Course, pace: Pace) -> None:
        first, stride = ranks.first, max(1, math.ceil(course.steps / READINGS))
        items = first.task.items * len(ranks.members)
        for index in range(course.steps):
            if index and self._deadline.left() < pace.reserve_s + course.step_batches * pace.batch_s:
                self._listener.stopped(index)
                return
            try:
                first.blocks.append(self._step(ranks, course, pace))
            except WorkerFailed:
                if not first.blocks or self._deadline.left() > 0:
                    raise
                self._listener.stopped(index)
                return
            self._listener.step(first.blocks[-1], items * course.step_batches)
            if course.judged and index % stride == 0 and self._read_s <= _READING_SHARE * first.timed_s:
                self._read_ceilings(first)

    def _step(self, ranks: Ranks, course: Course, pace: Pace) -> Block:
        cpu.wait_until_quiet([pid for pid in self._crew.others(ranks.first.worker) if pid not in ranks_pids(ranks)])
        patience = max(TIMEOUT_S, 10 * course.step_batches * pace.batch_s)
        how_many = {"batches": course.batches, "calls": course.calls}
        block = merged(ranks.together(lambda each: self._call(each.worker, "step", patience, **how_many)))
        if block.latencies_ns or not course.latencies:
            return block
        seconds = _LATENCY_SHARE * block.samples_ns[0] / 1e9
        apart = self._call(ranks.first.worker, "latencies", seconds=seconds, most=_LATENCIES)
        return dataclasses.replace(block, latencies_ns=tuple(apart["latencies_ns"]))

    def _read_ceilings(self, contender: Contender) -> None:
        if contender.probe == "none" or self._deadline.left() < _PROBE_START_S:
            return
        began = time.monotonic()
        try:
            reading = self._ceilings.reading(contender.spec, contender.working_set, PROBE_SECONDS)
        except (Unsupported, WorkerFailed) as failure:
            contender.probe = "none"
            contender.warnings.append(f"no ceiling: {failure}")
            return
        self._read_s += time.monotonic() - began
        contender.probe = f"probe {contender.spec.precision}"
        contender.flops_per_s.append(reading["flops_per_s"])
        contender.bytes_per_s.append(reading["bytes_per_s"])

    def _settle_ceilings(self, ranks: Ranks) -> None:
        first, seen = ranks.first, 0
        while seen != len(first.flops_per_s) and unsettled(len(first.flops_per_s), ceiling_share(ranks)):
            seen = len(first.flops_per_s)
            self._read_ceilings(first)
        if first.flops_per_s and unsettled(len(first.flops_per_s), ceiling_share(ranks)):
            first.flops_per_s, first.bytes_per_s = [], []
            first.warnings.append("no ceiling: the budget ended before it was read often enough to be trusted")

    def _profile(self, contender: Contender, course: Course) -> None:
        if course.profile is None:
            return
        wanted = course.profile
        batches = min(course.batches, wanted.batches)
        try:
            found = self._call(
                contender.worker, "profile", folder=str(wanted.folder), name=wanted.name, batches=batches
            )
        except (Unsupported, WorkerFailed) as failure:
            self._listener.note(f"no profile: {failure}")
            return
        self._listener.profiled(found["files"])

    def _prove_again(self, ranks: Ranks) -> None:
        for each in ranks.members:
            try:
                again = self._verification(each.worker, each.spec)
            except WorkerFailed:
                if self._deadline.left() > 0:
                    raise
                ranks.first.warnings.append("the budget ended before the program was verified again")
                return
            if not again.ok:
                ranks.first.faults.append(f"after the timed steps: {again.reason}")

    def _finished(self, ranks: Ranks, spec: Spec) -> Run:
        first = ranks.first
        try:
            facts = first.worker.call("facts", 30.0)
        except WorkerFailed:
            facts = {"memory": {}, "environment": environment.record()}
        copies = spec.plan.replicas
        first.faults += thread_faults(spec.replace(threads=first.spec.threads * copies), first.blocks)
        found = finished_run(first, facts)
        ceiling = found.ceiling
        if ceiling is not None:
            many = ranks.at_once
            ceiling = dataclasses.replace(ceiling, flops=ceiling.flops * many, bytes=ceiling.bytes * many)
        return dataclasses.replace(found, spec=spec, items_per_batch=found.items_per_batch * copies, ceiling=ceiling)


def drop_first(contender: Contender, count: int) -> None:
    """Take the first steps out of the result, as far as others are left; the timings keep how long they took."""
    count = min(count, len(contender.blocks) - 1)
    if count > 0:
        seconds = [block.samples_ns[0] / 1e9 for block in contender.blocks[:count]]
        contender.warmed = {"first_step_s": seconds[0], "warm_up_s": sum(seconds[1:])}
        contender.blocks = contender.blocks[count:]


def ceiling_share(ranks: Ranks) -> float:
    """The fastest step as a share of what the best reading of the ceiling allows; a reading is that of one copy."""
    first = ranks.first
    fastest_s = min(block.samples_ns[0] / block.batches for block in first.blocks) / 1e9
    flops, moved = first.task.flops(first.spec.mode), first.working_set
    shortest_s = max(flops / max(first.flops_per_s), moved / max(first.bytes_per_s))
    return len(ranks.members) / ranks.at_once * shortest_s / fastest_s


def ranks_pids(ranks: Ranks) -> set[int]:
    """The processes of the copies."""
    return {each.worker.pid for each in ranks.members}


def merged(answers: Sequence[dict[str, Any]]) -> Block:
    """One step of all copies: from the first that began to the last that was done."""
    blocks = [Block.from_json(each["block"]) for each in answers]
    if len(blocks) == 1:
        return blocks[0]
    began = min(each["began_ns"] for each in answers)
    ended = max(each["began_ns"] + block.samples_ns[0] for each, block in zip(answers, blocks, strict=True))
    added = {name: sum(block.context.get(name, 0.0) for block in blocks) for name in _ADDED}
    return dataclasses.replace(
        blocks[0],
        samples_ns=(ended - began,),
        latencies_ns=tuple(each for block in blocks for each in block.latencies_ns),
        context={**blocks[0].context, **added},
    )
