"""A WebDataset: `metadata.json` and tar archives `train-000000.tar`, ..., each sample a few members of one name."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from layermark.data.base import BadData, Box, Encoded, Place, Sample, Source, listed
from layermark.data.files import read_all, read_part
from layermark.data.records import Span

METADATA = "metadata.json"
_PICTURES = ("jpg", "jpeg")


class WebDataset(Source):
    """Members `NAME.jpg` and `NAME.cls`, and `NAME.json` with boxes."""

    summary = "tar archives train-*.tar and validation-*.tar with a metadata.json"
    rank = 3

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """Whether there is a table of contents."""
        return (place.folder / METADATA).is_file()

    def __init__(self, place: Place) -> None:
        self._paths = list(map(str, listed(place.folder, [f"{place.split}-[0-9]*.tar"])))
        facts = _metadata(place.folder / METADATA)
        if facts.get("format", "img") != "img":
            raise BadData(place.folder / METADATA, f"format {facts['format']!r} is not read; expected img (JPEGs)")
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
            if not set(parts) & set(_PICTURES) or "cls" not in parts:
                place.trouble.report(BadData(f"{path}: {stem}", f"expected members jpg and cls, found {sorted(parts)}"))
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
        picture = next(parts[kind] for kind in _PICTURES if kind in parts)
        boxes = _boxes(read_part(path, *parts["json"]), where) if "json" in parts else ()
        return Encoded(read_part(path, *picture), self._label(path, parts["cls"], where), where, boxes)

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


def _boxes(data: bytes, where: str) -> tuple[Box, ...]:
    try:
        found = json.loads(data).get("bbox") or []
        rows = found if found and isinstance(found[0], list) else [found] if found else []
        return tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in rows)
    except (ValueError, TypeError, AttributeError):
        raise BadData(where, "bbox: expected four numbers, or a list of such") from None


SOURCE = WebDataset
