"""ImageNet as TFRecords: `train-00000-of-01024`, ... and `validation-00000-of-00128`, ..., read without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.data import example
from layermark.data.base import BadData, Box, Encoded, Place, Sample, Source, listed
from layermark.data.files import file_facts
from layermark.data.records import HEADER, Span, read_record, spans

CLASSES = 1000
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class TfRecords(Source):
    """Records hold labels 1..1000; here they are 0..999."""

    summary = "ImageNet TFRecords, train-*-of-* and validation-*-of-*"
    rank = 1

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """Whether there is a file of the split."""
        return bool(_found(place))

    def __init__(self, place: Place) -> None:
        self._paths = list(map(str, _found(place)))
        if not self._paths:
            raise BadData(place.folder, f"no TFRecords ({place.split}-00000-of-...) found")
        self._places: list[tuple[int, Span]] = []
        for number, path in enumerate(self._paths):
            try:
                # One by one: what stands before the place where a file breaks off is kept.
                for span in spans(path, file_facts(path).st_size):
                    self._places.append((number, span))
            except BadData as problem:
                place.trouble.report(problem)
        if not self._places:
            raise BadData(place.folder, f"no record in the {len(self._paths)} files of split {place.split}")

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> Sample:
        """The record of this number, file by file."""
        number, span = self._places[index]
        path = self._paths[number]
        where = f"{path}: record at byte {span[0] - HEADER}"
        try:
            features = example.decode(read_record(path, span))
        except example.Malformed as error:
            raise BadData(where, f"not a tf.train.Example: {error}") from None
        return Encoded(_jpeg(features, where), _label(features, where), where, _boxes(features, where))

    @property
    def files(self) -> Sequence[Path]:
        """Every file of the split."""
        return list(map(Path, self._paths))


def _found(place: Place) -> list[Path]:
    return listed(place.folder, [f"{place.split}-[0-9]*-of-[0-9]*"])


def _jpeg(features: Mapping[str, Any], where: str) -> bytes:
    found = features.get("image/encoded") or [b""]
    if not isinstance(found[0], bytes) or not found[0]:
        raise BadData(where, "no picture under image/encoded")
    return found[0]


def _label(features: Mapping[str, Any], where: str) -> int:
    found = features.get("image/class/label") or [None]
    if not isinstance(found[0], int) or not 1 <= found[0] <= CLASSES:
        raise BadData(where, f"wrong label {found[0]}: expected image/class/label from 1 to {CLASSES}")
    return found[0] - 1


def _boxes(features: Mapping[str, Any], where: str) -> tuple[Box, ...]:
    sides = [features.get(f"image/object/bbox/{side}", ()) for side in _SIDES]
    if len({len(each) for each in sides}) > 1 or not all(isinstance(value, float) for each in sides for value in each):
        raise BadData(where, "image/object/bbox: expected as many floats under xmin as under ymin, xmax and ymax")
    return tuple(zip(*sides, strict=True))


SOURCE = TfRecords
