"""A WebDataset: `metadata.json` and tar archives `train-000000.tar`, ..., each sample a few members of one name."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from layermark.data.base import Array, BadData, Box, Encoded, Place, Sample, Source, listed
from layermark.data.files import read_all, read_part
from layermark.data.records import Span

METADATA = "metadata.json"
TENSOR = "pth"
FORMATS = {"img": ("jpg", "jpeg"), "tensor": (TENSOR,)}
"""The kinds of members that a picture may be, by the format that the table of contents names."""


@dataclass(frozen=True)
class Tensor(Encoded):
    """A picture as a saved tensor of bytes, `[3, height, width]`."""

    def decode(self) -> Array:
        """Take the bytes out of the archive."""
        from layermark.data.tensors import picture

        return picture(self.data, self.where)


class WebDataset(Source):
    """Members `NAME.jpg` (or `NAME.pth`) and `NAME.cls`, and `NAME.json` with boxes."""

    summary = "tar archives train-*.tar and validation-*.tar with a metadata.json"
    rank = 3

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """Whether there is a table of contents."""
        return (place.folder / METADATA).is_file()

    def __init__(self, place: Place) -> None:
        self._paths = list(map(str, listed(place.folder, [f"{place.split}-[0-9]*.tar"])))
        facts = _metadata(place.folder / METADATA)
        form = str(facts.get("format", "img"))
        if form not in FORMATS:
            raise BadData(place.folder / METADATA, f"format {form!r}: expected {' or '.join(FORMATS)}")
        self._kinds, self._shaped = FORMATS[form], _cuts(facts, place.split)
        self._samples: list[tuple[int, str, dict[str, Span]]] = []
        for number, path in enumerate(self._paths):
            self._add(number, path, place)
        self._check_length(place, facts.get(f"{place.split}_length"))

    def _add(self, number: int, path: str, place: Place) -> None:
        samples: dict[str, dict[str, Span]] = {}
        try:
            for name, span in _members(path, place):
                stem, _, kind = name.partition(".")
                samples.setdefault(stem, {})[kind.lower()] = span
        except (tarfile.TarError, EOFError, OSError) as error:
            place.trouble.report(BadData(path, f"not a whole tar archive: {error}"))
        for stem, parts in samples.items():
            if not set(parts) & set(self._kinds) or "cls" not in parts:
                reason = f"expected members {self._kinds[0]} and cls, found {sorted(parts)}"
                place.trouble.report(BadData(f"{path}: {stem}", reason))
            else:
                self._samples.append((number, stem, parts))

    def _check_length(self, place: Place, expected: Any) -> None:
        if not self._samples:
            raise BadData(place.folder, f"no sample in the {len(self._paths)} archives of split {place.split}")
        if expected is not None and expected != len(self._samples):
            reason = f"{place.split}_length is {expected}, the archives hold {len(self._samples)} samples"
            place.trouble.report(BadData(place.folder / METADATA, reason))

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, index: int) -> Sample:
        """The sample of this number, archive by archive."""
        number, stem, parts = self._samples[index]
        path = self._paths[number]
        where = f"{path}: {stem}"
        kind = next(kind for kind in self._kinds if kind in parts)
        boxes = _boxes(read_part(path, *parts["json"]), where) if "json" in parts else ()
        made = Tensor if kind == TENSOR else Encoded
        return made(read_part(path, *parts[kind]), self._label(path, parts["cls"], where), where, boxes, self._shaped)

    def _label(self, path: str, span: Span, where: str) -> int:
        text = read_part(path, *span)
        if not text.strip().isdigit() or int(text) >= self.classes:
            raise BadData(where, f"wrong label {text[:20]!r}: expected a whole number below {self.classes}")
        return int(text)

    @property
    def files(self) -> Sequence[Path]:
        """The archives."""
        return list(map(Path, self._paths))


def _members(path: str, place: Place) -> Iterator[tuple[str, Span]]:
    """Name and place of every file in an archive. Nothing is ever unpacked, yet a name that leads out is refused."""
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            parts = PurePosixPath(member.name)
            if parts.is_absolute() or ".." in parts.parts or member.issym() or member.islnk():
                reason = "leads out of the archive" if not (member.issym() or member.islnk()) else "is a link"
                place.trouble.report(BadData(f"{path}: member {member.name!r}", reason))
            elif member.isfile():
                yield member.name, (member.offset_data, member.size)


def _metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_all(str(path)))
    except ValueError as error:
        raise BadData(path, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadData(path, "expected a JSON object")
    return found


def _cuts(facts: dict[str, Any], split: str) -> bool:
    """Whether pictures were cut to size already: the table of contents lists what was done to those of a split."""
    done = [each for name, each in facts.items() if "transform" in name and name.startswith(split)]
    return "crop" in json.dumps(done).lower()


def _boxes(data: bytes, where: str) -> tuple[Box, ...]:
    try:
        found = json.loads(data).get("bbox") or []
        rows = found if found and isinstance(found[0], list) else [found] if found else []
        return tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in rows)
    except (ValueError, TypeError, AttributeError):
        raise BadData(where, "bbox: expected four numbers, or a list of such") from None


SOURCE = WebDataset
