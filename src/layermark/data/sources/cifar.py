"""CIFAR-10 and CIFAR-100 in their binary form: records of one or two labels and 3072 bytes of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from layermark.data.base import BadData, Pixels, Place, Sample, Source, listed
from layermark.data.files import file_facts, read_part

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_PATTERNS = {
    ("train", 10): "data_batch_*.bin",
    ("validation", 10): "test_batch.bin",
    ("train", 100): "train.bin",
    ("validation", 100): "test.bin",
}


class Cifar(Source):
    """The last label of a record counts (CIFAR-100 has a coarse one before it)."""

    summary = "CIFAR-10 or CIFAR-100 binaries"
    rank = 1
    whole = True

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """Whether a file of either is there."""
        return any(_found(place, classes) for classes in (10, 100))

    def __init__(self, place: Place) -> None:
        self.classes = next((classes for classes in (10, 100) if _found(place, classes)), 10)
        self._labels = 1 if self.classes == 10 else 2
        self._places: list[tuple[str, int]] = []
        for path in _found(place, self.classes):
            self._add(path, place)
        if not self._places:
            raise BadData(place.folder, f"no CIFAR record of split {place.split} found")

    def _add(self, path: Path, place: Place) -> None:
        length, size = self._labels + _PIXELS, file_facts(path).st_size
        if size % length:
            reason = f"truncated: {size} bytes are no multiple of the {length} of a record"
            place.trouble.report(BadData(path, reason))
        self._places += [(str(path), offset) for offset in range(0, size - length + 1, length)]

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> Sample:
        """The record of this number, file by file."""
        path, offset = self._places[index]
        data = read_part(path, offset, self._labels + _PIXELS)
        where, label = f"{path}: record at byte {offset}", data[self._labels - 1]
        if label >= self.classes:
            raise BadData(where, f"wrong label {label}: expected 0 to {self.classes - 1}")
        planes = np.frombuffer(data, np.uint8, offset=self._labels).reshape(3, SIDE, SIDE)
        return Pixels(np.ascontiguousarray(planes.transpose(1, 2, 0)), label, where)

    @property
    def files(self) -> Sequence[Path]:
        """The files of the split."""
        return [Path(path) for path in dict.fromkeys(path for path, _ in self._places)]


def _found(place: Place, classes: int) -> list[Path]:
    return listed(place.folder, [_PATTERNS[place.split, classes]])


SOURCE = Cifar
