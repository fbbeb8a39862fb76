"""Replicas of a network in training: DistributedDataParallel averages gradients while the backward pass goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from layermark.backends._led import check_shares
from layermark.backends._replica import WholeReplica
from layermark.backends.torch import process
from layermark.backends.torch.averaging import Statistics, all_reduce_ceiling, hidden_share, median_s
from layermark.backends.torch.group import TorchLine, connect
from layermark.backends.torch.network import Network
from layermark.backends.torch.program import TorchProgram
from layermark.errors import Unsupported
from layermark.replicas import own_graph, statistic_weights
from layermark.spec import Group, Spec
from layermark.workloads.base import Task

_MEBI = 1 << 20


class _Whole(nn.Module):
    """A network with the call that runs it: as it is, compiled, or with activations computed again."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self._call = module, forward

    def forward(self, *inputs: Tensor) -> Any:
        """Run it."""
        return self._call(*inputs)


class Sharing:
    """How one replica shares its gradients and statistics with the others."""

    def __init__(self, network: Network, weights: Mapping[str, float], bucket_bytes: int) -> None:
        self._network, self._bucket_bytes, self.silent = network, bucket_bytes, False
        self._statistics = Statistics([network], weights, None)
        self._models: dict[int, DistributedDataParallel] = {}

    def model(self, forward: Callable[..., Any]) -> DistributedDataParallel:
        """Return the network around this forward pass; its gradients are averaged."""
        return DistributedDataParallel(
            _Whole(self._network.module, forward),
            broadcast_buffers=False,
            bucket_cap_mb=max(1, self._bucket_bytes) / _MEBI,
            gradient_as_bucket_view=True,
        )

    def quiet(self, model: DistributedDataParallel, *, last: bool) -> AbstractContextManager[Any]:
        """Return what a micro-batch runs in: only the last of an update shares its gradients."""
        return nullcontext() if last and not self.silent else model.no_sync()

    def average_statistics(self) -> None:
        """Add up the running statistics of all replicas."""
        if not self.silent:
            self._statistics.average()


class ReplicaProgram(WholeReplica):
    """One of several replicas, each with a program of its own that averages gradients with the others."""

    _program: TorchProgram

    def __init__(self, spec: Spec, task: Task, group: Group) -> None:
        together = spec.update.gathers_statistics
        weights = statistic_weights(task.graph, group.replicas, group.replica, together=together)
        own = dataclasses.replace(task, graph=own_graph(task.graph, group.replicas, together=together))
        execution = "eager" if spec.execution == "auto" else spec.execution
        alone = spec.replace(update=spec.update.replace(replicas=1), execution=execution)
        subnormals = process.set_subnormals(spec.subnormals)
        program = TorchProgram(alone, own, subnormals, lambda network: Sharing(network, weights, spec.bucket_bytes))
        super().__init__(spec, task, group, TorchLine(), program, "DDP (gloo)")

    def _communication(self) -> dict[str, Any]:
        """Time updates that share their gradients, updates that do not, and the sharing alone; then begin again."""
        program, count = self._program, self._program.micro_batches
        program.learning_rate = 0.0
        sharing = program.sharing
        assert sharing is not None
        with_s = median_s(lambda: program.run(count), None)
        sharing.silent = True
        without_s = median_s(lambda: program.run(count), None)
        sharing.silent = False
        size = sum(each.numel() * each.element_size() for each in program.module.parameters())
        ladder = all_reduce_ceiling(None, size)
        alone_s = float(ladder[-1]["seconds"])
        self._load_own(self._task.weights(), None)
        dist.barrier()
        return {
            "replicas": self._group.replicas,
            "gradient_bytes": size,
            "micro_batches": count,
            "update_s": with_s,
            "update_without_s": without_s,
            "average_s": alone_s,
            "hidden": hidden_share(with_s, without_s, alone_s),
            "overlaps": True,
            "all_reduce": ladder,
        }


def prepare(spec: Spec, task: Task, group: Group) -> ReplicaProgram:
    """Build the program of one replica, once it has met the others."""
    if spec.mode != "train":
        raise Unsupported("replicas are connected in training only; leave --mode train out for independent copies")
    if spec.device != "cpu":
        raise Unsupported("replicas train on the CPU here; use --device cpu")
    if spec.formulation == "tuned" or spec.cache == "cold" or spec.execution == "eager-direct":
        raise Unsupported("replicas train as eager, compile or recompute, with --formulation library and a warm cache")
    connect(group)
    check_shares(spec, group)
    return ReplicaProgram(spec, task, group)
