"""Class folders: `train/CLASS/*.JPEG` and `validation/CLASS/*.JPEG`, with bounding boxes in a table beside them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from layermark.data.base import BadData, Box, Encoded, Place, Sample, Source, listed
from layermark.data.files import read_all
from layermark.data.sources.images import PATTERNS

BOXES = "imagenet_2012_bounding_boxes.csv"


class Raw(Source):
    """The label of a picture is the number of its folder among the sorted ones."""

    summary = "class folders of JPEGs under train/ and validation/"
    rank = 2

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """Whether there is a folder for the split."""
        return (place.folder / place.split).is_dir()

    def __init__(self, place: Place) -> None:
        root = place.folder / place.split
        if not root.is_dir():
            raise BadData(root, "no such folder; class folders lie in a folder named after the split")
        names = sorted(each.name for each in root.iterdir() if each.is_dir())
        self.classes = max(len(names), 1)
        self._items = [(str(path), label) for label, name in enumerate(names) for path in listed(root / name, PATTERNS)]
        if not self._items:
            raise BadData(root, "no class folder with a picture (CLASS/*.JPEG) found")
        self._boxes = _boxes(place) if place.split == "train" else {}

    def __len__(self) -> int:
        return len(self._items)

    def read(self, index: int) -> Sample:
        """The picture of this number, class by class."""
        path, label = self._items[index]
        return Encoded(read_all(path), label, path, self._boxes.get(Path(path).name, ()))

    @property
    def files(self) -> Sequence[Path]:
        """Every picture."""
        return [Path(path) for path, _ in self._items]


def _boxes(place: Place) -> Mapping[str, Sequence[Box]]:
    """The boxes of every file name; a line that is none is trouble."""
    table = place.folder / BOXES
    if not table.is_file():
        return {}
    found: dict[str, list[Box]] = {}
    with table.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            try:
                name, left, top, right, bottom = row
                found.setdefault(name, []).append((float(left), float(top), float(right), float(bottom)))
            except ValueError:
                reason = f"expected a name and four numbers, received {','.join(row)[:60]!r}"
                place.trouble.report(BadData(f"{table}:{number}", reason))
    return found


SOURCE = Raw
