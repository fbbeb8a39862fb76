"""Wants more memory than it may have."""

from planted.wrapping import Planted, Wrapped


class MemoryHog(Wrapped):
    """Asks for eight gigabytes at its first call."""

    def run(self, batches):
        import torch

        self.hoard = torch.ones(1 << 31)
        return super().run(batches)


BACKEND = Planted("memory_hog", MemoryHog)
