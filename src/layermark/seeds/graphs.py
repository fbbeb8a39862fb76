"""`--save-graph`: an ONNX model in the working directory, or a folder that TensorBoard opens."""

from __future__ import annotations

import time
from pathlib import Path

from layermark.errors import UserError
from layermark.launch.models import write_onnx
from layermark.seeds.request import LayerRequest
from layermark.seeds.tensorboard import Drawn, drawn, write_events
from layermark.workloads.base import task

MODEL = "model.onnx"

# One transition of the chain, which is no graph of the package's.
_CHAIN = (
    Drawn("state", "Variable"),
    Drawn("momentum", "RandomNormal"),
    Drawn("leapfrog", "Leapfrog", ("state", "momentum")),
    Drawn("uniform", "RandomUniform"),
    Drawn("metropolis", "Select", ("state", "momentum", "leapfrog", "uniform")),
    Drawn("next_state", "Assign", ("metropolis",)),
)


def save_graph(request: LayerRequest, file: Path) -> str:
    """Write the graph in the form of the script's family and return the line that says so."""
    try:
        return _save_model(request) if request.script.family == "popart" else _save_events(request, file)
    except OSError as error:
        raise UserError(f"--save-graph: cannot write {error.filename}: {error.strerror}") from None


def _save_model(request: LayerRequest) -> str:
    write_onnx(request.spec, Path.cwd() / MODEL)
    return f"Saved the graph to {MODEL}"


def _save_events(request: LayerRequest, file: Path) -> str:
    folder = file.resolve().parent / "logs" / time.strftime("%Y-%m-%d_%H-%M-%S_%Z")
    write_events(_CHAIN if request.script.family == "hmc" else drawn(task(request.spec).graph), folder)
    return f"Saved the graph to {folder}; open it with: tensorboard --logdir {folder}"
