"""The reference of a team's spec: computed by the oracle, and waited for in the team's phases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from layermark.session.resources import Resources
from layermark.spec import Spec


class TeamReference:
    """What is asked of the oracle. A failure within `guarded`, a phase of the team, ends the team."""

    def __init__(
        self, spec: Spec, resources: Resources, guarded: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._spec, self._resources, self._guarded = spec, resources, guarded

    @property
    def known(self) -> bool:
        """Whether it is there, so that nobody has to compute it."""
        return self._resources.oracle.known(self._spec)

    def begin(self) -> None:
        """Start to compute it without waiting for it."""
        with self._guarded("start"):
            self._resources.oracle.begin(self._spec)

    def settle(self) -> None:
        """Wait for what was begun."""
        with self._guarded("reference"):
            self._resources.oracle.settle()

    def within(self, seconds: float) -> bool:
        """Wait for it, so long at most; return whether it is there, or another reason why it is not."""
        found = [False]
        with self._guarded("reference"):
            found.append(self._resources.has_reference(self._spec, seconds))
        return found[-1]

    def seconds(self, within: float) -> float:
        """Return about how long it takes to compute; infinite if to find that out takes longer than this."""
        found = [0.0]
        with self._guarded("reference"):
            found.append(self._resources.oracle.seconds(self._spec, within))
        return found[-1]
