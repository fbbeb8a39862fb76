"""Uses a second thread whatever the budget says."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from planted.wrapping import Planted, Wrapped


class TwoThreads(Wrapped):
    """A thread of a pool works beside every call."""

    def __init__(self, inner):
        super().__init__(inner)
        self.pool = ThreadPoolExecutor(1)

    def run(self, batches):
        done = Event()
        beside = self.pool.submit(self.work, done)
        timeline = super().run(batches)
        done.set()
        beside.result()
        return timeline

    def work(self, done):
        import torch

        busy = torch.ones(256, 256)
        while not done.is_set():
            torch.mm(busy, busy)


BACKEND = Planted("two_threads", TwoThreads)
