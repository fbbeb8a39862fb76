"""A network cut into stages, each in a process of its own, on `torch.distributed.pipelining`.

Where there are replicas, each is a pipeline of its own, and ranks with the same stage average their gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining.schedules import get_schedule_class

from layermark import ops, pipelines
from layermark.backends._led import LedProgram, Order, check_shares
from layermark.backends.base import Arrays
from layermark.backends.torch import process
from layermark.backends.torch.averaging import Averages, communication
from layermark.backends.torch.group import TorchLine, connect, joined_group, replica_group, stage_group
from layermark.backends.torch.inputs import StageInputs
from layermark.backends.torch.network import Network
from layermark.backends.torch.optimisers import Tensors
from layermark.backends.torch.stages import Recorder, StageModule, Take, TimedStage, Wire, wire_into
from layermark.backends.torch.updating import Trainer, length
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph
from layermark.replicas import own_graph, statistic_weights
from layermark.spec import Group, Spec
from layermark.workloads.base import Task

_PASSES_KEPT = 8
"""Passes through the pipeline whose events are kept."""
_EVENTS_KEPT = 4096
_FULL = 4
"""Batches per stage that a call in inference has at least, so that filling and draining is a small part of it."""


class _Stage:
    """One stage of this rank: its network, its optimiser's state, and its module between two wires."""

    def __init__(self, spec: Spec, whole: Graph, cuts: tuple[Graph, ...], index: int) -> None:
        self.index, self.count = index, len(cuts)
        self.network = Network(spec, cuts[index])
        self.trainer = Trainer(spec.update, self.network, gathers=False) if self.network.training else None
        self._copied = pipelines.SCHEDULES[spec.pipeline_schedule].cuts_backward and self.network.training
        self._execution, self._pictures_last = spec.execution, any(isinstance(node.op, ops.Conv2d) for node in whole)
        self.received = self._wire_into(cuts[index])
        self.sent = None if index + 1 == len(cuts) else self._wire_into(cuts[index + 1])

    def _wire_into(self, graph: Graph) -> Wire:
        facts = {"pictures_last": self._pictures_last, "recorded": self.network.training, "copied": self._copied}
        return wire_into(graph, self.network.types.compute, **facts)

    def connect(self, take: Take) -> None:
        """Make the module, which takes what the graph itself is fed with from here."""
        self.module = StageModule(self.network, self.received, self.sent, take, self.trainer, self._execution)

    def timed(self, recorder: Recorder, group: dist.ProcessGroup | None) -> TimedStage:
        """The stage as one schedule uses it.

        Shapes and types are given. torch would find them out by a forward pass that nobody asked for, and batch norms
        in training would count one batch too many.
        """
        loss = torch.empty((), dtype=self.network.types.loss, device="meta", requires_grad=self.trainer is not None)
        received = self.received.metas if self.index else (torch.empty(1, device="meta"),)
        sent = (loss,) if self.sent is None else self.sent.metas
        return TimedStage(self.module, self.index, self.count, recorder, group, input_args=received, output_args=sent)


