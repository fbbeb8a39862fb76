"""A workload that is no graph as the measuring loop sees it: every batch is one call of its lowering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layermark.backends.base import Arrays, Program, Timeline
from layermark.workloads.programs.base import Lowering


class CallProgram(Program):
    """Counts the calls; the number of a call chooses its random stream, so no two calls are the same."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._number = 0
        self._last: Any = None

    @property
    def settings(self) -> Mapping[str, str]:
        """What was built."""
        return self._lowering.settings

    def run(self, batches: int) -> Timeline:
        """Make the next calls and wait for the last; a runtime that runs on its own gives one entry for all."""
        stamps = [self.clock()]
        for number in range(self._number, self._number + batches):
            self._last = self._lowering.call(number)
            stamps.append(self.clock())
        self._number += batches
        if self._lowering.asynchronous:
            self._lowering.finish(self._last)
            return Timeline(stamps[:1], [self.clock()])
        return Timeline(stamps[:-1], stamps[1:])

    def outputs(self) -> Arrays:
        """The outputs of the last call."""
        if self._last is None:
            raise RuntimeError("no call was made since the beginning")
        return self._lowering.outputs(self._last)

    def load(self, weights: Arrays) -> None:
        """Begin again with the first call; there are no parameters."""
        self._number, self._last = 0, None

    def weights(self) -> Arrays:
        """None."""
        return {}
