"""LSTM layers on top of each other, with one output."""

from __future__ import annotations

from dataclasses import dataclass

from layermark.graph import Builder, Graph
from layermark.ops import FORMS, Dense, Recurrent, TakeLast
from layermark.options import integer, option
from layermark.workloads.base import Workload
from layermark.workloads.objective import finish, squared_error
from layermark.workloads.recurrent import sequences


@dataclass(frozen=True, kw_only=True)
class LstmMultiParams:
    """Options of the stacked LSTM."""

    timesteps: int = option(200, parse=integer(1), help="length of each sequence")
    input_size: int = option(16, parse=integer(1), help="features of each time step")
    hidden_size: int = option(256, parse=integer(1), help="units of every layer")
    num_layers: int = option(2, parse=integer(1), help="layers on top of each other")
    cell: str = option("fused", choices=FORMS, help="the framework's fused layer, or a loop of one cell per time step")


class LstmMulti(Workload):
    """Stacked LSTMs whose last state goes through a dense layer with one output."""

    summary = "stacked LSTM layers and a dense output"
    item = "sequence"
    Params = LstmMultiParams

    def graph(self, params: LstmMultiParams, *, batch_size: int, mode: str, loss: str) -> Graph:
        """`[time, batch, features] -> [batch, 1]`; both losses are the seeds' mean squared error."""
        build = Builder()
        y = sequences(build, params.timesteps, batch_size, params.input_size)
        for index in range(1, params.num_layers + 1):
            y = build.add(f"lstm{index}", Recurrent("lstm", params.hidden_size, params.cell), y)
        last = build.add("last", TakeLast(), y)
        return finish(build, build.add("dense", Dense(1), last), mode, squared_error)


WORKLOAD = LstmMulti()
