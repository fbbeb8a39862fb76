"""The references of a team: computed by the oracle, and waited for in the team's phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from layermark.session.resources import Resources
from layermark.spec import Spec

RANDOM = "random"
"""Values that prove a program; others may hide what it does wrong."""


class TeamReference:
    """What is asked of the oracle. A failure within `guarded`, a phase of the team, ends the team.

    A spec whose values are not random has a second one: it is proven on random values, too.
    """

    def __init__(
        self, spec: Spec, resources: Resources, guarded: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._specs: Sequence[Spec] = [spec] if spec.values == RANDOM else [spec, spec.replace(values=RANDOM)]
        self._resources, self._guarded = resources, guarded

    @property
    def known(self) -> bool:
        """Whether all of it is there, so that nobody has to compute it."""
        return all(map(self._resources.oracle.known, self._specs))

    def begin(self) -> None:
        """Start to compute the first that is not there, without waiting for it."""
        with self._guarded("start"):
            for spec in self._specs:
                self._resources.oracle.begin(spec)

    def settle(self) -> None:
        """Wait for what was begun."""
        with self._guarded("reference"):
            self._resources.oracle.settle()

    def within(self, seconds: float) -> bool:
        """Wait for all of it, so long at most; return whether it is there, or another reason why it is not."""
        found, now = [False], self._resources.deadline.now
        until = now() + seconds
        with self._guarded("reference"):
            found = [self._resources.wait_for_reference(each, max(0.0, until - now())) for each in self._specs]
        return all(found)

    def seconds(self, within: float) -> float:
        """Return about how long it takes to compute; infinite if to find that out takes longer than this."""
        found = [0.0]
        with self._guarded("reference"):
            found = [self._resources.oracle.seconds(each, within) for each in self._specs]
        return sum(found)
