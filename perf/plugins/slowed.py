"""PyTorch with a known slowdown: of every fifty batches one is run twice, which is 2 % more of the very same work."""

from layermark.backends.base import Backend, Program
from layermark.backends.torch import BACKEND as TORCH

EVERY = 50


class Slowed(Program):
    """Runs what it is asked for, and one batch more for every fifty."""

    def __init__(self, inner):
        self.inner = inner

    @property
    def settings(self):
        """Those of the program inside."""
        return self.inner.settings

    def running(self):
        """That of the program inside."""
        return self.inner.running()

    def run(self, batches):
        """The batches asked for, and the extra ones, which nobody is told of."""
        self.inner.learning_rate = self.learning_rate
        timeline = self.inner.run(batches)
        if batches >= EVERY:
            self.inner.run(batches // EVERY)
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
        return Slowed(TORCH.prepare(spec, task))


BACKEND = SlowedBackend()
