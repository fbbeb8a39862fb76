"""PyTorch with a known slowdown: every fiftieth batch is run twice, so the work inside the program grows by 2 %."""

from layermark.backends.base import Backend, Program
from layermark.backends.torch import BACKEND as TORCH

EXTRA = 0.02


class Slowed(Program):
    """Runs what it is asked for, and two percent more."""

    def __init__(self, inner):
        self.inner, self.debt = inner, 0.0

    @property
    def settings(self):
        """Those of the program inside."""
        return self.inner.settings

    def run(self, batches):
        """The batches asked for, and those owed by now."""
        self.debt += batches * EXTRA
        extra = int(self.debt)
        self.debt -= extra
        self.inner.learning_rate = self.learning_rate
        return self.inner.run(batches + extra)

    def outputs(self):
        """Those of the last batch."""
        return self.inner.outputs()

    def load(self, weights):
        """Start again, owing nothing."""
        self.debt = 0.0
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
