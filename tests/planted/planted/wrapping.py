"""What every planted backend shares: it hands everything on to the PyTorch backend."""

from layermark.backends.base import Backend, Program
from layermark.backends.torch import BACKEND as TORCH


class Wrapped(Program):
    """A program that does what another does."""

    def __init__(self, inner):
        self.inner = inner
        self.calls = 0

    @property
    def settings(self):
        return self.inner.settings

    def run(self, batches):
        self.inner.learning_rate = self.learning_rate
        self.calls += batches
        return self.inner.run(batches)

    def outputs(self):
        return self.inner.outputs()

    def load(self, weights):
        self.inner.load(weights)

    def weights(self):
        return self.inner.weights()


class Planted(Backend):
    """A backend named after its fault; `program` is the wrapper that has it."""

    package = "torch"
    by_default = False

    def __init__(self, name, program, change=None):
        self.name = name
        self._program = program
        self._change = change or {}

    def environment(self, spec):
        return TORCH.environment(spec)

    def load(self):
        return TORCH.load()

    def prepare(self, spec, task):
        return self._program(TORCH.prepare(spec.replace(execution="eager", **self._change), task))
