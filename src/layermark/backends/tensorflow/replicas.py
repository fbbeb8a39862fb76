"""Replicas of a network in training on `tf.distribute`: gradients are averaged inside the step, over gRPC."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from layermark.backends._led import check_shares
from layermark.backends._replica import SummingReplica
from layermark.backends.tensorflow.program import prepare as prepare_alone
from layermark.errors import Unsupported, UserError
from layermark.graph import Graph
from layermark.replicas import own_graph, statistic_weights
from layermark.spec import Group, Spec
from layermark.workloads.base import Task

Tensor = Any
Tensors = Mapping[str, Tensor]
EXECUTIONS = {"auto": "function", "function": "function", "recompute": "recompute"}
"""What runs: XLA has no collectives between processes here, and a session knows nothing of strategies."""


@cache
def connect(group: Group) -> Any:
    """Join the others of a group and return their strategy; a process that has joined stays so until it ends."""
    options = tf.distribute.experimental
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": list(group.addresses)}),
                task_type="worker",
                task_id=group.rank,
                rpc_layer="grpc",
            ),
            communication_options=options.CommunicationOptions(implementation=options.CommunicationImplementation.RING),
        )
    except (RuntimeError, tf.errors.OpError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"rank {group.rank} of {group.size} cannot meet the others: {first}") from None


class Sharing:
    """How one replica shares its gradients and statistics with the others."""

    def __init__(self, strategy: Any, whole: Graph, group: Group) -> None:
        self._strategy, self._replicas = strategy, group.replicas
        self._weights = statistic_weights(whole, group.replicas, group.replica)
        self._sum = tf.function(lambda own: self.run(_added, [own]), autograph=False)

    def run(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        """Call a function where it can talk to the other replicas."""
        return self._strategy.run(function, args=tuple(inputs))

    def add(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sum over all ranks."""
        found: np.ndarray[Any, Any] = self._sum(tf.constant(values)).numpy()
        return found

    def averaged(self, gradients: Tensors, moves: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the mean gradients of all replicas, and running statistics that add up by their weights."""
        own = {f"gradient/{name}": each / self._replicas for name, each in gradients.items()}
        own |= {f"move/{name}": moves[name] * tf.constant(by, moves[name].dtype) for name, by in self._weights.items()}
        sums = _summed(own)
        means = {name: sums[f"gradient/{name}"] for name in gradients}
        return means, {**moves, **{name: sums[f"move/{name}"] for name in self._weights}}


def _added(own: Tensor) -> Tensor:
    # What was handed in has no device yet, which the strategy asks for.
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(own))


def _summed(own: Tensors) -> dict[str, Tensor]:
    """Sums over all replicas: one message for all tensors of a type."""
    found: dict[str, Tensor] = {}
    for kind in sorted({each.dtype.name for each in own.values()}):
        members = {name: each for name, each in own.items() if each.dtype.name == kind}
        flat = _added(tf.concat([tf.reshape(each, (-1,)) for each in members.values()], 0))
        parts = tf.split(flat, [each.shape.num_elements() for each in members.values()])
        found |= {name: tf.reshape(part, members[name].shape) for name, part in zip(members, parts, strict=True)}
    return found


def prepare(spec: Spec, task: Task, group: Group) -> SummingReplica:
    """Build the program of one replica, once it has met the others."""
    if spec.mode != "train":
        raise Unsupported("replicas are connected in training only; leave --mode train out for independent copies")
    if spec.execution not in EXECUTIONS or spec.device != "cpu" or spec.cache == "cold":
        raise Unsupported("replicas on tensorflow train on the CPU as function or recompute, with a warm cache")
    if spec.update.gathers_statistics:
        reason = "replicas on tensorflow move running statistics with every micro-batch; torch can once an update"
        raise Unsupported(reason, instead={"backend": "torch"})
    check_shares(spec, group)
    sharing = Sharing(connect(group), task.graph, group)
    own = dataclasses.replace(task, graph=own_graph(task.graph, group.replicas))
    update, execution = spec.update.replace(replicas=1), EXECUTIONS[spec.execution]
    program = prepare_alone(spec.replace(update=update, batches_per_step=1, execution=execution), own, sharing)
    return SummingReplica(spec, task, group, program, sharing.add, "tf.distribute (gRPC ring), after the backward pass")
