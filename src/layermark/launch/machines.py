"""Machines that work is given to: each held whole, with one piece of work at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Work = Callable[[str], str]
"""What a machine is told to do: a function of an importable module, from JSON to JSON."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine; `name` tells it from every other one, `id` from those that had its name before."""

    id: str
    name: str
    cpus: float = 1
    gpus: float = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a piece of work. Without a text the machine is lost, for the reason that `failure` gives."""

    machine: Machine
    text: str | None = None
    failure: str = ""


class Machines(ABC):
    """The machines of a cluster."""

    @abstractmethod
    def present(self) -> Sequence[Machine]:
        """Return the machines that are there now, held or not."""

    @abstractmethod
    def hold(self, machine: Machine) -> None:
        """Ask for a whole machine and do not wait: what is begun on it starts once nobody else is using it."""

    @abstractmethod
    def begin(self, machine: Machine, work: Work, text: str) -> None:
        """Give work to a machine that was asked for, and do not wait."""

    @abstractmethod
    def wait(self, seconds: float | None) -> Sequence[Answer]:
        """Sleep until work has ended, or a machine is lost, or so many seconds have passed (None: no limit).

        A lost machine is no longer held.
        """

    @abstractmethod
    def release(self, machine: Machine) -> None:
        """Let a machine go, and end what it is doing."""
