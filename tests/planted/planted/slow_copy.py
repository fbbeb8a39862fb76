"""Takes ten milliseconds to copy a batch from the host."""

import time

from planted.wrapping import Planted, Wrapped

SECONDS = 0.01


class SlowCopy(Wrapped):
    """Slow wherever something is copied."""

    def run(self, batches):
        if self.inner._spec.data != "synthetic":
            time.sleep(batches * SECONDS)
        return super().run(batches)


BACKEND = Planted("slow_copy", SlowCopy)
