"""A workload that is no graph as the measuring loop sees it: every batch is one call of its implementation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from layermark.backends.base import Arrays, Profile, Program, Timeline, one_by_one
from layermark.workloads.programs.base import Implementation

Profiler = Callable[[Callable[[], object], Path], Profile]


class CallProgram(Program):
    """Counts the calls; the number of a call chooses its random numbers, so no two calls are the same."""

    def __init__(self, implementation: Implementation, profiled: Profiler | None = None) -> None:
        self._implementation, self._profiled = implementation, profiled
        self._calls = self._from_the_first()
        self._last: Any = None

    @property
    def settings(self) -> Mapping[str, str]:
        """What was built."""
        return self._implementation.settings

    @property
    def seamless(self) -> bool:
        """Yes: a call returns when its work is done."""
        return True

    def run(self, batches: int) -> Timeline:
        """Make the next calls."""
        self._last = None
        timeline, self._last = one_by_one(self._calls, batches, self.clock)
        return timeline

    def outputs(self) -> Arrays:
        """The outputs of the last call."""
        if self._last is None:
            raise RuntimeError("no call was made since the beginning")
        return self._implementation.outputs(self._last)

    def load(self, weights: Arrays, state: Arrays | None = None) -> None:
        """Begin again with the first call; there are no parameters."""
        self._calls, self._last = self._from_the_first(), None

    def weights(self) -> Arrays:
        """None."""
        return {}

    def profile(self, folder: Path, batches: int) -> Profile:
        """The operators of some calls, by the runtime's own profiler."""
        if self._profiled is None:
            return super().profile(folder, batches)
        return self._profiled(lambda: self.run(batches), folder)

    def _from_the_first(self) -> Iterator[Callable[[], Any]]:
        call, numbers = self._implementation.call, itertools.count()
        return itertools.repeat(lambda: call(next(numbers)))
