"""One time step of a recurrent layer, as the body of a loop or written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from layermark import ops
from layermark.backends._onnx.writer import Array, Site

# All sigmoids stand together, so that one node computes them: lstm has input, forget, output, cell.
LOOP_ORDER = {"rnn": (0,), "gru": (0, 1, 2), "lstm": (0, 1, 3, 2)}

State = tuple[str, ...]


@dataclass(frozen=True)
class Recurrence:
    """The initialisers that every step reads; a GRU that resets before the product has the new gate's separately."""

    hidden: int
    weight: str
    new: str = ""
    second_bias: str = ""


def ordered(op: ops.Recurrent, array: Array, order: Sequence[int]) -> Array:
    """The blocks of rows of a parameter in another order of the gates."""
    gates = array.reshape(op.gates, op.hidden, *array.shape[1:])
    return gates[list(order)].reshape(array.shape)


def rnn(site: Site, recurrence: Recurrence, projected: str, state: State) -> State:
    """The plain cell."""
    total = site.call("Gemm", state[0], recurrence.weight, projected, suffix="product", transB=1)
    return (site.call("Tanh", total, suffix="state"),)


def lstm(site: Site, recurrence: Recurrence, projected: str, state: State) -> State:
    """Three sigmoids as one, then the cell."""
    h, c = state
    total = site.call("Gemm", h, recurrence.weight, projected, suffix="product", transB=1)
    lengths = site.integers("lengths", [3 * recurrence.hidden, recurrence.hidden])
    gates, candidate = site.calls("Split", total, lengths, outputs=2, suffix="parts", axis=1)
    opened = site.call("Sigmoid", gates, suffix="gates")
    i, f, o = site.calls("Split", opened, outputs=3, suffix="opened", axis=1, num_outputs=3)
    added = site.call("Mul", i, site.call("Tanh", candidate, suffix="candidate"), suffix="added")
    cell = site.call("Add", site.call("Mul", f, c, suffix="kept"), added, suffix="cell")
    return site.call("Mul", o, site.call("Tanh", cell, suffix="shown"), suffix="state"), cell


def gru(site: Site, recurrence: Recurrence, projected: str, state: State) -> State:
    """Reset and update, the new state, and the blend of both."""
    lengths = site.integers("lengths", [2 * recurrence.hidden, recurrence.hidden])
    gates, candidate = site.calls("Split", projected, lengths, outputs=2, suffix="input", axis=1)
    total = (_before if recurrence.new else _after)(site, recurrence, gates, candidate, lengths, state[0])
    z, n = total[0], site.call("Tanh", total[1], suffix="new")
    moved = site.call("Mul", z, site.call("Sub", state[0], n, suffix="change"), suffix="moved")
    return (site.call("Add", n, moved, suffix="state"),)


def _opened(site: Site, total: str) -> tuple[str, str]:
    opened = site.call("Sigmoid", total, suffix="gates")
    r, z = site.calls("Split", opened, outputs=2, suffix="opened", axis=1, num_outputs=2)
    return r, z


def _before(site: Site, own: Recurrence, gates: str, candidate: str, lengths: str, h: str) -> tuple[str, str]:
    r, z = _opened(site, site.call("Gemm", h, own.weight, gates, suffix="product", transB=1))
    reset = site.call("Mul", r, h, suffix="reset")
    return z, site.call("Gemm", reset, own.new, candidate, suffix="new_product", transB=1)


def _after(site: Site, own: Recurrence, gates: str, candidate: str, lengths: str, h: str) -> tuple[str, str]:
    product = site.call("Gemm", h, own.weight, suffix="product", transB=1)
    theirs, inner = site.calls("Split", product, lengths, outputs=2, suffix="parts", axis=1)
    r, z = _opened(site, site.call("Add", gates, theirs, suffix="total"))
    biased = site.call("Add", inner, own.second_bias, suffix="biased") if own.second_bias else inner
    return z, site.call("Add", candidate, site.call("Mul", r, biased, suffix="reset"), suffix="new_total")


STEPS: Mapping[str, Callable[[Site, Recurrence, str, State], State]] = {"rnn": rnn, "lstm": lstm, "gru": gru}
