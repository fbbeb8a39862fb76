"""PyTorch with a known slowdown: every call is followed by real work that takes 2 % of the time of its batches."""

import time

import numpy as np

from layermark.backends.base import Backend, Program
from layermark.backends.torch import BACKEND as TORCH

EXTRA = 0.02


def low_time(call, repeats):
    """What a call takes when nothing disturbs it: the tenth percentile, in nanoseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    return float(np.percentile(times, 10))


class Slowed(Program):
    """Runs what it is asked for, and sums numbers until that takes two percent longer."""

    def __init__(self, inner):
        self.inner = inner
        self.numbers = np.ones(1 << 22, "float32")
        self.count = 0

    def fit(self):
        """Find how many numbers take two percent of a batch to sum."""
        self.inner.run(1000)
        wanted = EXTRA * low_time(lambda: self.inner.run(1), 400)
        low, high = 1, len(self.numbers) // 32
        while high - low > 64:
            self.count = (low + high) // 2
            if low_time(lambda: np.add.reduce(self.numbers[: self.count]), 400) < wanted:
                low = self.count
            else:
                high = self.count

    @property
    def settings(self):
        """Those of the program inside."""
        return self.inner.settings

    def run(self, batches):
        """The batches asked for, followed by the extra work of all of them."""
        self.inner.learning_rate = self.learning_rate
        timeline = self.inner.run(batches)
        np.add.reduce(self.numbers[: self.count * batches])
        return timeline

    def outputs(self):
        """Those of the last batch."""
        return self.inner.outputs()

    def load(self, weights):
        """Those of the program inside; the first time is when nobody else is at work, so the extra is fitted here."""
        if not self.count:
            self.fit()
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
        return Slowed(TORCH.prepare(spec, task))


BACKEND = SlowedBackend()
