"""Intel GPUs through oneAPI; written to documentation, never run on hardware: see docs/devices.md."""

from __future__ import annotations

from collections.abc import Mapping

from layermark.devices import cpu
from layermark.spec import Spec


def environment(spec: Spec) -> Mapping[str, str]:
    """Variables that every worker on this device starts with: the host's side of it is a CPU program as any other."""
    return cpu.environment(spec)
