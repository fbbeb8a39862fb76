"""A loss scale that moves: halved after a gradient that is not finite, doubled after many that are."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layermark.backends.base import Arrays
from layermark.backends.torch.optimisers import Tensors
from layermark.training.regularisation import DynamicScale
from layermark.training.update import SCALE, STREAK


class MovingScale:
    """The scale of the next update, and how many in a row had finite gradients. `seed` always holds the scale."""

    def __init__(self, rule: DynamicScale, seed: Tensor) -> None:
        self._rule, self._seed = rule, seed
        self.load(None)

    def load(self, state: Arrays | None) -> None:
        """Set scale and streak, or begin again."""
        self.value = self._rule.initial if state is None else float(state[SCALE])
        self._streak = 0 if state is None else int(state[STREAK])
        self._seed.fill_(self.value)

    def state(self) -> Arrays:
        """Scale and streak, by the names that a checkpoint has for them."""
        return {SCALE: np.array(self.value), STREAK: np.array(self._streak)}

    def accepts(self, gradients: Tensors) -> bool:
        """Move on by one update; return whether all of its gradients are finite. Waits for the device."""
        largest = torch.stack(list(torch._foreach_norm(gradients, math.inf)))
        finite = bool(torch.isfinite(largest).all())
        self.value, self._streak = self._rule.after(self.value, self._streak, finite=finite)
        self._seed.fill_(self.value)
        return finite
