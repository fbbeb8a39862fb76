"""Where a parameter of the graph lives in the modules of torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """Where a parameter of the graph lives: a tensor of a module, or some of its rows, perhaps with something added."""

    owner: nn.Module
    attribute: str
    rows: slice | None = None
    shift: Tensor | None = None

    @property
    def leaf(self) -> Tensor:
        """The whole tensor of the module."""
        found: Tensor = getattr(self.owner, self.attribute)
        return found

    @property
    def tensor(self) -> Tensor:
        """The part that belongs to the parameter."""
        return self.leaf.detach() if self.rows is None else self.leaf.detach()[self.rows]

    def write(self, values: Tensor) -> None:
        """Set the parameter."""
        self.tensor.copy_(values if self.shift is None else values + self.shift)

    def read(self) -> Tensor:
        """The parameter as it is now, in a type that NumPy knows."""
        values = self.tensor if self.leaf.dtype == torch.float64 else self.tensor.float()
        return values.clone() if self.shift is None else values - self.shift
