"""Programs of several ranks that work on one thing together, whatever connects them.

Rank 0 leads: it has the interface of any other program. What it is told, it tells the other ranks, which follow until
they are let go. So whatever decides how often a program is called, decides for all ranks.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from layermark import environment
from layermark.backends.base import Arrays, Program, Timeline, Totals
from layermark.errors import UserError
from layermark.replicas import turns
from layermark.spec import Group, Spec
from layermark.workloads.base import Task


class Order(IntEnum):
    """What rank 0 tells the others to do."""

    RELEASE = 0
    RUN = 1
    LOAD = 2
    WEIGHTS = 3
    STATE = 4
    OUTPUTS = 5
    TOTALS = 6
    EVENTS = 7
    COMMUNICATION = 8
    MEMORY = 9
    SEEK = 10
    DIGEST = 11


class Line(ABC):
    """How ranks talk to each other besides their work. Every call is made by all of them."""

    @abstractmethod
    def numbers(self, values: Sequence[float]) -> list[float]:
        """Return the numbers of rank 0; the others give as many of their own."""

    @abstractmethod
    def object(self, value: Any) -> Any:
        """Return what rank 0 gives."""

    @abstractmethod
    def gathered(self, value: Any) -> list[Any]:
        """Return what every rank gives, in their order, on rank 0; nothing on the others."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when all ranks have come here."""


class LedProgram(Program):
    """One rank's part of a program. Every rank builds one; rank 0 is called, the others `follow`.

    Batches are counted over all replicas, which take them in turn: so is everything that one process alone would be
    told or asked.
    """

    def __init__(self, spec: Spec, task: Task, group: Group, line: Line) -> None:
        self._spec, self._task, self._group, self._line = spec, task, group, line
        self.learning_rate, self.micro_batches = spec.learning_rate, spec.update.micro_batches
        self._batches, self._position, self._following = 0, 0, True

    # The part of this rank.

    @abstractmethod
    def _run_own(self, batches: int) -> None:
        """Run the next batches of this replica."""

    @abstractmethod
    def _load_own(self, weights: Arrays, state: Arrays | None) -> None:
        """Set parameters and state, and go back to the first input."""

    @abstractmethod
    def _answer(self, order: Order) -> Any:
        """Return what this rank has to say to an order that asks for something."""

    @abstractmethod
    def _held(self, order: Order) -> Arrays:
        """Return the weights or the state that this rank has."""

    def _first_weights(self) -> Arrays:
        """Return what this rank begins with; one that has a part of the network needs no more than that."""
        return self._task.weights()

    @property
    def own_micro_batches(self) -> int:
        """Micro-batches of an update that are this replica's."""
        return self.micro_batches // self._group.replicas

    # What is called on rank 0.

    def run(self, batches: int) -> Timeline:
        """Run the next batches on all ranks."""
        if self._spec.mode == "train":
            self.check_whole(batches)
        began = self.clock()
        self._tell(Order.RUN, batches)
        self._run_turns(batches)
        return Timeline([began], [self.clock()])

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Set parameters and state everywhere: those that rank 0 has been given."""
        self._tell(Order.LOAD)
        self._load_sent(None if state is None and self._known(weights) else (dict(weights), state))

    def _known(self, weights: Arrays) -> bool:
        """Whether every rank has these by itself, as the first weights that all draw from the seed on one host.

        A file of weights may be another one on another host, and another release may draw other numbers.
        """
        if self._spec.weights or not self._group.local:
            return False
        return all(weights[name] is each for name, each in self._task.weights().items())

    def weights(self) -> Arrays:
        """The parameters as they are now."""
        return self._merged(Order.WEIGHTS)

    def state(self) -> Arrays:
        """The optimiser's state."""
        return self._merged(Order.STATE)

    def outputs(self) -> Arrays:
        """The outputs of the last batch, or the loss of the last micro-batch."""
        if not self._position:
            raise RuntimeError("no batch has run since the weights were loaded")
        return self._merged(Order.OUTPUTS, (self._position - 1) % self._group.replicas)

    def totals(self) -> Totals:
        """Batches, losses and right answers of all replicas since the last `load` or `totals`."""
        if self._spec.mode != "train":
            return super().totals()
        found = [each for part in self._asked(Order.TOTALS) for each in part]
        right = [each.right for each in found if each.right is not None]
        batches, self._batches = self._batches, 0
        return Totals(batches, sum(each.loss for each in found), sum(right) if right else None)

    def communication(self) -> Mapping[str, Any] | None:
        """Return what it takes the replicas to average their gradients; None where there is but one."""
        if self._group.replicas == 1 or self._spec.mode != "train":
            return None
        identical = self.identical()
        return {**of_all_stages(self._asked(Order.COMMUNICATION)[: self._group.stages]), "identical": identical}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Have every rank go on reading its part of the pictures from a position on."""
        self._tell(Order.SEEK)
        self._seek_own(self._line.object(dict(position)))

    def _seek_own(self, position: Mapping[str, Any]) -> None:
        from layermark.data.feed import Pictures
        from layermark.data.order import Position

        if isinstance(self._task.stream, Pictures):
            self._task.stream.seek(Position(**position))

    def identical(self) -> bool:
        """Whether weights, statistics and state are the same to the bit in all replicas."""
        digests = self._asked(Order.DIGEST)
        parts = self._group.stages
        return all(digest == digests[rank % parts] for rank, digest in enumerate(digests))

    def _digest(self) -> str:
        found = hashlib.sha256()
        for order in (Order.WEIGHTS, Order.STATE):
            for name, each in sorted(self._held(order).items()):
                found.update(f"{order}/{name}".encode())
                found.update(each.tobytes())
        return found.hexdigest()

    def peak_rss_bytes(self) -> int:
        """The most memory that all ranks together have had."""
        return sum(self._asked(Order.MEMORY))

    def close(self) -> None:
        """Let the other ranks go."""
        if self._following and self._group.rank == 0:
            self._tell(Order.RELEASE)
        self._following = False

    # What the other ranks do meanwhile.

    def follow(self) -> None:
        """Do what rank 0 says, until it lets go."""
        while True:
            order, batches = self._told()
            if order == Order.RELEASE:
                self._following = False
                return
            if order == Order.RUN:
                self._run_turns(batches)
            elif order == Order.LOAD:
                self._load_sent(None)
            elif order == Order.SEEK:
                self._seek_own(self._line.object(None))
            else:
                self._line.gathered(self._said(order))

    # How ranks talk.

    def _tell(self, order: Order, batches: int = 0) -> None:
        self._line.numbers([float(order), float(batches), self.learning_rate, float(self.micro_batches)])

    def _told(self) -> tuple[Order, int]:
        order, batches, self.learning_rate, micro_batches = self._line.numbers([0.0] * 4)
        self.micro_batches = int(micro_batches)
        return Order(int(order)), int(batches)

    def _asked(self, order: Order) -> list[Any]:
        self._tell(order)
        return self._line.gathered(self._said(order))

    def _said(self, order: Order) -> Any:
        if order == Order.MEMORY:
            return environment.peak_rss_bytes()
        return self._digest() if order == Order.DIGEST else self._answer(order)

    def _merged(self, order: Order, replica: int = 0) -> Arrays:
        """What the ranks of one replica have together."""
        first = replica * self._group.stages
        parts = self._asked(order)[first : first + self._group.stages]
        return {name: each for part in parts for name, each in part.items()}

    def _load_sent(self, given: tuple[Arrays, Arrays | None] | None) -> None:
        sent = self._line.object(given)
        weights, state = sent or (self._first_weights(), None)
        self._load_own(weights, state)
        self._batches = self._position = 0

    def _run_turns(self, batches: int) -> None:
        """Run what is this replica's; returns when all ranks are done."""
        own = turns(self._position, batches, self._group.replicas, self._group.replica)
        self._batches += batches
        self._position += batches
        self._run_own(own)
        self._line.barrier()


