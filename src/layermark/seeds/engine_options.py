"""`POPLAR_ENGINE_OPTIONS` and `POPLAR_RUNTIME_OPTIONS`: JSON objects in the environment; the first asks for reports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layermark.errors import UserError
from layermark.options import switch
from layermark.seeds.options import json_object

VARIABLE = "POPLAR_ENGINE_OPTIONS"
RUNTIME_VARIABLE = "POPLAR_RUNTIME_OPTIONS"
_REPORT, _FOLDER = "autoReport.all", "autoReport.directory"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What the variables say: whether and where to write a profile, and everything else that was set."""

    report: bool = False
    folder: Path | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """What the second variable holds: none of it has an effect here."""

    def idle(self, *acting: str) -> list[str]:
        """Return what has no effect, each key with its variable, except those that act here."""
        others = [f"{name} ({VARIABLE})" for name in self.others if name not in acting]
        return others + [f"{name} ({RUNTIME_VARIABLE})" for name in self.runtime]

    @property
    def recorded(self) -> dict[str, Any]:
        """What a result keeps of them."""
        found = {"engine": dict(self.others), "runtime": dict(self.runtime)}
        return {name: values for name, values in found.items() if values}


def engine_options(environment: Mapping[str, str] = os.environ) -> EngineOptions:
    """Read the variables; a value that cannot be read is the user's error."""
    found, runtime = _object(VARIABLE, environment), _object(RUNTIME_VARIABLE, environment)
    try:
        report = switch(str(found.get(_REPORT, "false")))
    except ValueError as error:
        raise UserError(f"{VARIABLE}={environment[VARIABLE]}: {error}") from None
    others = {name: value for name, value in found.items() if name not in (_REPORT, _FOLDER)}
    folder = Path(str(found[_FOLDER])) if _FOLDER in found else None
    return EngineOptions(report=report, folder=folder, others=others, runtime=runtime)


def _object(variable: str, environment: Mapping[str, str]) -> Mapping[str, Any]:
    text = environment.get(variable, "")
    try:
        return json_object(text) if text.strip() else {}
    except ValueError as error:
        raise UserError(f"{variable}={text}: {error}") from None
