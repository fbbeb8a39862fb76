"""PyTorch with a known slowdown: every call is followed by real work that takes 2 % of the time of its batches.

How much work that is, `python slowed.py WORKLOAD [options]` finds out and prints; workers read it from the environment.
"""

import os
import sys
import time

import numpy as np

from layermark.backends.base import Backend, Program
from layermark.backends.torch import BACKEND as TORCH

EXTRA = 0.02
VARIABLE = "SLOWED_NUMBERS"
"""How many numbers every call works on besides."""


class Slowed(Program):
    """Runs what it is asked for, then takes tangents of numbers: few enough to leave the caches as they were."""

    def __init__(self, inner, count):
        self.inner = inner
        self.numbers = np.linspace(0, 1, count)
        self.results = np.empty_like(self.numbers)

    def running(self):
        """That of the program inside."""
        return self.inner.running()

    @property
    def settings(self):
        """Those of the program inside."""
        return self.inner.settings

    def run(self, batches):
        """The batches asked for, followed by the extra work."""
        self.inner.learning_rate = self.learning_rate
        timeline = self.inner.run(batches)
        np.tan(self.numbers, out=self.results)
        return timeline

    def outputs(self):
        """Those of the last batch."""
        return self.inner.outputs()

    def load(self, weights):
        """Those of the program inside."""
        self.inner.load(weights)

    def weights(self):
        """Those of the program inside."""
        return self.inner.weights()


class SlowedBackend(Backend):
    """PyTorch in everything but the extra work."""

    name = "slowed"
    package = "torch"
    by_default = False

    def environment(self, spec):
        """PyTorch's."""
        return TORCH.environment(spec)

    def load(self):
        """PyTorch's."""
        return TORCH.load()

    def prepare(self, spec, task):
        """PyTorch's program with extra work."""
        return Slowed(TORCH.prepare(spec, task), int(os.environ[VARIABLE]))


BACKEND = SlowedBackend()


def slowdown(program, slowed, batches, pairs=400):
    """How much longer the slowed program takes when nothing disturbs either: tenth percentiles of alternating calls."""
    times = {program: [], slowed: []}
    for _ in range(pairs):
        for each, taken in times.items():
            began = time.perf_counter_ns()
            each.run(batches)
            taken.append(time.perf_counter_ns() - began)
    plain, more = (np.percentile(taken, 10) for taken in times.values())
    return more / plain - 1


def fitted(program, batches, steps=8):
    """How many numbers take two percent of a call."""
    count, seen = 1 << 10, []
    with program.running():
        program.run(1000)
        for _ in range(steps):
            seen.append((count, slowdown(program, Slowed(program, count), batches)))
            count = int(np.clip(count * EXTRA / max(seen[-1][1], 1e-4), count / 4, count * 4))
    # Near the goal the work is proportional to the numbers; the last steps are all near it.
    return int(np.median([numbers * EXTRA / share for numbers, share in seen[steps // 2 :]]))


def main():
    """Print the number for the workload that is named like in `layermark compare`."""
    from layermark.cli.compare import setting
    from layermark.workloads.base import task

    spec = setting(" ".join(sys.argv[1:]), {"backend": "torch", "execution": "eager"})
    TORCH.load()
    print(fitted(TORCH.prepare(spec, task(spec)), spec.batches_per_step))


if __name__ == "__main__":
    main()
