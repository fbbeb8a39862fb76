"""Recurrent layers over whole sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from layermark.errors import unknown
from layermark.laws import Law, Shape
from layermark.ops.base import Op, Parameter
from layermark.ops.checks import at_least, sequence
from layermark.ops.linear import BIAS_LAW, glorot

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FORMS = ("fused", "loop")
RESETS = ("after", "before")

# Per hidden element and time step, besides contractions and biases (their sums with each other are part of
# the contraction). lstm forward: 4 gate functions, f*c + i*g is 3, o*tanh(c) is 2; gru forward: 3 gate functions,
# n + z*(h - n) is 3, r*h (and, reset after, the sum with the input's part). Backward: 3 per gate function
# (a sigmoid's or tanh's derivative times the gradient), then the products and sums of the chain rule.
_FORWARD = {"rnn": 1, "lstm": 9, "gru before": 7, "gru after": 8}
_BACKWARD = {"rnn": 3, "lstm": 22, "gru before": 15, "gru after": 14}


@dataclass(frozen=True)
class Recurrent(Op):
    """A simple RNN, GRU or LSTM: `[time, batch, features] -> [time, batch, hidden]` from a zero state.

    Gates in order: gru (reset, update, new), lstm (input, forget, cell, output).

    - rnn: `h' = tanh(Wx + Rh + b)`
    - lstm: `c' = sig(f + forget_bias) * c + sig(i) * tanh(g)`, `h' = sig(o) * tanh(c')`
    - gru: `h' = (1 - z) * n + z * h` with, reset after the product, `n = tanh(Wx + b + r * (Rh + recurrent_bias))`
      and, reset before it, `n = tanh(Wx + b + R(r * h))`

    `form` says how a backend writes it: its fused layer, or a loop over time steps.
    """

    cell: str
    hidden: int
    form: str = "fused"
    reset: str = "after"
    bias: bool = True
    forget_bias: float = 0.0
    weight_law: Law | None = None
    bias_law: Law | None = None

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("recurrent cell", self.cell, tuple(GATES)),
            ("recurrent form", self.form, FORMS),
            ("gru reset", self.reset, RESETS),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        at_least(self.cell, 1, hidden=self.hidden)

    @property
    def gates(self) -> int:
        """How many blocks of `hidden` rows the weights have."""
        return GATES[self.cell]

    def shape(self, *inputs: Shape) -> Shape:
        """The whole sequence of hidden states."""
        steps, batch, _ = sequence(self.cell, inputs)
        return steps, batch, self.hidden

    def parameters(self, *inputs: Shape) -> Mapping[str, Parameter]:
        """weight [gates x hidden, features], recurrent [gates x hidden, hidden] and the biases.

        A second bias matters, and exists, only where the reset gate multiplies it: recurrent_bias [hidden].
        """
        rows, features = self.gates * self.hidden, inputs[0][2]
        law, bias_law = self.weight_law or glorot(features + self.hidden, rows), self.bias_law or BIAS_LAW
        found = {
            "weight": Parameter((rows, features), law),
            "recurrent": Parameter((rows, self.hidden), law),
        }
        if self.bias:
            found["bias"] = Parameter((rows,), bias_law)
        if self._second_bias:
            found["recurrent_bias"] = Parameter((self.hidden,), bias_law)
        return found

    def macs(self, *inputs: Shape) -> int:
        """Both products of every time step, the first included although its state is zero."""
        return self._rows(*inputs) * (inputs[0][2] + self.hidden)

    def elementwise(self, *inputs: Shape) -> int:
        """Gate functions, biases and the mixing of states."""
        return math.prod(self.shape(*inputs)) * (_FORWARD[self._kind] + self._biases)

    def backward_flops(self, *inputs: Shape, to_inputs: bool) -> int:
        """Weights and the way back through time always; the products with `weight` only for the inputs' sake."""
        back = self.hidden + (inputs[0][2] if to_inputs else 0)
        pointwise = math.prod(self.shape(*inputs)) * (_BACKWARD[self._kind] + self._biases)
        return 2 * (self.macs(*inputs) + self._rows(*inputs) * back) + pointwise

    def _rows(self, *inputs: Shape) -> int:
        return math.prod(self.shape(*inputs)) * self.gates

    @property
    def _kind(self) -> str:
        return f"gru {self.reset}" if self.cell == "gru" else self.cell

    @property
    def _second_bias(self) -> bool:
        return self.bias and self._kind == "gru after"

    @property
    def _biases(self) -> int:
        # A forget bias joins the bias vector ahead of time; without one it is an addition of its own.
        alone = not self.bias and self.cell == "lstm" and self.forget_bias != 0
        return self.bias * self.gates + self._second_bias + alone


@dataclass(frozen=True)
class TakeLast(Op):
    """The last time step: `[time, batch, features] -> [batch, features]`."""

    def shape(self, *inputs: Shape) -> Shape:
        """Batch and features."""
        return sequence("take-last", inputs)[1:]

    def batch_axis(self, *axes: int) -> int:
        """The axis moves up as time disappears."""
        return 0
