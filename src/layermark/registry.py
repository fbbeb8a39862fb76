"""The file is the registration: a module in the right folder is found by its name.

A module of a family folder is a whole family: it is found by the names in its `WORKLOADS`.

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
_FAMILIES = {"workloads": ("layermark.workloads.models",)}


@cache
def modules(kind: str) -> Mapping[str, str]:
    """The module behind every name of a kind; only families are imported, since they hold names of their own."""
    found = {module.rpartition(".")[2]: module for folder in _FOLDERS[kind] for module in _within(folder)}
    for folder in _FAMILIES.get(kind, ()):
        for module in _within(folder):
            found |= dict.fromkeys(importlib.import_module(module).WORKLOADS, module)
    return found | _plugged(kind)


def _within(folder: str) -> list[str]:
    names = [info.name for info in pkgutil.iter_modules(importlib.import_module(folder).__path__)]
    return [f"{folder}.{name}" for name in names if name != "base" and not name.startswith("_")]


def _plugged(kind: str) -> dict[str, str]:
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=f"layermark.{kind}")}


def find(kind: str, name: str) -> ModuleType:
    """Import the module that a name stands for, or say which names there are."""
    known = modules(kind)
    if name not in known:
        raise unknown(kind.removesuffix("s"), name, known)
    return importlib.import_module(known[name])
