"""One comparison group: its workers are prepared one by one, proven, and then measured in alternation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layermark import stats
from layermark.backends.base import backend
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ceilings import Ceilings
from layermark.launch.oracle import Oracle
from layermark.launch.process import Crew, Worker, worker_environment
from layermark.outcome import Block, Ceiling, Failed, Outcome, Run, Skipped, Verification
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.spec import Protocol, Spec, types_of
from layermark.workloads.base import Task, task, workload

PROBE_SECONDS = 0.08
_MOST_READINGS = 40
_FAR = 4.0
_FEW_READINGS = 8
LEAST_BLOCKS = 4
"""Without these there is no noise floor, so they are measured even where steps are long and the time box is short."""
_TELLING_S = 0.05
"""In a shorter block, a thread that merely wakes up, or is put aside while the counters are read, looks busy."""
_FULL = 0.85
_OVERLAP = 0.75
"""Of threads that hand over to each other: who is done still has to get a CPU once more to go to sleep."""
_WORKER_BYTES = 600 << 20
_TYPE_BYTES = {"32": 4, "16": 2, "bf16": 2, "int8": 1}


@dataclass
class Contender:
    """A spec with its worker while it is being measured."""

    spec: Spec
    task: Task
    worker: Worker
    prepared: Mapping[str, Any] = field(default_factory=dict)
    warmed: Mapping[str, Any] = field(default_factory=dict)
    verified: Verification | None = None
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    flops_per_s: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)
    probe: str = ""

    @property
    def timed_s(self) -> float:
        """How long its blocks have taken so far."""
        return sum(sum(block.samples_ns) for block in self.blocks) / 1e9

    @property
    def working_set(self) -> int:
        """Bytes that one batch must touch."""
        compute, weight = types_of(self.spec.precision)
        return self.task.compulsory_bytes(self.spec.mode, _TYPE_BYTES[compute], _TYPE_BYTES[weight])


class GroupMeasurement:
    """Measures the specs of one group within a crew; every spec gets exactly one outcome.

    Without `probing` no ceilings are read, where nobody asks for them.
    """

    def __init__(
        self, crew: Crew, protocol: Protocol, listener: Listener, deadline: Deadline, *, probing: bool = True
    ) -> None:
        self._probing = probing
        self._crew = crew
        self._protocol = protocol
        self._listener = listener
        self._deadline = deadline
        self._oracle = Oracle(crew, protocol.timeout)
        self._ceilings = Ceilings(crew, protocol.timeout)
        self._outcomes: dict[str, Outcome] = {}

    def measure(self, specs: Sequence[Spec], box_s: float) -> list[Outcome]:
        """Prepare, prove, alternate, prove again; `box_s` is the timed work that the whole group may use."""
        self._outcomes = {}
        self._ceilings.among = {spec.backend for spec in specs}
        contenders = [each for spec in admitted(specs, self._outcomes) if (each := self._entered(spec))]
        self._alternate(contenders, box_s)
        for each in contenders:
            if each.spec.key not in self._outcomes:
                self._settle(each)
        return [self._outcomes[spec.key] for spec in specs]

    def _guarded(self, spec: Spec, worker: Worker | None, failure: Exception) -> None:
        """Turn what went wrong with one spec into its outcome; the others go on."""
        if worker is not None:
            self._crew.dismiss(worker)
        if self._deadline.left() == 0:
            self._outcomes[spec.key] = Skipped(spec=spec, reason="not measured: the budget was used up meanwhile")
        elif isinstance(failure, Unsupported):
            self._outcomes[spec.key] = Skipped(spec=spec, reason=str(failure))
        elif isinstance(failure, WorkerFailed):
            self._outcomes[spec.key] = Failed(spec=spec, reason=failure.reason, log=failure.log)
        else:
            self._outcomes[spec.key] = Failed(spec=spec, reason=str(failure))

    def _entered(self, spec: Spec) -> Contender | None:
        """A prepared and proven worker, or None once the outcome is clear."""
        worker = None
        try:
            worker = self._crew.hire(worker_environment(spec), memory_limit=self._protocol.memory_limit)
            contender = Contender(spec, task(spec), worker)
            self._listener.phase(spec, "preparing")
            contender.prepared = self._call(worker, "prepare", spec=spec.to_json())
            self._listener.phase(spec, "verifying")
            contender.verified = self._verification(contender)
            if contender.verified.ok:
                self._listener.phase(spec, "warming up")
                self._warm_up(contender)
        except (Unsupported, UserError, WorkerFailed) as failure:
            self._guarded(spec, worker, failure)
            return None
        if contender.faults or not contender.verified.ok:
            self._finish(contender)
            return None
        return contender

    def _call(self, worker: Worker, do: str, **given: Any) -> dict[str, Any]:
        return worker.call(do, self._deadline.at_most(self._protocol.timeout), **given)

    def _verification(self, contender: Contender) -> Verification:
        answer = self._oracle.answer(contender.spec)
        return Verification(**self._call(contender.worker, "verify", oracle=str(answer)))

    def _warm_up(self, contender: Contender) -> None:
        warmed = self._call(contender.worker, "warm_up")
        if "fault" in warmed:
            contender.faults.append(warmed["fault"])
            return
        contender.warmed = warmed
        if not warmed["steady"]:
            contender.warnings.append("no steady state was reached while warming up")

    def _alternate(self, contenders: list[Contender], box_s: float) -> None:
        """Rounds of one block each, in an order that turns round every time, until all is settled or time is up."""
        running, began, turn = list(contenders), time.monotonic(), 0
        while running and not self._settled(running, time.monotonic() - began, box_s):
            for contender in running if turn % 2 == 0 else running[::-1]:
                self._block(contender)
            running = [each for each in running if each.spec.key not in self._outcomes]
            if self._probing:
                self._probe(running)
            turn += 1

    def _settled(self, running: Sequence[Contender], used_s: float, box_s: float) -> bool:
        if self._deadline.left() == 0:
            return True
        if used_s >= box_s:
            return all(len(each.blocks) >= LEAST_BLOCKS for each in running)
        return all(
            len(each.blocks) >= self._protocol.min_blocks
            and stats.settled(each.blocks, each.task.items, self._protocol.precision_goal)
            for each in running
        )

    def _block(self, contender: Contender) -> None:
        done = len(contender.blocks)
        self._listener.phase(contender.spec, f"block {done + 1}")
        try:
            cpu.wait_until_quiet(self._crew.others(contender.worker))
            doc = self._call(
                contender.worker, "measure", seconds=self._protocol.block, min_steps=self._protocol.min_steps
            )
            contender.blocks.append(Block.from_json(doc))
        except WorkerFailed as failure:
            if self._deadline.left() > 0 or not contender.blocks:
                self._guarded(contender.spec, contender.worker, failure)

    def _probe(self, running: Sequence[Contender]) -> None:
        """Read the ceilings for one contender after the other, since they may differ in type and working set."""
        for contender in running:
            if contender.probe == "none":
                continue
            try:
                asked = ", ".join(self._ceilings.probes(contender.spec))
                reading = self._ceilings.reading(contender.spec, contender.working_set, PROBE_SECONDS)
            except (Unsupported, WorkerFailed) as failure:
                contender.probe = "none"
                contender.warnings.append(f"no ceiling: {failure}")
                continue
            contender.probe = f"{asked} {contender.spec.precision}"
            contender.flops_per_s.append(reading["flops_per_s"])
            contender.bytes_per_s.append(reading["bytes_per_s"])

    def _confirm_ceiling(self, contender: Contender) -> None:
        seen = 0
        while seen < len(contender.flops_per_s) and unsettled(len(contender.flops_per_s), _share(contender)):
            seen = len(contender.flops_per_s)
            self._probe([contender])

    def _settle(self, contender: Contender) -> None:
        """Prove once more, after the timing, and close."""
        self._confirm_ceiling(contender)
        try:
            self._listener.phase(contender.spec, "verifying again")
            again = self._verification(contender)
            contender.verified = again
            if not again.ok:
                contender.faults.append(f"after the timed runs: {again.reason}")
        except (Unsupported, WorkerFailed) as failure:
            if self._deadline.left() > 0:
                self._guarded(contender.spec, contender.worker, failure)
                return
        self._finish(contender)

    def _finish(self, contender: Contender) -> None:
        spec = contender.spec
        try:
            facts = contender.worker.call("facts", 30.0)
        except WorkerFailed as failure:
            self._guarded(spec, contender.worker, failure)
            return
        self._crew.dismiss(contender.worker)
        contender.faults.extend(thread_faults(spec, contender.blocks))
        self._outcomes[spec.key] = finished_run(contender, facts)


def admitted(specs: Sequence[Spec], outcomes: dict[str, Outcome]) -> list[Spec]:
    """The specs whose workers fit into free memory together; the others get their outcome at once."""
    free, taken = cpu.free_memory(), []
    for spec in specs:
        need = needed_bytes(spec)
        if need > free:
            reason = f"not measured: needs about {need >> 20} MiB of memory, {free >> 20} MiB are free"
            outcomes[spec.key] = Skipped(spec=spec, reason=reason)
        else:
            free -= need
            taken.append(spec)
    return taken


def needed_bytes(spec: Spec) -> int:
    """A rough upper estimate of a worker's memory."""
    copies = backend(spec.backend).weight_copies(spec)
    return _WORKER_BYTES + task(spec).memory_bytes(spec.mode, spec.ring, copies)


