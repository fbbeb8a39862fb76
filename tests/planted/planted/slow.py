"""Takes fifty milliseconds longer for every batch, and as long again where a batch is copied."""

from layermark.backends.base import Timeline
from planted.dozing import doze
from planted.wrapping import Planted, Wrapped


class Slow(Wrapped):
    """Slow in the network, and slow in copying."""

    def run(self, batches):
        handed_over, done = [], []
        for _ in range(batches):
            handed_over.append(self.clock())
            doze("network")
            if self.inner._spec.data != "synthetic":
                doze("copy")
            super().run(1)
            done.append(self.clock())
        return Timeline(handed_over, done)


BACKEND = Planted("slow", Slow)
