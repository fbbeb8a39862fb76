"""What the teams of a session share: processes, references, ceilings, and the time that is left."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ceilings import Ceilings, Reached
from layermark.launch.oracle import Oracle
from layermark.launch.process import Crew
from layermark.options import seconds
from layermark.session.deadline import Deadline
from layermark.spec import Spec

if TYPE_CHECKING:
    from layermark.session.peers import Peers


LEAST_WAIT = "LAYERMARK_LEAST_WAIT"
_SLOW = 10.0
"""What takes so many times as long as expected has hung."""


def least_wait_s() -> float:
    """Return how long anything may take, however short it is expected to be: a minute, or what a variable says."""
    text = os.environ.get(LEAST_WAIT, "60")
    try:
        return float(seconds(text))
    except ValueError as error:
        raise UserError(f"{LEAST_WAIT}={text}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the teams of a session share."""

    crew: Crew
    oracle: Oracle
    ceilings: Ceilings
    deadline: Deadline
    timeout: float
    """How long to build, to prove, or anything else of unknown length may take."""
    least_wait_s: float = field(default_factory=least_wait_s)
    """How long anything may take that is expected to be short."""
    memory_limit: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of every rank's environment, besides those that its runtime needs."""
    peers: Peers | None = None
    """The other instances of a job that several processes run together."""
    reached: dict[tuple[object, ...], Reached] = field(default_factory=dict)
    """Readings of ceilings, by what they depend on."""
    profiles: Path | None = None
    """Where every team writes a profile after its timing, in a pass of its own; None for no profiles."""

    @classmethod
    def of(
        cls,
        crew: Crew,
        deadline: Deadline,
        timeout: float,
        memory_limit: int = 0,
        variables: Mapping[str, str] | None = None,
        peers: Peers | None = None,
        profiles: Path | None = None,
    ) -> Resources:
        """Return resources whose every wait ends with the deadline."""

        def patience() -> float:
            return deadline.timeout(timeout)

        return cls(
            crew=crew,
            oracle=Oracle(crew, patience),
            ceilings=Ceilings(crew, patience),
            deadline=deadline,
            timeout=timeout,
            memory_limit=memory_limit,
            variables=variables or {},
            peers=peers,
            profiles=profiles,
        )

    def until(self, seconds: float) -> Resources:
        """Return the same resources for what may take so long at most."""
        shorter = seconds < self.deadline.left()
        return dataclasses.replace(self, deadline=Deadline(seconds)) if shorter else self

    def wait_s(self, expected_s: float | None) -> float:
        """Return how long to wait for what should take this long; None for something of unknown length."""
        return self.timeout if expected_s is None else max(self.least_wait_s, _SLOW * expected_s)

    def wait_for_reference(self, spec: Spec, seconds: float) -> bool:
        """Wait for a reference, so long at most; return whether there is one, or another reason why there is none."""
        with self.deadline.within(seconds):
            try:
                self.oracle.answer(spec)
            except (Unsupported, UserError, WorkerFailed):
                return self.deadline.left() > 0
        return True
