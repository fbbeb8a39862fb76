"""The null backend on a machine of its own speed: time passes as much slower as the machine's environment says."""

import os

from layermark.backends.null import NullBackend, NullProgram

SLOWER = "LAYERMARK_TEST_SLOWER"


class Uneven(NullProgram):
    """Every batch takes longer, by a share, and a little more or less each time a process starts."""

    def __init__(self, spec, task):
        super().__init__(spec, task)
        restless = 1 + 0.004 * (os.getpid() % 7 - 3) / 3
        self._batch_ns = int(self._batch_ns * restless * (1 + float(os.environ.get(SLOWER, "0"))))


class UnevenBackend(NullBackend):
    """Plugged in under a name of its own."""

    name = "uneven"

    def prepare(self, spec, task):
        super().prepare(spec, task)
        return Uneven(spec, task)


BACKEND = UnevenBackend()
