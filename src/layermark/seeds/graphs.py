"""`--save-graph`: an ONNX model in the working directory, or a folder that TensorBoard opens."""

from __future__ import annotations

import time
from pathlib import Path

from layermark.errors import UserError
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


def save_graph(asked: LayerRequest, file: Path) -> str:
    """Write the graph in the form of the script's family; answers the line that says so."""
    try:
        return _save_model(asked) if asked.script.family == "popart" else _save_events(asked, file)
    except OSError as error:
        raise UserError(f"--save-graph: cannot write {error.filename}: {error.strerror}") from None


def _save_model(asked: LayerRequest) -> str:
    try:
        from layermark.backends._onnx import write_model
    except ModuleNotFoundError:
        raise UserError("--save-graph needs onnx; install it with: pip install 'layermark[onnxruntime]'") from None
    whole = task(asked.spec)
    path = Path.cwd() / MODEL
    write_model(whole.graph, whole.weights(), path, asked.spec.precision)
    return f"Saved the graph to {MODEL}"


def _save_events(asked: LayerRequest, file: Path) -> str:
    folder = file.resolve().parent / "logs" / time.strftime("%Y-%m-%d_%H-%M-%S_%Z")
    write_events(_CHAIN if asked.script.family == "hmc" else drawn(task(asked.spec).graph), folder)
    return f"Saved the graph to {folder}; open it with: tensorboard --logdir {folder}"
