"""Layermark measures neural-network layers across frameworks: verified, against the machine's own ceilings.

>>> import layermark
>>> spec = layermark.Spec(workload="dense", backend="torch")

`layermark.measure(spec)` does what `layermark run` does. Nothing is imported before it is used, so that
`layermark --help` answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layermark.session import measure
    from layermark.spec import Plan, Protocol, Spec

__all__ = ["Plan", "Protocol", "Spec", "__version__", "measure"]
__version__ = "0.1.0"

_HOMES = {
    "Plan": "layermark.spec",
    "Protocol": "layermark.spec",
    "Spec": "layermark.spec",
    "measure": "layermark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'layermark' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
