"""One LSTM layer."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.graph import Builder, Graph
from layermark.laws import Integers
from layermark.ops import NegativeLogLikelihood, Recurrent, Softmax
from layermark.options import number, option
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish
from layermark.workloads.recurrent import RecurrentParams, cross_entropy, recurrent_layer


@dataclass(frozen=True, kw_only=True)
class LstmParams(RecurrentParams):
    """Options of the LSTM."""

    forget_bias: float = option(0.0, parse=number, help="added to the forget gate, as some cells do from the start")
    seed_loss: str = option(
        "cross-entropy",
        choices=("cross-entropy", "popart"),
        help="which seed's loss --loss seed means: per time step, or one softmax over batch and features",
    )


class LstmLayer(Workload):
    """An LSTM."""

    summary = "an LSTM layer over sequences"
    item = "sequence"
    Params = LstmParams

    def graph(self, params: LstmParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[time, batch, features] -> [time, batch, hidden]`."""
        op = Recurrent("lstm", params.hidden_size, params.cell, bias=params.bias, forget_bias=params.forget_bias)
        build, y = recurrent_layer(params, batch_size, op)
        popart = loss == "seed" and params.seed_loss == "popart"
        return finish(build, y, mode, _popart_loss if popart else cross_entropy)


def _popart_loss(build: Builder, y: str) -> str:
    """The labelled element's likelihood, where each time step is normalised over batch and features together."""
    steps, batch, hidden = build.graph(y).shapes[y]
    probabilities = build.add("softmax", Softmax(1), y)
    law = Integers(0, min(2, hidden))
    labels = build.input("target", (steps, batch), law=law, role="target", batch=1, item_bytes=4)
    return build.add("loss", NegativeLogLikelihood(), probabilities, labels)


WORKLOAD = LstmLayer()
