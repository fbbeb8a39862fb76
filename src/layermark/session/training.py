"""The schedule of a training run: host calls of several updates on one team, whose state goes on."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layermark import pipelines
from layermark.errors import Unsupported, WorkerFailed
from layermark.outcome import Block, Outcome, Run
from layermark.session.anatomy import Anatomy
from layermark.session.budget import READINGS, ProfileRequest
from layermark.session.deadline import Deadline
from layermark.session.failure import ended_by_failure
from layermark.session.listener import Listener
from layermark.session.memory import admit, most_micro_batches, no_memory_for_reference
from layermark.session.team import Team
from layermark.training import checkpoint
from layermark.training.lengths import Call, CallPlan, Fitted, Lengths, UpdateTime, fit
from layermark.training.schedule import LearningRate
from layermark.workloads.base import task

NOT_FINITE = "not_finite"
"""The code of a run whose loss or weights are no numbers any more."""
COMPLETE = "complete"
"""The code of a run that was restored after its last update."""
LONG_BUDGET_S = 600.0
"""A shorter budget leaves no time for a second proof."""
LEAST_CALLS = 2
"""A budget never leaves fewer: the first is dropped."""
_PROOF_SHARE, _GUESS_SHARE = 0.4, 0.15
"""A proof may take this share of the time left, or there is none; to find out how long it takes, the other."""
_CALL_SHARE, _READING_SHARE = 0.8, 0.5
"""The calls may take this share of the time left."""
_COPIES, _SLOW_BYTES_PER_S = 3, 20e6
"""Of the weights, with the optimiser's state; and a disk or a network that is slow."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is trained for how long, and what is kept of it."""

    lengths: Lengths
    rate: LearningRate
    stages: int = 1
    """Stages of a pipeline: an update has at least one micro-batch for each."""
    folder: Path | None = None
    """Where checkpoints go."""
    interval: int = 0
    """Updates between two checkpoints; 0 for none."""
    offset: int = 0
    """Updates before the first checkpoint after the start."""
    keeps_last: bool = False
    """Whether the last weights are written in any case; with checkpoints, those of a run that a budget ends are."""
    restore: Path | None = None
    """The checkpoint to go on from."""
    profile: ProfileRequest | None = None
    """What is profiled after the run."""
    reserve: float = 0.0
    """Share of the time left that is kept for what follows, such as a validation."""

    def saves(self, call_plan: CallPlan, call: Call) -> bool:
        """Return whether a checkpoint is due after a call."""
        return self.folder is not None and call.last >= self.offset and call_plan.marks(call, self.interval)


@dataclass(frozen=True, kw_only=True)
class Called:
    """What one host call did."""

    call: Call
    seconds: float
    pictures: int
    rate: float
    loss: float
    right: int | None
    """Pictures that were sorted into their class; None where nobody counts them."""
    waited_s: float
    """Of its seconds, those spent waiting for data."""

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return (self.right or 0) / self.pictures


class TrainingListener(Listener):
    """Told what happens, in this order. This one hears nothing; a training program's prints."""

    def expected(self, seconds: float) -> None:
        """All calls together will take about this long."""

    def shortened(self, fitted: Fitted) -> None:
        """The budget allows less than what was asked for."""

    def compiled(self, seconds: float) -> None:
        """The program is ready."""

    def restored(self, path: Path, update: int) -> None:
        """The run goes on from a checkpoint that was taken after so many updates."""

    def begins(self, calls: int) -> None:
        """So many host calls will be made."""

    def called(self, done: Called, *, line: bool) -> None:
        """One host call is over; `line` says whether its figures are due."""

    def saved(self, path: Path, update: int, epoch: float) -> None:
        """A checkpoint was written."""

    def stopped(self, done: int, requested: int) -> None:
        """The budget ended the run after so many calls of so many."""

    def profiled(self, files: Sequence[str]) -> None:
        """These files hold the profile."""