def thread_faults(spec: Spec, blocks: Sequence[Block]) -> list[str]:
    """Whether more threads than the budget were at work, in most of the blocks."""
    telling = [block.context for block in blocks if block.context.get("wall_s", 0.0) >= _TELLING_S]
    over = [context["busy_threads"] for context in telling if over_budget(context, spec.threads)]
    if len(over) * 2 <= len(telling):
        return []
    return [f"keeps {max(over):.1f} threads busy on a budget of {spec.threads}"]


def over_budget(context: Mapping[str, float], threads: int) -> bool:
    """More CPU time than the budget has, or all of it while more threads stand in line for a CPU.

    Threads that get less than the budget stand in line because of other programs, which tells nothing.
    """
    if "busy_threads" not in context:
        return False
    share = context["cpu_s"] / (threads * context["wall_s"])
    return share > 1.1 or (share > _FULL and context["busy_threads"] > threads + _OVERLAP)


def finished_run(contender: Contender, facts: Mapping[str, Any]) -> Run:
    """Everything raw that is known of one measurement."""
    spec, warmed = contender.spec, contender.warmed
    timings = dict(contender.prepared["timings_s"])
    if warmed:
        timings |= {"first_step": warmed["first_step_s"], "warm_up": warmed["warm_up_s"]}
    environment = {**facts["environment"], "runtime": contender.prepared["versions"]}
    return Run(
        spec=spec,
        items_per_batch=contender.task.items,
        item=workload(spec.workload).item,
        settings=contender.prepared["settings"],
        environment=environment,
        timings_s=timings,
        blocks=tuple(contender.blocks),
        memory=facts["memory"],
        clock=contender.prepared["clock"],
        verified=contender.verified,
        ceiling=_ceiling(contender),
        accuracy=contender.prepared.get("accuracy"),
        faults=tuple(dict.fromkeys(contender.faults)),
        warnings=tuple(dict.fromkeys(contender.warnings)),
    )


def unsettled(readings: int, share: float) -> bool:
    """Whether the ceiling should be read again before a rate at this share of it is called impossible.

    On a busy machine a reading can be too low, and many can; but no neighbour takes three quarters of every one.
    """
    return share > 1 and readings < (_FEW_READINGS if share > _FAR else _MOST_READINGS)


def _share(contender: Contender) -> float:
    rate, ceiling = stats.throughput(contender.blocks, 1), _ceiling(contender)
    return stats.least_share(rate, ceiling) if rate and ceiling else 0.0


def _ceiling(contender: Contender) -> Ceiling | None:
    if not contender.flops_per_s:
        return None
    return Ceiling(
        flops_per_s=tuple(contender.flops_per_s),
        bytes_per_s=tuple(contender.bytes_per_s),
        flops=contender.task.flops(contender.spec.mode),
        bytes=contender.working_set,
        probe=contender.probe,
    )
