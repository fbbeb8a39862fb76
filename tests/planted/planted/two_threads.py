"""Uses a second thread whatever the budget says."""

from threading import Thread

from planted.wrapping import Planted, Wrapped


class TwoThreads(Wrapped):
    """A second thread works beside every call."""

    def run(self, batches):
        import torch

        busy = torch.ones(256, 256)
        beside = Thread(target=lambda: [torch.mm(busy, busy) for _ in range(batches * 4)])
        beside.start()
        timeline = super().run(batches)
        beside.join()
        return timeline


BACKEND = Planted("two_threads", TwoThreads)
