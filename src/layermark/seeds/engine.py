"""`POPLAR_ENGINE_OPTIONS`: a JSON object in the environment that asks for reports, among other things."""

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
_REPORT, _FOLDER = "autoReport.all", "autoReport.directory"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What the variable says: whether and where to write a profile, and everything else that was set."""

    report: bool = False
    folder: Path | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


def engine_options(environment: Mapping[str, str] = os.environ) -> Engine:
    """Read the variable; a value that cannot be read is the user's error."""
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return Engine()
    try:
        found = json_object(text)
        report = switch(str(found.get(_REPORT, "false")))
    except ValueError as error:
        raise UserError(f"{VARIABLE}={text}: {error}") from None
    others = {name: value for name, value in found.items() if name not in (_REPORT, _FOLDER)}
    folder = Path(str(found[_FOLDER])) if _FOLDER in found else None
    return Engine(report=report, folder=folder, others=others)
