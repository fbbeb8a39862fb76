"""The refusals that operations share: each says what was received, what is expected and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from layermark.errors import UserError
from layermark.laws import Shape


def misfit(op: str, received: object, expected: str, fix: str) -> UserError:
    """The one line for inputs that an operation cannot take."""
    return UserError(f"{op} received {received}, expected {expected}; {fix}")


def arity(op: str, inputs: Sequence[Shape], low: int, high: int | None = None) -> tuple[Shape, ...]:
    """The inputs, if there are as many as the operation reads (`low` up to `high`, or exactly `low`)."""
    top = low if high is None else high
    if not low <= len(inputs) <= top:
        count = str(low) if low == top else f"{low} to {top}"
        raise misfit(op, f"{len(inputs)} inputs", f"{count} inputs", "name that many nodes when adding it")
    return tuple(inputs)


def image(op: str, inputs: Sequence[Shape]) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of the only input."""
    (x,) = arity(op, inputs, 1)
    if len(x) != 4:
        raise misfit(op, f"shape {x}", "[batch, channels, height, width]", "feed it pictures")
    return x[0], x[1], x[2], x[3]


def sequence(op: str, inputs: Sequence[Shape]) -> tuple[int, int, int]:
    """Time steps, batch and features of the only input."""
    (x,) = arity(op, inputs, 1)
    if len(x) != 3:
        raise misfit(op, f"shape {x}", "[time, batch, features]", "feed it sequences")
    return x[0], x[1], x[2]


def channelled(op: str, inputs: Sequence[Shape]) -> Shape:
    """The only input, which has channels on its second axis."""
    (x,) = arity(op, inputs, 1)
    if len(x) < 2:
        raise misfit(op, f"shape {x}", "[batch, channels, ...]", "feed it rows or pictures")
    return x


def same(op: str, inputs: Sequence[Shape]) -> Shape:
    """The shape that all inputs have in common."""
    if len(set(inputs)) != 1:
        shapes = " and ".join(str(each) for each in inputs)
        raise misfit(op, f"shapes {shapes}", "equal shapes", "make the two branches end in one shape")
    return inputs[0]


def at_least(op: str, low: int, **values: int) -> None:
    """Refuse numbers below a bound; the keyword is the field's name."""
    for name, value in values.items():
        if value < low:
            raise misfit(op, f"{name} {value}", f"{name} of at least {low}", f"set {name} to {low} or more")
