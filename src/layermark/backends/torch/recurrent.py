"""Recurrent layers: torch's fused kernels, and one cell per time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from layermark.ops import Recurrent

State = tuple[Tensor, ...]
_LSTM_MODE = 2  # of torch's enumeration of recurrent cells
UNROLLED_STEPS = 16
"""Loops up to this long are compiled whole; unrolling two layers of 200 steps takes a minute."""
ALONE: dict[str, Any] = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}
"""How code is compiled that several networks share: with guards they would be taken for one that changes, without
guards for each other."""
IN_CPP: dict[str, Any] = {
    "cpp_wrapper": True,
    "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
    "freezing": False,
}
"""Options of the compiler: kernels are called from C++, no call asks whether something has changed since, and weights
stay arguments, whatever another network in the process has set."""


class RecurrentLayer(nn.Module):
    """The parameters that both forms share; `state` is a resident zero state.

    `bias` is trained, a constant (a forget bias without a bias to join), or absent.
    """

    form: ClassVar[str]
    """What is called: a fused layer of torch's, or a loop of cells."""
    state: Tensor
    bias: Tensor | None
    recurrent_bias: Tensor | None

    def __init__(self, op: Recurrent, features: int, state: tuple[int, ...]) -> None:
        super().__init__()
        rows = op.gates * op.hidden
        self.kind, self.hidden, self.resets_after = op.cell, op.hidden, op.cell == "gru" and op.reset == "after"
        self.weight = nn.Parameter(torch.empty(rows, features))
        self.recurrent = nn.Parameter(torch.empty(rows, op.hidden))
        if op.bias:
            self.bias = nn.Parameter(torch.empty(rows))
        else:
            self.register_buffer("bias", forget_shift(op), persistent=False)
        self.register_buffer("state", torch.zeros(state), persistent=False)


def forget_shift(op: Recurrent) -> Tensor | None:
    """What a forget bias adds to the bias of all gates."""
    if op.cell != "lstm" or not op.forget_bias:
        return None
    shift = torch.zeros(op.gates, op.hidden)
    shift[1] = op.forget_bias
    return shift.flatten()


class Fused(RecurrentLayer):
    """What nn.RNN, nn.GRU and nn.LSTM call, with the state resident.

    The second bias that torch asks for is a constant zero, except for the part of it that a GRU needs.
    """

    form = "fused"
    forward: Callable[[Tensor], Tensor]
    """The hidden states of every time step."""
    casts = False
    """Whether inputs may come in another type than the state's."""
    functions: ClassVar[dict[str, Callable[..., tuple[Tensor, ...]]]] = {
        "rnn": torch.rnn_tanh,
        "gru": torch.gru,
        "lstm": torch.lstm,
    }

    def __init__(self, op: Recurrent, features: int, batch: int) -> None:
        super().__init__(op, features, (1, batch, op.hidden))
        zeros = torch.zeros(op.gates * op.hidden)
        if op.bias and self.resets_after:
            self.recurrent_bias = nn.Parameter(zeros)
        else:
            self.register_buffer("recurrent_bias", None if self.bias is None else zeros, persistent=False)
        self.bind()

    def bind(self) -> None:
        """Gather the arguments of a call once: looking each of them up in a module takes a microsecond."""
        function, state = self.functions[self.kind], self.state
        start = (state, state) if self.kind == "lstm" else state
        weights: list[Tensor | None] = [self.weight, self.recurrent]
        if self.bias is not None:
            weights += [self.bias, self.recurrent_bias]
        biased, training = self.bias is not None, self.training

        def forward(x: Tensor) -> Tensor:
            return function(x, start, weights, biased, 1, 0.0, training, False, False)[0]

        def casting(x: Tensor) -> Tensor:
            return forward(x.to(state.dtype))

        self.forward = casting if self.casts else forward

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Another type or device: other tensors."""
        super()._apply(fn, recurse)
        self.bind()
        return self


class PackedLstm(RecurrentLayer):
    """The oneDNN layer behind torch.lstm, on weights that are packed once instead of on every call."""

    form = "fused"
    arguments: tuple[Any, ...]
    zeros: Tensor

    def __init__(self, op: Recurrent, features: int, batch: int, length: int) -> None:
        super().__init__(op, features, (batch, op.hidden))
        self.shape = [length, batch, features]
        self.register_buffer("zeros", torch.zeros(op.gates * op.hidden), persistent=False)

    def pack(self) -> None:
        """Bring the weights into oneDNN's layout; to be called after every change of them."""
        pack = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight
        packed = pack(self.weight.detach(), self.recurrent.detach(), self.hidden, False, True, False, self.shape)
        biases = (self.zeros if self.bias is None else self.bias, self.zeros)
        flags: tuple[Any, ...] = (False, [], _LSTM_MODE, self.hidden, 1, True, False, False, False)
        self.arguments = (*packed, *biases, self.state, self.state, *flags)

    def forward(self, x: Tensor) -> Tensor:
        """The hidden states of every time step; through torch.ops, eighteen arguments cost a tenth of a small layer."""
        return torch.mkldnn_rnn_layer(x, *self.arguments)[0]


