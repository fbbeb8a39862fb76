"""Readings of the ceiling of one team: what the machine can do at best with the threads of all its ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from layermark import stats
from layermark.devices import cpu
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.ceilings import Reached
from layermark.launch.rendezvous import PeerLost
from layermark.outcome import Block, Ceiling, Diagnostic
from layermark.session.budget import READINGS
from layermark.session.resources import Resources
from layermark.spec import Spec, types_of
from layermark.workloads.base import Task

if TYPE_CHECKING:
    from layermark.session.peers import Peers
    from layermark.session.team import Team

PROBE_SECONDS = 0.08
_READING_EXPECTED_S = 10 * PROBE_SECONDS
"""How long a reading takes of probes that are running, with the wait until others rest."""
_START_SHARE = 0.35
"""Of the budget that is left, for starting the probes."""
_PROBE_START_S = 4.0
"""A probe that has to be started first takes about this long; with less time left nobody begins."""
_MOST_READINGS = 40
_STALE_S = 120.0
"""A reading that is older does not stand for the machine of now: neighbours come and go."""
_FAR = 4.0
_FEW_READINGS = 8
_READING_S = 1.0
_READING_SHARE = 0.5
"""Readings may take this share of the timed work."""
_LARGEST_SET = 64 << 20
_TYPE_BYTES = {"64": 8, "32": 4, "16": 2, "bf16": 2, "int8": 1}


class CeilingReadings:
    """Reads and keeps ceilings for ranks that run the same spec; `at_once` of them have threads of their own."""

    def __init__(
        self,
        resources: Resources,
        spec: Spec,
        task: Task,
        *,
        copies: int,
        at_once: int,
        peers: Peers | None = None,
    ) -> None:
        self.warnings: list[Diagnostic] = []
        self.taken_s = 0.0
        """How long the readings took."""
        self._resources, self._spec, self._at_once, self._peers = resources, spec, at_once, peers
        compute, weight = types_of(spec.precision)
        moved = task.compulsory_bytes(spec.mode, _TYPE_BYTES[compute], _TYPE_BYTES[weight])
        # Ranks that work together share one batch, and there may be many of them.
        sharers = spec.plan.instances * at_once if spec.connected else 1
        self._working_set = min(moved, largest_working_set()) // sharers
        self._flops, self._bytes = copies * task.flops(spec.mode), copies * moved
        self._available = self._trusted = True

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What the ceiling depends on: teams with the same key share their readings."""
        spec = self._spec
        return (self._probes, spec.threads, spec.precision, spec.subnormals, self._working_set, self._at_once)

    @cached_property
    def _probes(self) -> str:
        try:
            return ", ".join(self._resources.ceilings.probes(self._spec))
        except Unsupported:
            return ""

    @property
    def _reached(self) -> Reached:
        return self._resources.reached.setdefault(self.key, Reached())

    @property
    def held_bytes(self) -> int:
        """Memory of the probes of the session that are running."""
        return self._resources.ceilings.held_bytes()

    @property
    def count(self) -> int:
        """How many readings there are, those of earlier groups included."""
        return len(self._reached.flops_per_s)

    @property
    def stale(self) -> bool:
        """Whether the last reading is so old that the machine may be another by now, or there is none."""
        return not self.count or time.monotonic() - self._reached.last_s > _STALE_S

    def start_probes(self) -> None:
        """Start the probes without waiting for them, unless too little time is left to make use of them."""
        if self._resources.deadline.left() >= _PROBE_START_S:
            self._resources.ceilings.begin(self._spec, self._at_once)

    def await_probes(self) -> bool:
        """Wait until the probes have started, so that they disturb nobody later; return whether they did in time.

        With a budget they have a part of it: a figure without a ceiling beats none. Those that are late are ended.
        """
        began, deadline = time.monotonic(), self._resources.deadline
        with deadline.within(_START_SHARE * deadline.left()):
            self._resources.ceilings.settle()
            in_time = deadline.left() > 0
        self.taken_s += time.monotonic() - began
        return in_time

    def give_up(self) -> None:
        """Read no more; without any reading the result says why it has no ceiling."""
        self._available = False
        if not self.count:
            self.warnings.append(Diagnostic("no_ceiling", "no ceiling: the budget left no time to start the probes"))

    def read(self) -> bool:
        """Read once more; returns whether there is a new reading. Raises `PeerLost` where another instance is gone."""
        needed_s, share = (_READING_S, 1.0) if self.count else (_PROBE_START_S, _START_SHARE)
        deadline = self._resources.deadline
        if not self._available or deadline.left() < needed_s:
            return False
        began = time.monotonic()
        try:
            with deadline.within(share * deadline.left()):
                found = self._reading()
        except PeerLost:  # more than a ceiling is missing then: the job is over
            raise
        except (Unsupported, WorkerFailed) as failure:
            self._available = False
            self.warnings.append(Diagnostic("no_ceiling", f"no ceiling: {failure}"))
            return False
        finally:
            self.taken_s += time.monotonic() - began
        self._reached.flops_per_s.append(found["flops_per_s"])
        self._reached.bytes_per_s.append(found["bytes_per_s"])
        self._reached.last_s = time.monotonic()
        return True

    def _reading(self) -> dict[str, float]:
        """Read here and in every other instance at the same time; what they reach adds up."""
        if self._peers is None:
            return self._own_reading()
        given = {"working_set": self._working_set, "seconds": PROBE_SECONDS, "copies": self._at_once}
        # The first may have to wait for probes to start. Later ones are short: who does not answer soon is stopped.
        expected_s = _READING_EXPECTED_S if self.count else None
        timeout = self._resources.deadline.timeout(self._resources.wait_s(expected_s))
        mine, others = self._peers.ask("ceiling", self._reading_here, timeout, spec=self._spec.to_json(), **given)
        return {name: value + sum(each[name] for each in others) for name, value in mine.items()}

    def _reading_here(self) -> dict[str, float]:
        try:
            return self._own_reading()
        except WorkerFailed as failure:  # no reason to end the other instances: there is just no ceiling
            raise Unsupported(failure.reason) from None

    def _own_reading(self) -> dict[str, float]:
        return self._resources.ceilings.reading(self._spec, self._working_set, PROBE_SECONDS, self._at_once)

    def confirm(self, blocks: Sequence[Block]) -> None:
        """Read until a rate above the ceiling can be called impossible; if that cannot be done, there is no ceiling."""
        while self._may_be_impossible(blocks) and self._resources.deadline.left() >= _PROBE_START_S and self.read():
            pass  # what is left of a budget after that belongs to the second proof
        if self._may_be_impossible(blocks):
            self._trusted = False
            text = "no ceiling: it could not be read often enough to be trusted"
            self.warnings.append(Diagnostic("no_ceiling", text))

    def _may_be_impossible(self, blocks: Sequence[Block]) -> bool:
        rate, ceiling = stats.throughput(blocks, 1), self.record()
        if not rate or not ceiling:
            return False
        return needs_more_readings(len(self._reached.flops_per_s), stats.least_share(rate, ceiling))

    def record(self) -> Ceiling | None:
        """Return the readings, with the work of one batch of every rank; None without readings."""
        if not self._reached.flops_per_s or not self._trusted:
            return None
        return Ceiling(
            flops_per_s=tuple(self._reached.flops_per_s),
            bytes_per_s=tuple(self._reached.bytes_per_s),
            flops=self._flops,
            bytes=self._bytes,
            probe=f"{self._probes} {self._spec.precision}",
        )


