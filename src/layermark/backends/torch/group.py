"""The ranks of a team as a process group of `torch.distributed`, and the groups within it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from layermark.backends._led import Line
from layermark.backends._network import interface_of, own_address
from layermark.errors import UserError
from layermark.spec import Group

WAIT = timedelta(hours=24)
"""Nobody waits for this: the parent ends ranks whose peer has failed, and knows how long work may take. A rank that
follows the first one cannot tell its silence, while a proof is computed elsewhere, from a rank that hangs."""


def connect(group: Group) -> None:
    """Join the others of a group, over gloo; a process that has joined stays so until it ends."""
    if dist.is_initialized():
        return
    if own := interface_of(own_address(group)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", own)
    host, port = group.master
    try:
        dist.init_process_group(
            "gloo", init_method=f"tcp://{host}:{port}", rank=group.rank, world_size=group.size, timeout=WAIT
        )
    except dist.DistNetworkError as error:
        first = str(error).splitlines()[0]
        raise UserError(f"rank {group.rank} of {group.size} cannot meet the others at {host}:{port}: {first}") from None


def joined_group() -> Group:
    """Return the place of a process that has joined a group by itself: all ranks are stages of one replica."""
    return Group(rank=dist.get_rank(), addresses=("",) * dist.get_world_size(), stages=dist.get_world_size())


def stage_group(group: Group) -> dist.ProcessGroup | None:
    """Return the ranks of the own replica; None for all there are. Every rank makes the groups of all."""
    if group.replicas == 1:
        return None
    made = [dist.new_group(range(at * group.stages, (at + 1) * group.stages)) for at in range(group.replicas)]
    return made[group.replica]


def replica_group(group: Group) -> dist.ProcessGroup | None:
    """Return the ranks that have the same stage as this one; None for all there are."""
    if group.stages == 1:
        return None
    made = [dist.new_group(range(at, group.size, group.stages)) for at in range(group.stages)]
    return made[group.stage]


class TorchLine(Line):
    """Ranks that talk over torch.distributed."""

    def numbers(self, values: Sequence[float]) -> list[float]:
        """Return the numbers of rank 0."""
        held = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(held, src=0)
        found: list[float] = held.tolist()
        return found

    def object(self, value: Any) -> Any:
        """Return what rank 0 gives."""
        message = [value]
        dist.broadcast_object_list(message, src=0)
        return message[0]

    def gathered(self, value: Any) -> list[Any]:
        """Return what every rank gives, on rank 0."""
        found: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(value, found, dst=0)
        return found or []

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        dist.barrier()