def train(team: Team, plan: TrainingPlan, deadline: Deadline, listener: TrainingListener) -> Outcome:
    """Prepare, prove, train call by call, time the parts of a step, and prove again."""
    run = _Training(team, plan, deadline, listener)
    # A budget may leave fewer micro-batches to an update than were asked for, and so may memory then.
    admit([team], proven=False, micro_batches=0 if deadline.left() == math.inf else run.least)
    with ended_by_failure(team):
        run.whole()
    found = team.finish()
    if not isinstance(found, Run):
        return found
    return dataclasses.replace(found, settings={**found.settings, "training": run.facts()})


@dataclass
class _Training:
    """One run on its way."""

    team: Team
    plan: TrainingPlan
    deadline: Deadline
    listener: TrainingListener
    done: int = 0
    last_saved: str = ""
    fitted: Fitted | None = None
    update_time: UpdateTime = field(default_factory=lambda: UpdateTime(micro_batch_s=0.0))
    curve: list[dict[str, float | None]] = field(default_factory=list)
    excluded_s: dict[str, float] = field(default_factory=dict)
    anatomy: dict[str, object] = field(default_factory=dict)

    @property
    def call_plan(self) -> CallPlan:
        """The calls that are made."""
        return self.fitted.call_plan if self.fitted else self.plan.lengths.call_plan

    @property
    def least(self) -> int:
        """The fewest micro-batches of a replica that a budget leaves to an update."""
        return min(self.plan.stages, self.plan.lengths.accumulation)

    def whole(self) -> None:
        """Go through all of it, as far as the team goes on."""
        if self.team.running and self.team.prepare() and self.prove() and self.fit():
            self.listener.compiled(self.team.compile_s)
            if self.begin() and self.calls():
                self.time_parts()
                self.profile()
                self.prove_again()

    def prove(self) -> bool:
        """Compare with the reference, where there is time for it."""
        needed = 0.0
        if lacking := no_memory_for_reference(self.team.spec):
            self.team.warn("not_proven", f"not proven: {lacking}")
            return True
        if self.deadline.left() < math.inf:
            with self._excluded("proof"):
                needed = self.team.reference.seconds(_GUESS_SHARE * self.deadline.left())
        if not self.team.running:
            return False
        if needed > _PROOF_SHARE * self.deadline.left():
            about = "far longer" if needed == math.inf else f"about {needed:.0f} s"
            text = f"not proven: the float64 reference takes {about}, which the budget does not leave"
            self.team.warn("not_proven", text)
            return True
        with self._excluded("proof"):
            return self.team.prove()

    def prove_again(self) -> None:
        """Compare once more, unless a short budget leaves no time."""
        if not (self.team.verified and self.team.running):
            return
        if self.deadline.left() == math.inf or self.deadline.left() > LONG_BUDGET_S:
            with self._excluded("proof"):
                self.team.prove_again()
        else:
            self.team.warn("not_proven_again", "a budget below ten minutes leaves no time for a second proof")

    def fit(self) -> bool:
        """Find out how long a micro-batch takes, and shorten what is left of the run to what the budget allows."""
        call_plan = self._within_memory(self._left())
        lengths, least = self.plan.lengths, self.plan.stages * self.plan.lengths.replicas
        with self.team.phases("warm_up"):
            fewest = min(least, lengths.accumulation * lengths.replicas)
            found = self.team.tell("seconds_per_batch", micro_batches=fewest)
        if found is None:
            return False
        self.team.ceiling.read()
        self.update_time = UpdateTime(micro_batch_s=found["seconds"] * lengths.replicas)
        self.listener.expected(self.update_time.seconds(call_plan))
        usable = _CALL_SHARE * (1 - self.plan.reserve) * self.deadline.left()
        self.fitted = fit(call_plan, self.update_time, usable, stages=self.plan.stages, rounded=self._in_rounds)
        if self.fitted.shortened:
            self.listener.shortened(self.fitted)
            self.team.warn("shortened", f"shortened to fit the budget: {', '.join(self.fitted.shortened)}")
        return True

    def _within_memory(self, call_plan: CallPlan) -> CallPlan:
        """The calls with as many micro-batches in an update as there is memory for; a run without a budget has it."""
        asked = call_plan.micro_batches
        if self.deadline.left() == math.inf:
            return call_plan
        most = self._in_rounds(most_micro_batches(self.team.spec, self.least, asked, self.team.host_share))
        if most < asked:
            text = f"shortened: there is memory for {most} of {asked} micro-batches in an update"
            self.team.warn("shortened_for_memory", text)
            self.listener.note(text)
        return dataclasses.replace(call_plan, micro_batches=most)

    def _in_rounds(self, micro_batches: int) -> int:
        spec = self.team.spec
        return pipelines.in_whole_rounds(spec.pipeline_schedule, spec.plan.stages, micro_batches)

    def begin(self) -> bool:
        """Load the first weights, or a checkpoint."""
        batches = self.call_plan.micro_batches * self.plan.lengths.replicas
        marker = str(self.plan.restore or "")
        expected_s = self._moved_s() + self.team.compile_s
        with self.team.phases("build"):
            found = self.team.tell("begin_training", expected_s=expected_s, micro_batches=batches, marker=marker)
        if found is None:
            return False
        self.done = int(found["update"])
        if self.plan.restore:
            self.last_saved = self.plan.restore.stem
            self.listener.restored(self.plan.restore, self.done)
        elif self.plan.interval:
            return self._save(0)
        return True

    def calls(self) -> bool:
        """Make the calls; returns whether the team goes on."""
        every = list(self.call_plan)
        if not every:
            self.team.skip(COMPLETE, f"nothing is left to train: all {self.done} updates were made before")
            return False
        self.listener.begins(len(every))
        stride, stopped = max(1, math.ceil(len(every) / READINGS)), False
        for index, call in enumerate(every):
            if index >= LEAST_CALLS and self.deadline.left() < self._seconds(call):
                self.listener.stopped(index, len(every))
                self.team.warn("stopped", f"the budget ended the run after {index} of {len(every)} host calls")
                stopped = True
                break
            if not self._call(call):
                break
            if index % stride == 0 and self.team.ceiling.taken_s <= _READING_SHARE * self.team.timed_s:
                self.team.ceiling.read()
        if self.team.running and self._keeps_last(stopped) and self.last_saved != f"ckpt-{self.done}":
            self._save(self.done)
        if self.team.running:
            if len(self.team.blocks) > 1:
                self.excluded_s["first call"] = self.team.blocks[0].samples_ns[0] / 1e9
            self.team.drop(1)
            self.team.ceiling.confirm(self.team.blocks)
        return self.team.running

    def _keeps_last(self, stopped: bool) -> bool:
        """Whether the weights are written in any case: where they are needed, or would be lost since the last mark."""
        return self.plan.keeps_last or (stopped and self.plan.interval > 0)

    def time_parts(self) -> None:
        """Set loading and computing alone beside the rate of both, and divide a step into its parts."""
        self.team.collect_rank_stats()
        if not self.team.running:
            return
        with self._excluded("taking apart"), self.team.phases("anatomy"):
            batches = self.call_plan.micro_batches * self.plan.lengths.replicas
            self.anatomy = Anatomy(self.team, batches, self.deadline.left).take()

    def profile(self) -> None:
        """Profile some updates of one batch each, where somebody wants to know."""
        wanted = self.plan.profile
        if wanted is None or not self.team.running:
            return
        if self.team.tell("begin_training", expected_s=self._moved_s() + self.team.compile_s, micro_batches=1) is None:
            return
        try:
            self.listener.profiled(self.team.profile(wanted.folder, wanted.name, wanted.batches))
        except (Unsupported, WorkerFailed) as failure:
            self.listener.note(f"no profile: {failure}")

    def facts(self) -> dict[str, Any]:
        """Return what the result says about the run."""
        call_plan, lengths = self.call_plan, self.plan.lengths
        return {
            "updates": self.done,
            "updates_per_call": call_plan.updates_per_call,
            "micro_batches": call_plan.micro_batches * lengths.replicas,
            "global_batch": lengths.global_batch,
            "shortened": list(self.fitted.shortened) if self.fitted else [],
            "curve": self.curve,
            "anatomy": self.anatomy,
            "excluded_s": {"compile": self.team.compile_s, **self.excluded_s} if self.fitted else self.excluded_s,
        }

    def _left(self) -> CallPlan:
        """The calls that a checkpoint leaves to be made."""
        whole, restore = self.plan.lengths.call_plan, self.plan.restore
        return whole.after(checkpoint.update_of(restore)) if restore else whole

    def _call(self, call: Call) -> bool:
        rate, updates = self.plan.rate.of_call(call.first), call.last - call.first
        # The first call of a run may have something left to compile.
        expected_s = self._seconds(call) + (0.0 if self.team.blocks else self.team.compile_s)
        with self.team.phases("timed"):
            found = self.team.tell("train", expected_s=expected_s, updates=updates, rate=rate)
        if found is None:
            return False
        done = self._told(call, rate, found)
        if not math.isfinite(done.loss):
            return self._diverged(f"the loss is {done.loss} after update {call.last}")
        self.done = call.last
        line = self.call_plan.marks(call, self.plan.lengths.log_interval)
        self.listener.called(done, line=line)
        return self._save(call.last) if self.plan.saves(self.call_plan, call) else True

    def _told(self, call: Call, rate: float, found: dict[str, Any]) -> Called:
        block = Block.from_json(found["block"])
        self.team.blocks.append(block)
        done = Called(
            call=call,
            seconds=block.samples_ns[0] / 1e9,
            pictures=block.batches * self.team.items_per_batch,
            rate=rate,
            loss=found["loss"],
            right=found["right"],
            waited_s=block.context.get("loader_wait_s", 0.0),
        )
        right = None if done.right is None else done.accuracy
        self.curve.append({"update": call.last, "loss": done.loss, "accuracy": right, "rate": rate})
        return done

    def _diverged(self, what: str) -> bool:
        kept = f"; {self.last_saved} is intact" if self.last_saved else ""
        self.team.fail(NOT_FINITE, f"{what}: training has diverged{kept}; lower the learning rate")
        return False

    def _save(self, update: int) -> bool:
        epoch = self.plan.lengths.epoch(update)
        with self._excluded("checkpoints"), self.team.phases("checkpoints"):
            place = str(self.plan.folder)
            found = self.team.tell("save", expected_s=self._moved_s(), folder=place, update=update, epoch=epoch)
        if found is None:
            return False
        if name := found.get("not_finite"):
            return self._diverged(f"{name} is not finite after update {update}")
        path = Path(found["path"])
        self.last_saved = path.stem
        self.listener.saved(path, update, epoch)
        return True

    def _seconds(self, call: Call) -> float:
        """How long a call will take: as the last ones did, or as was measured before the run."""
        known = self.team.blocks[-1].samples_ns[0] / 1e9 / self.team.blocks[-1].batches if self.team.blocks else 0.0
        per_batch = max(known, self.update_time.micro_batch_s / self.plan.lengths.replicas)
        return per_batch * (call.last - call.first) * self.call_plan.micro_batches * self.plan.lengths.replicas

    def _moved_s(self) -> float:
        """How long weights and state take from one place to another, over the network or to a slow disk."""
        return _COPIES * task(self.team.spec).weight_bytes / _SLOW_BYTES_PER_S

    def _excluded(self, what: str) -> _Excluded:
        return _Excluded(self.excluded_s, what)


class _Excluded:
    """Adds the seconds of its `with` blocks to what is not part of the rate."""

    def __init__(self, seconds: dict[str, float], what: str) -> None:
        self._seconds, self._what = seconds, what

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._what] = self._seconds.get(self._what, 0.0) + time.monotonic() - self._began