class PackedRnn(RecurrentLayer):
    """A loop on transposed weights: torch.rnn_tanh makes three operations of a step where two will do."""

    form = "loop"
    arguments: tuple[Tensor, Tensor | None, Tensor, Tensor]

    def __init__(self, op: Recurrent, features: int, batch: int) -> None:
        super().__init__(op, features, (batch, op.hidden))

    def pack(self) -> None:
        """Transpose the weights; to be called after every change of them."""
        self.arguments = (self.weight, self.bias, self.recurrent.t().contiguous(), self.state)

    def forward(self, x: Tensor) -> Tensor:
        """The hidden states of every time step."""
        weight, bias, recurrent, h = self.arguments
        rows = []
        for projected in functional.linear(x, weight, bias).unbind(0):
            h = torch.addmm(projected, h, recurrent).tanh_()
            rows.append(h)
        return torch.stack(rows)


class CompiledGru(RecurrentLayer):
    """A loop in one compiled function, kernels called from C++: torch.gru takes a dozen operations for a step."""

    form = "compiled loop"
    arguments: tuple[Any, ...]

    def __init__(self, op: Recurrent, features: int, batch: int) -> None:
        super().__init__(op, features, (batch, op.hidden))
        self.recurrent_bias = nn.Parameter(torch.empty(op.hidden)) if op.bias else None
        self.compiled = torch.compile(every_step, options=IN_CPP, **ALONE)

    def pack(self) -> None:
        """Transpose the weights; to be called after every change of them."""
        turned = self.recurrent.t().contiguous()
        self.arguments = (self.weight, self.bias, (self.state,), turned, self.recurrent_bias)

    def forward(self, x: Tensor) -> Tensor:
        """The hidden states of every time step."""
        return self.compiled(gru_after_step, x, *self.arguments)


def every_step(
    step: Callable[..., State], x: Tensor, weight: Tensor, bias: Tensor | None, state: State, *weights: Any
) -> Tensor:
    """The hidden states of every time step; the projection of all inputs is one product before the loop."""
    rows = []
    for projected in functional.linear(x, weight, bias).unbind(0):
        state = step(projected, state, *weights)
        rows.append(state[0])
    return torch.stack(rows)


def rnn_step(projected: Tensor, state: State, recurrent: Tensor, extra: Tensor | None) -> State:
    """One step of the plain cell."""
    return (torch.tanh(torch.addmm(projected, state[0], recurrent)),)


def lstm_step(projected: Tensor, state: State, recurrent: Tensor, extra: Tensor | None) -> State:
    """One step of the LSTM; gates in the order input, forget, cell, output."""
    h, c = state
    i, f, g, o = torch.addmm(projected, h, recurrent).chunk(4, 1)
    c = torch.addcmul(torch.sigmoid(f) * c, torch.sigmoid(i), torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_after_step(projected: Tensor, state: State, recurrent: Tensor, extra: Tensor | None) -> State:
    """One step of the GRU that resets after the product; `extra` is the bias inside the reset."""
    (h,) = state
    xr, xz, xn = projected.chunk(3, 1)
    hr, hz, hn = torch.mm(h, recurrent).chunk(3, 1)
    hn = hn if extra is None else hn + extra
    return (_blend(torch.tanh(torch.addcmul(xn, torch.sigmoid(xr + hr), hn)), h, torch.sigmoid(xz + hz)),)


def gru_before_step(projected: Tensor, state: State, recurrent: tuple[Tensor, Tensor], extra: Tensor | None) -> State:
    """One step of the GRU that resets before the product; has separate weights for the gates and the new state."""
    (h,), (gates, new) = state, recurrent
    seen, xn = projected.split([gates.shape[1], new.shape[1]], 1)
    r, z = torch.sigmoid(torch.addmm(seen, h, gates)).chunk(2, 1)
    return (_blend(torch.tanh(torch.addmm(xn, r * h, new)), h, z),)


def _blend(new: Tensor, old: Tensor, keep: Tensor) -> Tensor:
    return torch.addcmul(new, keep, old - new)


class CellPerStep(RecurrentLayer):
    """One cell per time step."""

    form = "loop"
    steps: ClassVar[dict[str, Callable[..., State]]] = {
        "rnn": rnn_step,
        "lstm": lstm_step,
        "gru-after": gru_after_step,
        "gru-before": gru_before_step,
    }

    def __init__(self, op: Recurrent, features: int, batch: int, length: int) -> None:
        super().__init__(op, features, (batch, op.hidden))
        self.length = length
        self.cell = self.steps[f"gru-{op.reset}" if op.cell == "gru" else op.cell]
        self.step = self.cell
        self.recurrent_bias = nn.Parameter(torch.empty(op.hidden)) if op.bias and self.resets_after else None

    def forward(self, x: Tensor) -> Tensor:
        """The hidden states of every time step."""
        state: State = (self.state,) * (2 if self.kind == "lstm" else 1)
        return every_step(self.step, x, self.weight, self.bias, state, self._parted(), self.recurrent_bias)

    def _parted(self) -> Tensor | tuple[Tensor, ...]:
        """The weights as a step takes them, split once: a slice in every step has a gradient as large as the whole."""
        recurrent = self.recurrent.t()
        if self.kind != "gru" or self.resets_after:
            return recurrent
        return recurrent.split([2 * self.hidden, self.hidden], 1)
