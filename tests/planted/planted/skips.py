"""Works through the ring once, then answers from memory."""

import time

from layermark.backends.base import Timeline
from planted.wrapping import Planted, Wrapped


class Skips(Wrapped):
    """Keeps its first answers, so that every check of the outputs passes."""

    def __init__(self, inner):
        super().__init__(inner)
        self.answers = []
        self.position = 0

    def run(self, batches):
        for _ in range(batches):
            if len(self.answers) < 4:
                super().run(1)
                self.answers.append(self.inner.outputs())
            self.position += 1
        now = time.perf_counter_ns()
        return Timeline([now], [now])

    def outputs(self):
        return self.answers[(self.position - 1) % 4]

    def load(self, weights):
        self.position = 0


BACKEND = Planted("skips", Skips)