def of_all_stages(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what averaging takes a whole replica, from what each of its ranks has found out, all at the same time.

    Bytes add up, and the slowest rank counts. Of a message size that several have sent it is the slowest, too, and its
    sums are right if all are.
    """
    slowest = max(found, key=lambda each: float(each["average_s"]))
    if len(found) == 1:
        return dict(slowest)
    sent: dict[int, dict[str, Any]] = {}
    for reading in (reading for each in found for reading in each["all_reduce"]):
        other = sent.get(reading["bytes"], reading)
        slower = max(other, reading, key=lambda each: float(each["seconds"]))
        sent[reading["bytes"]] = {**slower, "right": other["right"] and reading["right"]}
    return {
        **slowest,
        "gradient_bytes": sum(each["gradient_bytes"] for each in found),
        "all_reduce": [sent[size] for size in sorted(sent)],
        "stages": [{name: each[name] for name in ("gradient_bytes", "average_s")} for each in found],
    }


def check_shares(spec: Spec, group: Group) -> None:
    """Raise `UserError` unless the replicas can share the micro-batches of an update."""
    if spec.mode == "train" and spec.update.micro_batches % group.replicas:
        raise UserError(
            f"{spec.update.micro_batches} micro-batches in an update cannot be shared by {group.replicas} replicas; "
            f"set --accumulation to a multiple of {group.replicas}"
        )
