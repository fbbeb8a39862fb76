"""The file is the registration: a module in the right folder is found by its name.

Plug-ins use the same door from outside, through an entry point of the group `layermark.<kind>`
that names a module of the same form.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType

from layermark.errors import unknown

_FOLDERS = {
    "workloads": ("layermark.workloads.layers", "layermark.workloads.programs"),
    "backends": ("layermark.backends",),
    "devices": ("layermark.devices",),
    "sources": ("layermark.data.sources",),
}


@cache
def modules(kind: str) -> Mapping[str, str]:
    """The module behind every name of a kind; nothing of the modules themselves is imported."""
    found: dict[str, str] = {}
    for folder in _FOLDERS[kind]:
        for info in pkgutil.iter_modules(importlib.import_module(folder).__path__):
            if info.name != "base" and not info.name.startswith("_"):
                found[info.name] = f"{folder}.{info.name}"
    return found | _plugged(kind)


def _plugged(kind: str) -> dict[str, str]:
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=f"layermark.{kind}")}


def find(kind: str, name: str) -> ModuleType:
    """Import the module that a name stands for, or say which names there are."""
    known = modules(kind)
    if name not in known:
        raise unknown(kind.removesuffix("s"), name, known)
    return importlib.import_module(known[name])
