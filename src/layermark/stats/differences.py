"""What differs between two environments, so that a difference in speed can be explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LOAD = "load"
_ASKED = ("threads", "backend", "batch_size", "mode", "precision", "params")
# Trials say how a choice was made, and differ from run to run without meaning.
_NO_MATTER = ("execution_trial", "execution_choice", "loop_trial")
_OF_TRAINING = "training"
# What was measured does not explain what was measured.
_MEASURED = ("curve", "anatomy", "excluded_s", "validation", "updates", "shortened")
_NOTHING = "none"


def differences(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> list[str]:
    """Return one text for every fact in which two records differ; a load counts where half a CPU more was busy.

    >>> differences({"kernel": "6.1", "versions": {"torch": "2.12"}}, {"kernel": "6.1", "versions": {"torch": "2.13"}})
    ['versions.torch 2.12 -> 2.13']
    """
    first, second = dict(_flat(a or {})), dict(_flat(b or {}))
    names = [name for name in {**first, **second} if not _no_reason(name.split("."), first.get(name), second.get(name))]
    return [
        f"{name} {_shown(first, name)} -> {_shown(second, name)}" for name in names if _differs(name, first, second)
    ]


def result_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return what is not the same about two results, and could explain why their rates differ."""
    return [
        *differences(_asked(a), _asked(b)),
        *differences(a["settings"], b["settings"]),
        *differences(a["environment"], b["environment"]),
    ]


def _asked(result: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for and can differ between two results, where the settings do not say what came of it."""
    return {name: result["spec"].get(name) for name in _ASKED if name not in result["settings"]}


def _no_reason(path: Sequence[str], *values: Any) -> bool:
    """Whether a fact was measured, or is a list of records that nobody reads in a line."""
    if path[0] in _NO_MATTER or (path[0] == _OF_TRAINING and path[1:] and path[1] in _MEASURED):
        return True
    return any(isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value) for value in values)


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _differs(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    first, second = a.get(name), b.get(name)
    if name == _LOAD and isinstance(first, int | float) and isinstance(second, int | float):
        return abs(first - second) >= 0.5
    return bool(first != second)


def _shown(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or _NOTHING
    return _NOTHING if value is None else str(value)
