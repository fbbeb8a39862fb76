"""Checkpoints of a training run: `ckpt-<update>.safetensors`, and a small JSON beside it that makes it whole.

The arrays are written first and the JSON last, each beside its place, flushed to the disk and renamed. So whatever
happens, a JSON whose arrays have the size and the digest that it names belongs to a checkpoint that is complete.
There is one writer per folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from layermark import safetensors
from layermark.errors import UserError
from layermark.training.averaging import Point

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

VERSION = 1
_SECTIONS = ("weights", "statistics", "optimiser")
_FACTS = ("update", "epoch", "random", "position")
_LATER_FACTS = ("execution",)
"""What checkpoints of earlier releases lack."""
_NAME = re.compile(r"ckpt-(\d+)\.json")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    update: int
    epoch: float
    weights: Mapping[str, Array]
    statistics: Mapping[str, Array] = field(default_factory=dict)
    optimiser: Mapping[str, Array] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)
    """Seeds and states of generators, as JSON."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """Where the input is, as JSON."""
    execution: str = ""
    """How the program was run: another way rounds differently. Empty where nobody knows."""

    @property
    def name(self) -> str:
        """`ckpt-<update>`."""
        return f"ckpt-{self.update}"

    def arrays(self) -> dict[str, Array]:
        """Return every array under `section/name`."""
        return {f"{section}/{name}": each for section in _SECTIONS for name, each in getattr(self, section).items()}


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and return the path of its JSON; raise UserError if the disk does not take it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _save(folder, checkpoint)
    except OSError as error:
        raise _unsaved(folder, checkpoint.name, error) from None


def _save(folder: Path, checkpoint: Checkpoint) -> Path:
    data, marker = (folder / f"{checkpoint.name}{suffix}" for suffix in (safetensors.SUFFIX, ".json"))
    part = _part(data)
    try:
        size, digest = _write_arrays(part, checkpoint.arrays())
        doc = _document(checkpoint, size, digest)
        # The JSON of an older checkpoint of this number must not vouch for other arrays, not for a moment.
        marker.unlink(missing_ok=True)
        part.replace(data)
    finally:
        part.unlink(missing_ok=True)
    _write(marker, lambda file: file.write(json.dumps(doc, indent=1).encode()))
    _flush_folder(folder)
    _remove_leftovers(folder)
    return marker


def write_weights(path: Path, weights: Mapping[str, Array]) -> None:
    """Write weights alone (an average) as safetensors; raise UserError if the disk does not take them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, lambda file: safetensors.write_to(file, weights))
        _flush_folder(path.parent)
    except OSError as error:
        raise _unsaved(path.parent, path.name, error) from None


def load(marker: Path) -> Checkpoint:
    """Read the checkpoint whose JSON this is; raise UserError if it is missing or torn."""
    doc = _checked(marker)
    found: dict[str, dict[str, Array]] = {section: {} for section in _SECTIONS}
    for key, each in safetensors.read(_data_of(marker)).items():
        section, _, name = key.partition("/")
        found[section][name] = each
    fields: dict[str, Any] = {name: doc[name] for name in (*_FACTS, *_LATER_FACTS) if name in doc}
    return Checkpoint(**fields | found)


def is_whole(marker: Path) -> bool:
    """Return whether a checkpoint is complete."""
    try:
        _checked(marker)
    except UserError:
        return False
    return True


def latest(folder: Path) -> Path:
    """Return the JSON of the highest-numbered checkpoint that is whole; raise UserError if there is none."""
    found = _markers(folder)
    for marker in reversed(found):
        if is_whole(marker):
            return marker
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}; expected one with checkpoints (ckpt-<update>.json)")
    state = f"{len(found)} torn ones" if found else "none"
    raise UserError(f"no whole checkpoint in {folder}: found {state}; expected ckpt-<update>.safetensors and .json")


def update_of(marker: Path) -> int:
    """Return after how many updates a checkpoint was taken, as its name says.

    >>> update_of(Path("ckpt-1600.json"))
    1600
    """
    found = _NAME.fullmatch(marker.name)
    if found is None:
        raise UserError(f"checkpoint {marker}: expected a file named ckpt-<update>.json")
    return int(found[1])


def execution_of(marker: Path) -> str:
    """Return how the program of a whole checkpoint was run; empty for one of an earlier release."""
    return str(json.loads(marker.read_bytes()).get("execution", ""))


def points(folder: Path) -> dict[Point, Path]:
    """Return the whole checkpoints of a folder in order, and when each was taken."""
    made = {}
    for marker in _markers(folder):
        if is_whole(marker):
            doc = json.loads(marker.read_bytes())
            made[Point(doc["update"], doc["epoch"])] = marker
    return made


def weights_of(marker: Path) -> dict[str, Array]:
    """Return weights and running statistics of a checkpoint: what is averaged, and what a validation needs."""
    read = load(marker)
    return {**read.weights, **read.statistics}


def _markers(folder: Path) -> list[Path]:
    found = [(int(match[1]), each) for each in folder.glob("ckpt-*.json") if (match := _NAME.fullmatch(each.name))]
    return [each for _, each in sorted(found)]


def _data_of(marker: Path) -> Path:
    return marker.with_suffix(safetensors.SUFFIX)


def _document(checkpoint: Checkpoint, size: int, digest: str) -> dict[str, Any]:
    facts = {name: getattr(checkpoint, name) for name in (*_FACTS, *_LATER_FACTS)}
    return {"version": VERSION, **facts, "bytes": size, "sha256": digest}


def _checked(marker: Path) -> dict[str, Any]:
    """The JSON of a whole checkpoint, or an error that says what is wrong with it."""
    data = _data_of(marker)
    for path in (marker, data):
        if not path.is_file():
            raise UserError(f"checkpoint {marker.stem}: no {path.name} in {path.parent}; restore an earlier one")
    try:
        doc: dict[str, Any] = json.loads(marker.read_bytes())
        if doc["version"] != VERSION:
            raise UserError(f"checkpoint {marker.stem} has version {doc['version']}; expected {VERSION}")
        sound = data.stat().st_size == doc["bytes"] and _digest(data) == doc["sha256"]
        sound = sound and set(_FACTS) <= doc.keys()
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise UserError(f"checkpoint {marker.stem} in {marker.parent} is torn; restore an earlier one")
    return doc


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_arrays(part: Path, arrays: Mapping[str, Array]) -> tuple[int, str]:
    digest = hashlib.sha256()
    with part.open("wb") as file:
        for chunk in safetensors.chunks(arrays):
            digest.update(chunk)
            file.write(chunk)
        _flush(file)
        return file.tell(), digest.hexdigest()


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    part = _part(path)
    try:
        with part.open("wb") as file:
            fill(file)
            _flush(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    # A rename is on the disk only when its folder is.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    # What writers that were killed left behind.
    for part in folder.glob("ckpt-*.part"):
        with suppress(OSError):
            part.unlink()


def _unsaved(folder: Path, name: str, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    fix = "free some space" if full else "see that it can be written to"
    whole = next((each.stem for each in reversed(_markers(folder)) if is_whole(each)), "")
    kept = f"; {whole} is intact" if whole else ""
    return UserError(f"cannot save {name} in {folder}: {error.strerror}{kept}; {fix}, or choose another --log-dir")