class PipelineProgram(LedProgram):
    """The stages of one rank. Every rank builds one; rank 0 is called, the others `follow`."""

    def __init__(self, spec: Spec, task: Task, subnormals: str, group: Group) -> None:
        super().__init__(spec, task, group, TorchLine())
        together = spec.update.gathers_statistics
        cuts = _cut(spec, own_graph(task.graph, group.replicas, together=together))
        schedule = pipelines.SCHEDULES[spec.pipeline_schedule]
        self._one_at_a_time = schedule.one_at_a_time
        self._engine = schedule.engine if spec.mode == "train" else "GPipe"
        self._own_stages, peers = stage_group(group), replica_group(group)
        own = pipelines.placement(spec.pipeline_schedule, len(cuts))[group.stage]
        self._stages = [_Stage(spec, task.graph, cuts, index) for index in own]
        networks = [each.network for each in self._stages]
        weights = statistic_weights(task.graph, group.replicas, group.replica, together=together)
        shared = group.replicas > 1 and spec.mode == "train"
        self._averages = Averages(networks, weights, group, peers, spec.bucket_bytes) if shared else None
        self._inputs = StageInputs(spec, task, networks)
        for position, stage in enumerate(self._stages):
            stage.connect(self._inputs.taker(position))
        self._recorder = Recorder()
        self._passes: deque[list[Any]] = deque(maxlen=_PASSES_KEPT)
        self._schedules: dict[int, Any] = {}
        self._settings = self._describe(subnormals, len(cuts))
        self._warm_up(len(cuts))

    @property
    def settings(self) -> Mapping[str, str]:
        """What was really built."""
        return dict(self._settings)

    @property
    def least_batches(self) -> int:
        """In inference a call is long enough to fill the pipeline."""
        if self._spec.mode == "train" or self._one_at_a_time:
            return self._group.replicas
        return _FULL * self._stages[0].count * self._group.replicas

    def pipeline(self) -> Mapping[str, Any]:
        """Return the events of the last passes through the pipeline of the first replica, by rank and in their order.

        As many passes are kept as have some thousand events, the last in any case.
        """
        by_rank = self._asked(Order.EVENTS)[: self._group.stages]
        passes = [[[list(event) for event in each] for each in one] for one in zip(*by_rank, strict=True)]
        each = max(1, sum(map(len, passes[-1]))) if passes else 1
        kept = passes[-max(1, _EVENTS_KEPT // each) :]
        return {"schedule": self._spec.pipeline_schedule, "stages": self._stages[0].count, "passes": kept}

    def close(self) -> None:
        """Let the other ranks go."""
        self._schedules.clear()
        super().close()

    # The own part.

    def _answer(self, order: Order) -> Any:
        if order == Order.EVENTS:
            return list(self._passes)
        if order == Order.TOTALS:
            return [each.trainer.totals(0) for each in self._stages if each.trainer and each.sent is None]
        if order == Order.COMMUNICATION:
            assert self._averages is not None
            return communication(self._averages, self._group, self._spec.update.accumulation)
        if order == Order.OUTPUTS:
            made = [stage.network.named(stage.module.results) for stage in self._stages]
            return {name: each for part in made for name, each in part.items()}
        return self._held(order) if self._group.replica == 0 else {}

    def _held(self, order: Order) -> Arrays:
        questions: dict[Order, Callable[[_Stage], Arrays]] = {
            Order.WEIGHTS: lambda stage: stage.network.weights(),
            Order.STATE: lambda stage: stage.trainer.state() if stage.trainer else {},
        }
        return {name: each for stage in self._stages for name, each in questions[order](stage).items()}

    def _first_weights(self) -> Arrays:
        return self._task.weights_of({name for stage in self._stages for name in stage.network.places})

    def _load_own(self, weights: Arrays, state: Arrays | None) -> None:
        for stage in self._stages:
            stage.network.load(weights)
            stage.module.results = {}
            if stage.trainer is not None:
                stage.trainer.load(state)
        self._inputs.rewind()

    def _run_own(self, batches: int) -> None:
        if self._spec.mode == "train":
            for _ in range(batches // self.own_micro_batches):
                self._update(self.own_micro_batches)
        else:
            with torch.inference_mode():
                for first in range(0, batches, pipelines.MOST_AT_ONCE):
                    self._pass(min(pipelines.MOST_AT_ONCE, batches - first))

    def _update(self, micro_batches: int) -> None:
        trainers = [each.trainer for each in self._stages if each.trainer is not None]
        for stage in self._stages:
            stage.module.zero_grad(set_to_none=True)
        for trainer in trainers:
            trainer.share.set(1 / micro_batches)
        self._pass(micro_batches)
        for trainer in trainers:
            trainer.statistics.settle()
        if self._averages is not None:
            self._averages.apply()
        sums = [each.left_by_backward() for each in trainers]
        norm = self._norm(sums) if self._spec.update.clip_norm else None
        for trainer, own in zip(trainers, sums, strict=True):
            trainer.rate.set(self.learning_rate)
            if own:  # a stage may have no weights
                trainer.update_with(own, norm)
            trainer.statistics.remember()

    def _norm(self, sums: list[Tensors]) -> Tensor:
        """The norm of all gradients, those of other stages included."""
        # A stage without weights takes part, too: nobody may be missing in a sum.
        lengths = [length(each) for each in sums if each] or [torch.zeros((), dtype=self._stages[0].network.types.loss)]
        square = torch.stack(lengths).square().sum()
        dist.all_reduce(square, group=self._own_stages)
        return square.sqrt()

    def _pass(self, micro_batches: int) -> None:
        """Send some micro-batches through the pipeline, and wait until it is empty."""
        self._recorder.events = []
        at_once = 1 if self._one_at_a_time else micro_batches
        for self._recorder.offset in range(0, micro_batches, at_once):
            self._schedule(at_once)()
            if self._one_at_a_time and self._spec.mode != "train":
                dist.barrier(self._own_stages)  # without a backward pass the first stage would not wait for the last
        self._passes.append(self._recorder.events)

    def _schedule(self, micro_batches: int) -> Callable[[], Any]:
        if micro_batches not in self._schedules:
            if len(self._schedules) > 1:  # each has buffers of its own
                self._schedules.clear()
            self._schedules[micro_batches] = self._made(micro_batches)
        found: Callable[[], Any] = self._schedules[micro_batches]
        return found

    def _made(self, micro_batches: int) -> Callable[[], Any]:
        made = get_schedule_class(self._engine)
        stages = [each.timed(self._recorder, self._own_stages) for each in self._stages]
        trains = self._spec.mode == "train"
        schedule = made(
            stages if len(stages) > 1 else stages[0],
            micro_batches,
            loss_fn=(lambda loss, _: loss) if trains else None,
            scale_grads=False,
        )
        # Stages take their inputs and targets themselves; torch wants to see something that it can share out.
        token = torch.zeros(micro_batches)
        first, last = (any(getattr(each, which) for each in stages) for which in ("is_first", "is_last"))
        given = (token,) if first else ()
        return lambda: schedule.step(*given, target=token if last and trains else None, return_outputs=False)

    def _warm_up(self, stages: int) -> None:
        """Run as little as the schedule takes, so that nothing is left to compile, and load the first weights."""
        least = 1 if self._engine == "GPipe" else stages
        rate, self.learning_rate = self.learning_rate, 0.0
        whole, self.micro_batches = self.micro_batches, least * self._group.replicas
        try:
            self._run_own(least)
        except RuntimeError as error:
            if self._stages[0].network.types.low:
                reason = str(error.__cause__ or error).splitlines()[0]
                raise Unsupported(f"torch cannot run this graph at {self._spec.precision} here: {reason}") from error
            raise
        finally:
            self.learning_rate, self.micro_batches = rate, whole
        self._passes.clear()
        self._schedules.clear()
        self._load_own(self._first_weights(), None)

    def _describe(self, subnormals: str, stages: int) -> dict[str, str]:
        network, spec = self._stages[0].network, self._spec
        return {
            "execution": "eager" if spec.execution == "auto" else spec.execution,
            "formulation": spec.formulation,
            "layout": "channels_last" if network.channels_last else "contiguous",
            "compute_type": str(network.types.compute).removeprefix("torch."),
            "weight_type": str(network.types.weight).removeprefix("torch."),
            "subnormals": subnormals,
            "allocator": spec.allocator,
            "isa": process.isa(),
            "stages": str(stages),
            "replicas": str(self._group.replicas),
            "pipeline_schedule": f"{spec.pipeline_schedule} ({self._engine})",
        }


def prepare(spec: Spec, task: Task) -> PipelineProgram:
    """Build the stages of this rank, once it has met the others."""
    group = task.group
    if group is not None:
        connect(group)
    group = group or joined_group()
    check_shares(spec, group)
    if spec.device != "cpu":
        raise Unsupported("pipelines run on the CPU here; use --device cpu")
    if spec.formulation == "tuned":
        raise Unsupported("a pipeline has no tuned formulation; use --formulation library")
    if spec.cache == "cold":
        raise Unsupported("a pipeline has no --cache cold; leave it out")
    return PipelineProgram(spec, task, process.set_subnormals(spec.subnormals), group)


def _cut(spec: Spec, graph: Graph) -> tuple[Graph, ...]:
    cuts = graph.cut(spec.splits)
    for name, cut in zip(spec.splits, cuts[1:], strict=True):
        flat = [each for each, op in cut.inputs.items() if op.role == "live" and each not in graph.needs_gradient]
        if flat and spec.mode == "train":
            raise UserError(f"--pipeline-splits {name}: nothing before {flat[0]!r} is trained; cut further down")
    return cuts
