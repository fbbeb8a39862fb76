"""Which of several ranks that wait for each other is the one that hangs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layermark.devices import cpu

_LOOK_S = 0.3
_BUSY = 0.2
"""A process that uses more of a CPU than this is at work."""
STOPPED = {"T": "stopped", "t": "stopped by a debugger", "Z": "dead", "D": "waiting for the disk or the kernel"}
"""States of a process that does not go on."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Ranks that a look at their processes tells something about."""

    stopped: Mapping[int, str] = field(default_factory=dict)
    """The state of those that do not go on, by rank."""
    busy: Sequence[int] = ()
    """Those that compute."""
    count: int = 0
    """How many were looked at."""

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary that `from_json` reads back."""
        stopped = {str(rank): state for rank, state in self.stopped.items()}
        return {"stopped": stopped, "busy": list(self.busy), "count": self.count}

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> Seen:
        """Return the record that `to_json` wrote."""
        return cls(
            stopped={int(rank): state for rank, state in doc["stopped"].items()}, busy=doc["busy"], count=doc["count"]
        )


def look(pids: Sequence[int], first: int = 0) -> Seen:
    """Look at processes for a moment; they are the ranks from number `first` on."""
    ranks = list(enumerate(pids, first))
    before = {rank: (_state(pid), cpu.process_time_ns(pid)) for rank, pid in ranks}
    time.sleep(_LOOK_S)
    after = {rank: (_state(pid), cpu.process_time_ns(pid)) for rank, pid in ranks}
    return Seen(
        # A look at a disk takes a moment: only a state that lasts is named.
        stopped={rank: state for rank, (state, _) in after.items() if state in STOPPED and state == before[rank][0]},
        busy=[rank for rank, (_, used) in after.items() if used - before[rank][1] > _BUSY * _LOOK_S * 1e9],
        count=len(ranks),
    )


def who_hangs(found: Sequence[Seen]) -> str:
    """Return in words which rank keeps the others waiting; nothing where that cannot be told.

    >>> who_hangs([Seen(count=2, busy=[0]), Seen(count=2, stopped={3: "T"})])
    'rank 3 hangs: it is stopped (state T)'
    >>> who_hangs([Seen(count=2, busy=[1])])
    'rank 1 hangs: it computes, and the others wait'
    >>> who_hangs([Seen(count=1, busy=[0])]), who_hangs([Seen(count=2)])
    ('', '')
    """
    stopped = {rank: state for each in found for rank, state in each.stopped.items()}
    busy = [rank for each in found for rank in each.busy]
    if stopped:
        return "; ".join(f"rank {rank} hangs: it is {STOPPED[each]} (state {each})" for rank, each in stopped.items())
    if len(busy) == 1 < sum(each.count for each in found):
        return f"rank {busy[0]} hangs: it computes, and the others wait"
    return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"
