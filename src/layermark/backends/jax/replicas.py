"""Replicas of a network in training on `jax.distributed`: gradients are averaged by a collective of XLA over gloo."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.backend import clear_backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from layermark.backends._led import check_shares
from layermark.backends._network import own_address
from layermark.backends._replica import SummingReplica
from layermark.backends.jax import process
from layermark.backends.jax.network import Held, Network
from layermark.backends.jax.program import prepare as prepare_alone
from layermark.errors import Unsupported, UserError
from layermark.replicas import own_graph, statistic_weights
from layermark.spec import Group, Spec
from layermark.workloads.base import Task

_AXIS = "replicas"


def connect(group: Group) -> None:
    """Join the others of a group; a process that has joined stays so until it ends."""
    if jax.distributed.is_initialized():
        return
    clear_backends()  # type: ignore[no-untyped-call]  # what was imported ahead has started a client that knows of nobody
    process.synchronous.cache_clear()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    host, port = group.master
    _collect_by(own_address(group))
    try:
        jax.distributed.initialize(f"{host}:{port}", num_processes=group.size, process_id=group.rank)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise UserError(f"rank {group.rank} of {group.size} cannot meet the others at {host}:{port}: {first}") from None


def _collect_by(address: str) -> None:
    """Have XLA's gloo use an address. jax hands none on: gloo would take what the host's own name resolves to."""
    doors = sys.modules.get("jaxlib._jax")
    make = getattr(doors, "make_gloo_tcp_collectives", None)
    if make is not None:  # else a release without this private door, left to what it does by itself
        doors.make_gloo_tcp_collectives = functools.partial(make, hostname=address)  # type: ignore[union-attr]


class Exchange:
    """Adds up arrays over the ranks: one device of each makes a mesh."""

    def __init__(self, group: Group) -> None:
        mesh = Mesh(np.array(jax.devices()), (_AXIS,))
        self._size = group.size
        self._one_each = NamedSharding(mesh, PartitionSpec(_AXIS))  # type: ignore[no-untyped-call]
        self._same = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        self._sum = jax.jit(lambda rows: rows.sum(0, dtype=rows.dtype), out_shardings=self._same)

    def add(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sum over all ranks."""
        return np.array(self.added(jnp.asarray(values)))

    def added(self, own: Array) -> Array:
        """The same for an array on the device."""
        shape = (self._size, *own.shape)
        rows = jax.make_array_from_single_device_arrays(shape, self._one_each, [own[None]])
        found: Array = self._sum(rows).addressable_data(0)
        return found


class Sharing:
    """How one replica shares its gradients and statistics with the others."""

    def __init__(self, whole: Any, group: Group, exchange: Exchange) -> None:
        self._weights = statistic_weights(whole, group.replicas, group.replica)
        self._replicas, self._exchange = group.replicas, exchange

    def step(self, network: Network, gather: Callable[..., Any]) -> Callable[..., tuple[Held, Array]]:
        """Return the last micro-batch of an update, the averages over all replicas, and the update."""
        pack = jax.jit(lambda held: network.packed(held, self._weights, 1 / self._replicas))
        moved = functools.partial(network.applied, statistics=self._weights)
        apply = jax.jit(moved, donate_argnums=(0,))

        def step(held: Held, knobs: Array, *inputs: Array) -> tuple[Held, Array]:
            held, loss = gather(held, knobs, *inputs)
            return apply(held, self._exchange.added(pack(held)), knobs), loss

        return step


def prepare(spec: Spec, task: Task, group: Group) -> SummingReplica:
    """Build the program of one replica, once it has met the others."""
    if spec.mode != "train":
        raise Unsupported("replicas are connected in training only; leave --mode train out for independent copies")
    if spec.cache == "cold":
        raise Unsupported("replicas have no --cache cold; leave it out")
    if spec.update.gathers_statistics:
        reason = "replicas on jax move running statistics with every micro-batch; torch can move them once an update"
        raise Unsupported(reason, instead={"backend": "torch"})
    connect(group)
    check_shares(spec, group)
    process.set_width(spec.precision)
    exchange = Exchange(group)
    own = dataclasses.replace(task, graph=own_graph(task.graph, group.replicas))
    alone = spec.replace(update=spec.update.replace(replicas=1), batches_per_step=1)
    program = prepare_alone(alone, own, Sharing(task.graph, group, exchange))
    return SummingReplica(spec, task, group, program, exchange.add, "jax.distributed (gloo), after the backward pass")
