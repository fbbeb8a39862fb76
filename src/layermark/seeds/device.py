"""`--device-id` and `--select-ipu`: the index of a GPU where there is one, else of the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from layermark.errors import UserError
from layermark.session.ranks import VISIBLE
from layermark.spec import Spec


class Device(NamedTuple):
    """A kind of device, and the variable that names one of them for each replica, whose workers see only theirs."""

    kind: str = Spec.device
    variables: dict[str, str] = {}


def gpus() -> list[str]:
    """Return the names under which CUDA knows the GPUs that this process may use; no framework is asked."""
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    chosen = os.environ.get(VISIBLE)
    if chosen is None or not nodes:
        return [str(index) for index, _ in enumerate(nodes)]
    return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]


def device(flag: str, text: str, automatic: str, replicas: int = 1) -> Device:
    """Return the devices from this index on, one a replica; `automatic` is the word for the CPU.

    Raise UserError if there are not so many.
    """
    if text.upper() == automatic:
        return Device()
    found = gpus()
    last = max(len(found) - 1, 0)
    if not text.isdigit() or int(text) > last:
        known = f"or 0 to {last} (cuda)" if found else "or 0 (cpu)"
        raise UserError(f"{flag} {text}: no such device; expected {automatic} (cpu), {known}")
    own = found[int(text) : int(text) + replicas]
    if found and len(own) < replicas:
        raise UserError(
            f"{flag} {text} with --replicas {replicas}: each replica has a GPU of its own, and from {text} on "
            f"there are {len(own)}; set --replicas {len(own)}"
        )
    return Device("cuda", {VISIBLE: ",".join(own)}) if found else Device()
