"""Never comes back."""

import threading

from planted.wrapping import Planted, Wrapped


class Hangs(Wrapped):
    """Waits for something that does not come."""

    def run(self, batches):
        if self.calls > 200:
            threading.Event().wait()
        return super().run(batches)


BACKEND = Planted("hangs", Hangs)
