"""Raises in the middle of the measurement."""

from planted.wrapping import Planted, Wrapped


class Raises(Wrapped):
    """Works for a while."""

    def run(self, batches):
        if self.calls > 200:
            raise RuntimeError("planted failure")
        return super().run(batches)


BACKEND = Planted("raises", Raises)
