"""The three ways in which Layermark says no."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence


class UserError(Exception):
    """The request was wrong: one line that says what was received, what was expected, what to type."""


class Unsupported(Exception):
    """The request was right but this runtime cannot do it; becomes a `skipped` outcome with the reason.

    `instead` names settings that the runtime can do in their place, such as `{"cell": "loop"}`.
    """

    def __init__(self, reason: str, *, code: str = "unsupported", instead: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.instead = dict(instead or {})


class WorkerFailed(Exception):
    """A worker crashed, raised, hung or ran out of memory; `log` holds the last lines it wrote."""

    def __init__(self, reason: str, log: str = "", *, code: str = "error") -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log
        self.code = code


_MOST_NAMES = 12


def unknown(kind: str, received: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> str(unknown("workload", "lstn", ["lstm", "gru"]))
    "unknown workload 'lstn'; did you mean lstm? known: gru, lstm"
    """
    names = sorted(known)
    near = difflib.get_close_matches(received, names, n=3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    see = "; layermark list shows them" if kind == "workload" and len(names) > _MOST_NAMES else ""
    return UserError(f"unknown {kind} {received!r}; {hint}known: {shortened(names)}{see}")


def shortened(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """A list of names in one line; of a very long one the beginning and how many there are.

    >>> shortened(["a", "b", "c"], most=2)
    'a, b, ... (3 in all)'
    """
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, ... ({len(names)} in all)"