def read_ceilings(teams: Sequence[Team]) -> None:
    """Read the ceilings that are due after a round of blocks: one reading serves all teams that share it.

    Those of earlier groups count. Where the last is too old, or there is none, one is due in any case; others follow
    up to a number, while they take no more than a share of the timed work.
    """
    sharers: dict[tuple[object, ...], list[Team]] = {}
    for team in teams:
        sharers.setdefault(team.ceiling.key, []).append(team)
    for members in sharers.values():
        if _due(members):
            # Who cannot read says so in its own result; then the next one tries.
            any(team.ceiling.read() for team in members)


def _due(members: Sequence[Team]) -> bool:
    ceiling, taken_s = members[0].ceiling, sum(team.ceiling.taken_s for team in members)
    quick = taken_s <= _READING_SHARE * sum(team.timed_s for team in members)
    return ceiling.stale or (ceiling.count < READINGS and quick)


def largest_working_set() -> int:
    """Return what a probe moves at most: far beyond every cache, memory is as fast as it is, and probes keep arrays."""
    return max(_LARGEST_SET, 4 * cpu.last_level_cache())


def needs_more_readings(readings: int, share: float) -> bool:
    """Whether the ceiling should be read again before a rate at this share of it is called impossible.

    On a busy machine a reading can be too low, and many can; but no neighbour takes three quarters of every one.
    """
    return share > 1 and readings < (_FEW_READINGS if share > _FAR else _MOST_READINGS)
