"""Hands the work to a thread and returns at once."""

import time
from concurrent.futures import ThreadPoolExecutor

from layermark.backends.base import Timeline
from planted.wrapping import Planted, Wrapped


class ReturnsEarly(Wrapped):
    """Waits for its work only when somebody asks for results."""

    def __init__(self, inner):
        super().__init__(inner)
        self.pool = ThreadPoolExecutor(1)
        self.last = self.pool.submit(int)

    def run(self, batches):
        self.last = self.pool.submit(super().run, batches)
        now = time.perf_counter_ns()
        return Timeline([now], [now])

    def outputs(self):
        self.last.result()
        return super().outputs()

    def load(self, weights):
        self.last.result()
        super().load(weights)


BACKEND = Planted("returns_early", ReturnsEarly)
