"""Files that only a framework can write are written by a worker."""

from __future__ import annotations

from pathlib import Path

from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.process import Crew
from layermark.spec import Spec

_TIMEOUT_S = 600.0


def write_onnx(spec: Spec, path: Path) -> None:
    """Write the network of a spec, with its weights, as an ONNX model."""
    with Crew() as crew:
        try:
            crew.hire({}).call("write_onnx", _TIMEOUT_S, spec=spec.to_json(), path=str(path))
        except (Unsupported, WorkerFailed) as failure:
            raise UserError(f"--save-graph: {failure}") from None
