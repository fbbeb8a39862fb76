"""Dies of a signal in the middle of the measurement."""

import os
import signal

from planted.wrapping import Planted, Wrapped


class Killed(Wrapped):
    """Writes a line, then is gone."""

    def run(self, batches):
        if self.calls > 200:
            print("planted: about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(batches)


BACKEND = Planted("killed", Killed)
