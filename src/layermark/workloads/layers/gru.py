"""One gated recurrent layer."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.graph import Graph
from layermark.ops import RESETS, Recurrent
from layermark.options import option
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish
from layermark.workloads.recurrent import RecurrentParams, cross_entropy, recurrent_layer


@dataclass(frozen=True, kw_only=True)
class GruParams(RecurrentParams):
    """Options of the GRU."""

    reset: str = option("after", choices=RESETS, help="apply the reset gate after or before the recurrent product")


class GruLayer(Workload):
    """A GRU with either place of the reset gate."""

    summary = "a GRU layer over sequences"
    item = "sequence"
    Params = GruParams

    def graph(self, params: GruParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[time, batch, features] -> [time, batch, hidden]`; both losses are the seeds' cross-entropy."""
        op = Recurrent("gru", params.hidden_size, params.cell, params.reset, bias=params.bias)
        build, y = recurrent_layer(params, batch_size, op)
        return finish(build, y, mode, cross_entropy)


WORKLOAD = GruLayer()
