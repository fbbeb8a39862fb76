"""The data modes of run_benchmark.py, and a loader of batches for each of them."""

from layermark.seeds.cnns.modes import MODES, Mode, batches

__all__ = ["MODES", "Mode", "batches"]
