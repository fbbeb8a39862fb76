"""Where values enter the graph."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.errors import unknown
from layermark.laws import Law, Normal, Shape
from layermark.ops.base import Op
from layermark.ops.checks import arity

ROLES = ("data", "target", "mask", "live")
_STANDARD = Normal()


@dataclass(frozen=True)
class Input(Op):
    """Something the graph is fed with: data, a target, a mask, or a live tensor of an earlier stage."""

    dims: Shape
    law: Law = _STANDARD
    role: str = "data"
    batch: int = 0
    """The axis of the batch."""
    item_bytes: int = 0
    """0: the compute type; 1: uint8 pictures; 4: int32 labels."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise unknown("input role", self.role, ROLES)

    def shape(self, *inputs: Shape) -> Shape:
        """The declared shape; an input reads nothing."""
        arity("input", inputs, 0)
        return self.dims

    def batch_axis(self, *axes: int) -> int:
        """The declared axis."""
        return self.batch
