"""What replicas have in common: gradients and running statistics that are averaged, and what that costs."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from layermark.backends._replica import all_reduced, message_sizes
from layermark.backends.torch.network import Network
from layermark.spec import Group

_ON_THEIR_WAY = 4
"""Buckets of gradients that are sent before the first must be back."""
_REPEATS = 7
_LONG_S = 0.5
"""Of messages that take longer only a few are sent."""


class Statistics:
    """Running statistics of batch norms, which come to what a process alone would have by the weights of a replica."""

    def __init__(
        self, networks: Sequence[Network], weights: Mapping[str, float], peers: dist.ProcessGroup | None
    ) -> None:
        places = {name: place for each in networks for name, place in each.places.items() if name in weights}
        self._tensors = [place.tensor for place in places.values()]
        self._shares = [weights[name] for name in places]
        self._peers = peers

    @torch.no_grad()
    def average(self) -> None:
        """Add up what all replicas have, each with its weight."""
        if self._tensors:
            shares = [each * share for each, share in zip(self._tensors, self._shares, strict=True)]
            flat = torch.cat([each.reshape(-1) for each in shares])
            dist.all_reduce(flat, group=self._peers)
            for each, part in zip(self._tensors, flat.split([each.numel() for each in shares]), strict=True):
                each.copy_(part.view_as(each))


class _Sent(NamedTuple):
    """Gradients that are being added up over the replicas."""

    bucket: list[Tensor]
    flat: Tensor
    work: Any


class Averages:
    """Gradients of the stages of one rank, averaged over the replicas once all backward passes are done."""

    def __init__(
        self,
        networks: Sequence[Network],
        weights: Mapping[str, float],
        group: Group,
        peers: dist.ProcessGroup | None,
        bucket_bytes: int,
    ) -> None:
        self._leaves = [each for network in networks for each in network.module.parameters()]
        self._statistics = Statistics(networks, weights, peers)
        self._peers, self._replicas, self._bucket_bytes = peers, group.replicas, bucket_bytes

    @property
    def bytes(self) -> int:
        """How much there is to average in an update."""
        return sum(each.numel() * each.element_size() for each in self._leaves)

    @property
    def peers(self) -> dist.ProcessGroup | None:
        """The ranks that average with this one."""
        return self._peers

    @torch.no_grad()
    def apply(self) -> None:
        """Replace every gradient by the mean over the replicas, and the statistics by their average."""
        for leaf in self._leaves:
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
        self._reduce([each.grad for each in self._leaves if each.grad is not None])
        self._statistics.average()

    def _reduce(self, gradients: Sequence[Tensor]) -> None:
        """Some buckets are on their way at a time: copies of all gradients at once would be many."""
        sent: deque[_Sent] = deque()
        for bucket in buckets(gradients, self._bucket_bytes):
            if len(sent) == _ON_THEIR_WAY:
                self._settle(sent.popleft())
            flat = torch.cat([each.reshape(-1) for each in bucket])
            sent.append(_Sent(bucket, flat, dist.all_reduce(flat, group=self._peers, async_op=True)))
        for each in sent:
            self._settle(each)

    def _settle(self, sent: _Sent) -> None:
        sent.work.wait()
        sent.flat.div_(self._replicas)
        for each, part in zip(sent.bucket, sent.flat.split([each.numel() for each in sent.bucket]), strict=True):
            each.copy_(part.view_as(each))


def buckets(tensors: Sequence[Tensor], most_bytes: int) -> Iterator[list[Tensor]]:
    """Yield tensors of one type in groups of about so many bytes, at least one in each."""
    held: list[Tensor] = []
    size = 0
    for each in tensors:
        own = each.numel() * each.element_size()
        if held and (size + own > most_bytes or each.dtype != held[0].dtype):
            yield held
            held, size = [], 0
        held.append(each)
        size += own
    if held:
        yield held


def communication(averages: Averages, group: Group, micro_batches: int) -> dict[str, Any]:
    """Return what the averaging of a pipeline's rank takes: it comes after the backward passes, so nothing hides."""
    return {
        "replicas": group.replicas,
        "gradient_bytes": averages.bytes,
        "micro_batches": micro_batches,
        "average_s": median_s(averages.apply, averages.peers),
        "hidden": 0.0,
        "overlaps": False,
        "all_reduce": all_reduce_ceiling(averages.peers, averages.bytes),
    }


def all_reduce_ceiling(peers: dist.ProcessGroup | None, most_bytes: int) -> list[dict[str, Any]]:
    """Return how quickly messages of several sizes are added up over the ranks, up to the size that is needed."""
    size = dist.get_world_size(peers)
    return [_reading(each, size, peers) for each in message_sizes(most_bytes)]


def _reading(count: int, size: int, peers: dist.ProcessGroup | None) -> dict[str, Any]:
    own = torch.full((count // 4,), float(dist.get_rank(peers) + 1))
    message = own.clone()

    def add_up() -> None:
        dist.all_reduce(message, group=peers)

    seconds = median_s(add_up, peers)
    message.copy_(own)
    add_up()
    return all_reduced(count, size, seconds, right=bool((message == size * (size + 1) / 2).all()))


def median_s(work: Callable[[], object], peers: dist.ProcessGroup | None) -> float:
    """Return how long something takes that all ranks do together, once before it counts and after a barrier."""
    work()
    times: list[float] = []
    while len(times) < (_REPEATS if sum(times) < _LONG_S else 1):
        dist.barrier(peers)
        began = time.perf_counter()
        work()
        # The ranks must agree on how many follow: the longest of them counts.
        taken = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=peers)
        times.append(float(taken))
    return statistics.median(times)


def hidden_share(with_s: float, without_s: float, alone_s: float) -> float:
    """Return how much of the averaging goes on while gradients are still computed.

    >>> hidden_share(1.1, 1.0, 0.2)
    0.5
    """
    return round(min(1.0, max(0.0, 1 - (with_s - without_s) / alone_s)), 12) if alone_s > 0 else 0.0
