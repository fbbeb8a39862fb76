"""A folder of pictures without classes: the sample pictures of the PyTorch programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from layermark.data.base import BadData, Encoded, Place, Sample, Source, listed
from layermark.data.files import read_all

PATTERNS = ("*.jpg", "*.jpeg", "*.JPG", "*.JPEG")


class Images(Source):
    """JPEGs by name; the label of a picture is its number."""

    summary = "a folder of JPEGs without classes"
    labelled = False

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """Whether there is a picture."""
        return bool(listed(place.folder, PATTERNS))

    def __init__(self, place: Place) -> None:
        self._paths = list(map(str, listed(place.folder, PATTERNS)))
        if not self._paths:
            raise BadData(place.folder, f"no picture (*.jpg) found; fill it with: layermark data images {place.folder}")

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> Sample:
        """The file of this number."""
        path = self._paths[index]
        return Encoded(read_all(path), index % self.classes, path)

    @property
    def files(self) -> Sequence[Path]:
        """Every picture."""
        return list(map(Path, self._paths))


SOURCE = Images
