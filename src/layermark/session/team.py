"""A team: the ranks of one Spec, and all that is done with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.outcome import Block, Diagnostic, Failed, Outcome, Skipped, Verification
from layermark.session.failure import failed, not_begun
from layermark.session.listener import Listener
from layermark.session.partials import partials_warnings
from layermark.session.phases import Phases, build_stages, slowest_build
from layermark.session.profile import profile_after_timing
from layermark.session.random_values_proof import prove_on_random_values
from layermark.session.rank_group import RankGroup
from layermark.session.ranks import check_plan, communication_faults, refusal, shared_threads
from layermark.session.readings import CeilingReadings
from layermark.session.record import raw_record
from layermark.session.resources import Resources
from layermark.session.team_reference import RANDOM, TeamReference
from layermark.session.threads import thread_faults
from layermark.session.timed_ranks import TimedRanks
from layermark.spec import Spec
from layermark.worker.loop import WARM_UP_LIMIT_S
from layermark.workloads.base import task

SAMPLE_NS = 10_000_000
ALONE_SAMPLES = 3


class Team:
    """The ranks of one Spec. Whatever goes wrong with one of them becomes the `outcome`, and the team is over."""

    def __init__(self, spec: Spec, resources: Resources, listener: Listener | None = None) -> None:
        check_plan(spec, resources.peers.size if resources.peers and spec.plan.instances > 1 else 1)
        self.spec = spec
        self.outcome: Outcome | None = None
        self.blocks: list[Block] = []
        self.faults, self.warnings = list[Diagnostic](), list[Diagnostic]()
        self.verified: Verification | None = None
        self.warm_up_s: dict[str, float] = {}
        self.settings: Mapping[str, str] = {}
        self.alone, self.precision_goal = list[Block](), None  # type: tuple[list[Block], float | None]
        self.phases = Phases()
        self.profiled: Mapping[str, Any] | None = None
        self.proven_at_once = 0  # batches in a call of the proof at most, where that is to take less time than usual
        self.rank_stats: Mapping[str, Any] = {}  # what ranks that work together told: `pipeline` and `communication`
        self._resources = resources
        self._listener = listener or Listener()
        self._ranks = RankGroup(spec, resources)
        self._specs, self._peers = self._ranks.specs, self._ranks.peers
        self._task = task(self._specs[0])
        self._started, self._import_s = False, list[float]()
        self._prepared: list[dict[str, Any]] = []
        self._timed = TimedRanks(self._ranks, self.concurrent_batches, spec.batches_per_step, self.warn)
        self.reference = TeamReference(self._specs[0], resources, self._guarded)
        among = {"copies": self.concurrent_batches, "at_once": self._ranks.at_once}
        self.ceiling = CeilingReadings(resources, self._specs[0], self._task, peers=self._peers, **among)
        self.warnings += [*shared_threads(spec), *partials_warnings(spec)]
        if refused := refusal(spec):
            self._fail(refused)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self._specs)

    @property
    def running(self) -> bool:
        """Whether there is no outcome yet."""
        return self.outcome is None

    @property
    def items_per_batch(self) -> int:
        """Items of one batch of every rank; ranks that work together share a batch."""
        return self._task.items * self.concurrent_batches

    @property
    def concurrent_batches(self) -> int:
        """How many batches are done at the same time: ranks that work together share one."""
        return 1 if self._ranks.connected else self.size

    @property
    def host_share(self) -> float:
        """Which part of the ranks runs on this host: all of them, unless other instances of the job are elsewhere."""
        return self._peers.neighbours[0] / self._peers.size if self._peers else 1.0

    @property
    def timed_s(self) -> float:
        """How long the blocks have taken so far."""
        return sum(sum(block.samples_ns) for block in self.blocks) / 1e9

    @property
    def trustworthy(self) -> bool:
        """Whether what was proven so far holds."""
        return not self.faults and (self.verified is None or self.verified.ok)

    @property
    def compile_s(self) -> float:
        """How long the slowest rank took to build its program."""
        return float(slowest_build(self._prepared)["compile"])

    def warn(self, code: str, text: str) -> None:
        """Add a warning to the result."""
        self.warnings.append(Diagnostic(code, text))

    # The phases, in their order. Each returns whether the team goes on.

    def start_ahead(self) -> bool:
        """Start the ranks, which import their runtime, without waiting for them."""
        with self._guarded("start"):
            self._listener.phase(self.spec, "starting")
            self._ranks.hire(self.spec.backend)
        return self.running

    def await_start(self) -> bool:
        """Wait until the ranks have imported their runtime."""
        with self._guarded("start"):
            self._import_s = [worker.import_s(self._ranks.patience()) for worker in self._ranks.workers]
            self.phases.divide("start", {"import": max(self._import_s, default=0.0)})
        return self.running

    def start(self) -> bool:
        """Start the ranks and let them build their programs, without waiting for them."""
        with self._guarded("start"):
            self._listener.phase(self.spec, "preparing")
            if not self._ranks.workers:
                self._ranks.hire()
            self._ranks.begin_build()
            self._started = True
        return self.running

    def prepare(self) -> bool:
        """Wait until every rank has built its program, starting them first where nobody has."""
        if self._started or self.start():
            with self._guarded("build"):
                self._prepared = self._ranks.built()
                self.settings = self._prepared[0]["settings"]
                trial_s = max((worker.trial_s for worker in self._ranks.workers), default=0.0)
                self.phases.divide("build", build_stages(slowest_build(self._prepared), trial_s))
                if self._import_s:  # the ranks had imported their runtime before they were asked to build
                    self._prepared[0]["timings_s"]["import"] = self._import_s[0]
        return self.running

    def build_copy(self) -> bool:
        """Build every program once more, at other places in memory."""
        with self._guarded("build"):
            self._ranks.all("copy")
        return self.running

    def prove(self, copy: int = 0) -> bool:
        """Compare the results of every rank with the reference; a wrong one is an outcome.

        Zeros prove little, so a program for them is proven on random values, too, in workers of its own.
        """
        with self._guarded("proof"):
            self._listener.phase(self.spec, "verifying")
            if self.spec.values != RANDOM and not copy:
                with self.phases("build"):  # most of it; a second proof does not take that long
                    self._prove_on_random_values()
            if self.trustworthy:
                self._keep_worst(self._verifications(copy))
        return self._go_on()

    def warm_up(self, *, sample_ns: int = SAMPLE_NS, check: bool = True, limit_s: float = WARM_UP_LIMIT_S) -> bool:
        """Check that calls return when the work is done (unless somebody did), then run until it is steady."""
        with self._guarded("warm_up"):
            self._listener.phase(self.spec, "warming up")
            given = {"sample_ns": sample_ns, "check": check, "batches": self._timed.sample_batches, "limit_s": limit_s}
            found = self._ranks.all("warm_up", **given)
            self._blame(found)
            if self.trustworthy:
                slowest = max(found, key=lambda each: float(each["step_ns"]))
                self.warm_up_s = {name: float(slowest[name]) for name in ("first_step_s", "warm_up_s")}
                self._timed.lengthen_samples(float(slowest["step_ns"]))
                if not all(each["steady"] for each in found):
                    self.warn("not_steady", "no steady state was reached while warming up")
        return self._go_on()

    def shorten_step(self, batches: int) -> None:
        """Run so many batches in a call instead of those that were asked for, and say so in the result."""
        self._timed.sample_batches = self._prepared[0]["settings"]["batches_per_step"] = batches
        text = f"the budget left no time for {self.spec.batches_per_step} batches in a call: {batches} ran in each"
        self.warn("shortened_step", text)

    def batch_seconds(self) -> float:
        """Check that calls return when the work is done, and return about how long a batch takes."""
        found: list[dict[str, Any]] = []
        with self._guarded("warm_up"):
            found = self._ranks.all("batch_seconds")
            self._blame(found)
        self._go_on()
        return max((float(each.get("seconds", 0.0)) for each in found), default=0.0)

    def block(self, seconds: float, min_steps: int, copy: int = 0) -> Block | None:
        """Time one block after the other processes have come to rest; None once the team is over.

        When the budget ends in the middle of it, the blocks before it stand.
        """
        try:
            with self.phases("quiet"):
                self._ranks.wait_until_others_rest()
            with self.phases("timed"):
                found = self._timed.block(seconds, min_steps, copy, self.blocks)
        except (Unsupported, UserError, WorkerFailed) as failure:
            self._cut_short(failure)
            return None
        self.blocks.append(found)
        return found

    def step(self, batches: int, calls: int = 1, latencies: tuple[float, int] | None = None) -> Block | None:
        """Time one host call (or several) of so many batches on every rank; None once the team is over.

        `latencies` is the share of its time and the number of single batches that are timed alone where the runtime
        does not tell when each was done.
        """
        try:
            with self.phases("quiet"):
                self._ranks.wait_until_others_rest()
            with self.phases("timed"):
                found = self._timed.step(batches, calls, self.blocks)
                if latencies and not found.latencies_ns:
                    found = self._timed.with_latencies(found, *latencies)
        except (Unsupported, UserError, WorkerFailed) as failure:
            self._cut_short(failure)
            return None
        return found

    def time_alone(self, batches: int = 0) -> None:
        """Time the first rank while the others rest, so that the result can tell what ranks cost each other."""
        if self.concurrent_batches == 1 or not self.running or not self._rest():
            return
        with self._guarded("timed"):
            self.alone = self._timed.first_alone(batches, ALONE_SAMPLES)

    def _rest(self) -> bool:
        with self._guarded("quiet"):
            self._ranks.wait_until_others_rest()
        return self.running

    def score(self, batches: int) -> int:
        """Return how many items of the first batches are sorted into their class."""
        found = {"right": 0}
        with self._guarded("timed"):
            found = self._ranks.first("score", batches=batches)
        return int(found["right"])

    def tell(
        self, do: str, *, expected_s: float | None = None, within_s: float = math.inf, **given: Any
    ) -> dict[str, Any] | None:
        """Have the first rank do something and return its answer; None once the team is over.

        What takes ten times as long as expected has hung; without an expectation it may take as long as building does.
        A budget does not end it: what a training run has done by then would be lost. Whoever asks knows the time left,
        and ends what nothing depends on `within_s`.
        """
        if not self.running:
            return None
        try:
            found = self._ranks.lead(do, min(within_s, self._resources.wait_s(expected_s)), **given)
        except (Unsupported, UserError, WorkerFailed) as failure:
            self._end(failed(self.spec, failure, out_of_budget=False))
            return None
        self._blame([found])
        return found if self._go_on() else None

    def fail(self, code: str, reason: str) -> None:
        """End the team with a failure that the schedule has found."""
        self._end(Failed(spec=self.spec, reason=reason, code=code))

    def skip(self, code: str, reason: str) -> None:
        """End the team without a measurement, for a reason that is nobody's fault."""
        self._end(Skipped(spec=self.spec, reason=reason, code=code))

    def beside(self, spec: Spec, within_s: float = math.inf) -> Team:
        """Return another team that shares the resources of this one, and has so long to build its program."""
        return Team(spec, self._resources.until(within_s))

    def profile(self, folder: Path, name: str, batches: int) -> list[str]:
        """Profile some batches and return the files; raises `Unsupported` or `WorkerFailed` where it cannot be done."""
        if self._ranks.connected:
            raise Unsupported("ranks that work together have no profile; the result has the time of each stage")
        self.profiled = self._ranks.first("profile", folder=str(folder), name=name, batches=batches)
        return [str(path) for path in self.profiled["files"]]

    def drop(self, count: int) -> None:
        """Take the first steps out of the result, as far as others are left; the timings keep how long they took."""
        count = min(count, len(self.blocks) - 1)
        if count > 0:
            seconds = [block.samples_ns[0] / 1e9 for block in self.blocks[:count]]
            self.warm_up_s = {"first_step_s": seconds[0], "warm_up_s": sum(seconds[1:])}
            self.blocks = self.blocks[count:]

    def prove_again(self, copies: int = 1) -> bool:
        """Compare with the reference once more, after the timing; `copies` is how many of the program were timed."""
        self.collect_rank_stats()
        if not self.running:
            return False
        self._listener.phase(self.spec, "verifying again")
        try:
            with self.phases("proof"):
                again = [each for copy in range(copies) for each in self._verifications(copy)]
        except (Unsupported, UserError, WorkerFailed) as failure:
            if self._resources.deadline.left() > 0:
                self._fail(failure)
            else:
                self.warn("not_proven_again", "the budget ended before the program was verified again")
            return self.running
        for each in again:
            if not each.ok:
                self.faults.append(Diagnostic("wrong_result", f"after the timed runs: {each.reason}"))
        return self.running

    def collect_rank_stats(self) -> None:
        """Have ranks that work together tell of it, once: what they did last is what was timed.

        Replicas that have come to different weights, or whose sums are wrong, are a fault.
        """
        if self.rank_stats or not self.running or self._resources.deadline.left() == 0:
            return
        try:
            self.rank_stats = self._ranks.rank_stats(self.blocks)
        except WorkerFailed as failure:
            self._fail(failure)
            return
        self.faults += communication_faults(self.rank_stats.get("communication") or {})

    def finish(self) -> Outcome:
        """Return the outcome and end the ranks."""
        self.collect_rank_stats()
        if self.outcome is None:
            facts = self._ranks.facts()  # the most memory, before a profiler takes its own
            if "missing" in facts:
                self.warn("no_facts", f"memory and environment of the ranks are not known: {facts['missing']}")
            profile_after_timing(self, self._resources.profiles)
            self.faults += thread_faults(self._specs[0].threads * self.size, self.blocks)
            late = self._resources.deadline.left() == 0 and not self.blocks and self.trustworthy
            self.outcome = not_begun(self.spec) if late else raw_record(self, self._prepared[0], facts)
        self._dismiss()
        return self.outcome

    # How ranks are talked to.

    @contextmanager
    def _guarded(self, phase: str) -> Iterator[None]:
        try:
            with self.phases(phase):
                yield
        except (Unsupported, UserError, WorkerFailed) as failure:
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        self._end(failed(self.spec, failure, out_of_budget=self._resources.deadline.left() == 0))

    def _cut_short(self, failure: Exception) -> None:
        if not (self.blocks and self._resources.deadline.left() == 0):
            self._fail(failure)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._dismiss()

    def _go_on(self) -> bool:
        """Whether the team is running and trusted; one that is not trusted is finished at once."""
        if self.running and not self.trustworthy:
            self.finish()
        return self.running

    def _dismiss(self) -> None:
        self._ranks.dismiss()
        if isinstance(self.outcome, Failed) and self._peers is not None:
            self._peers.fail(self.outcome.reason)

    def _blame(self, answers: Sequence[Mapping[str, Any]]) -> None:
        self.faults += [Diagnostic("returns_early", each["fault"]) for each in answers if "fault" in each]

    def _verifications(self, copy: int) -> list[Verification]:
        with self.phases("reference"):
            answer = str(self._resources.oracle.answer(self._specs[0]))
        given = {"most": self.proven_at_once} if self.proven_at_once else {}
        return [Verification(**each) for each in self._ranks.all("verify", oracle=answer, copy=copy, **given)]

    def _prove_on_random_values(self) -> None:
        own = self.spec if self._ranks.connected else self._specs[0]
        beside = self.beside(own.replace(values=RANDOM))
        beside.proven_at_once = self.proven_at_once
        found = prove_on_random_values(beside)
        if found:
            self._keep_worst([found])
        if found and not found.ok:
            self.faults.append(Diagnostic("wrong_result", f"on random values: {found.reason}"))

    def _keep_worst(self, found: Sequence[Verification]) -> None:
        known = [self.verified] if self.verified else []
        self.verified = max([*known, *found], key=lambda each: (not each.ok, each.excess))
