"""Running statistics of batch norms that move once an update, however many micro-batches it has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class GatheredStatistics:
    """Every micro-batch moves the statistics from where the update began; their mean is what the update leaves.

    Without statistics to gather, nothing here does anything.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._before, self._seen = ([torch.zeros_like(each) for each in tensors] for _ in range(2))

    def gather(self, share: Tensor | float, *, backward_follows: bool = False) -> None:
        """Take what one micro-batch has made of them for a share, and set them back for the next.

        Autograd keeps them for a backward pass that does not read them, and would call the change an error: where that
        pass follows, it is not told.
        """
        if self._tensors:
            torch._foreach_add_(self._seen, torch._foreach_mul(self._tensors, share))
            targets = [each.data for each in self._tensors] if backward_follows else self._tensors
            torch._foreach_copy_(targets, self._before)

    def settle(self) -> None:
        """Move them, after the last micro-batch."""
        if self._tensors:
            torch._foreach_copy_(self._tensors, self._seen)

    def remember(self) -> None:
        """Begin the next update from where they are now."""
        if self._tensors:
            torch._foreach_copy_(self._before, self._tensors)
            torch._foreach_zero_(self._seen)
