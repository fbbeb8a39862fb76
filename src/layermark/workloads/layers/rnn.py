"""One simple recurrent layer."""

from __future__ import annotations

from layermark.graph import Graph
from layermark.ops import Recurrent
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish
from layermark.workloads.recurrent import RecurrentParams, cross_entropy, recurrent_layer


class RnnLayer(Workload):
    """A simple recurrent layer with tanh."""

    summary = "a simple recurrent layer (tanh) over sequences"
    item = "sequence"
    Params = RecurrentParams

    def graph(self, params: RecurrentParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[time, batch, features] -> [time, batch, hidden]`; both losses are the seeds' cross-entropy."""
        op = Recurrent("rnn", params.hidden_size, params.cell, bias=params.bias)
        build, y = recurrent_layer(params, batch_size, op)
        return finish(build, y, mode, cross_entropy)


WORKLOAD = RnnLayer()
