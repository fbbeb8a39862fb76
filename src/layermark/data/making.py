"""ImageNet-shaped data sets of any size, made from a few pictures: for tests, trials and measuring loaders."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from layermark.data import example
from layermark.data.base import Array
from layermark.data.decode import encode
from layermark.data.preprocess import resized, sample_box
from layermark.data.records import write_records
from layermark.data.sources.webdataset import METADATA
from layermark.errors import UserError
from layermark.laws import stream
from layermark.options import integer, option
from layermark.spec import SPLITS

# Sizes that are common in ImageNet, as (height, width).
SIZES = ((375, 500), (333, 500), (500, 375), (500, 333), (500, 500), (400, 500))
_BOX = (0.2, 0.2, 0.8, 0.8)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to make."""

    count: int = option(1024, parse=integer(1), axis=False, help="pictures")
    format: str = option("tfrecord", choices=("tfrecord", "webdataset", "raw"), axis=False, help="form of the data set")
    split: str = option("validation", choices=SPLITS, axis=False, help="which split they are")
    files: int = option(0, parse=integer(1), axis=False, help="files to spread them over (default: 128 pictures each)")
    classes: int = option(1000, parse=integer(1), axis=False, help="labels go round among so many classes")
    quality: int = option(95, parse=integer(1), axis=False, help="of the JPEGs")
    seed: int = option(42, parse=integer(0), axis=False, help="of the parts that are cut out of the pictures")

    def __post_init__(self) -> None:
        if self.quality > 100:
            raise UserError(f"--quality {self.quality}: expected 1 to 100")


@dataclass(frozen=True)
class Made:
    """One picture of the new data set."""

    number: int
    label: int
    data: bytes
    height: int
    width: int

    @property
    def stem(self) -> str:
        """Its name without ending."""
        return f"ILSVRC2012_made_{self.number:08d}"


def make(folder: Path, recipe: Recipe, photographs: Sequence[Array], step: Callable[[], None] = lambda: None) -> int:
    """Write a data set into a folder; answers how many bytes its pictures have. `step` is called for each."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0

    def counted() -> Iterator[Made]:
        nonlocal total
        for number in range(recipe.count):
            made = _made(number, recipe, photographs)
            total += len(made.data)
            step()
            yield made

    _WRITERS[recipe.format](folder, recipe, counted())
    return total


def _made(number: int, recipe: Recipe, photographs: Sequence[Array]) -> Made:
    """A random part of one of the pictures, at a size that is common, maybe flipped."""
    rng = stream(recipe.seed, "made", number)
    picture = photographs[number % len(photographs)]
    height, width = SIZES[int(rng.integers(len(SIZES)))]
    part = resized(picture, (height, width), sample_box(picture.shape[:2], (), rng))
    pixels = part[:, ::-1] if rng.random() < 0.5 else part
    return Made(number, number % recipe.classes, encode(pixels, recipe.quality), height, width)


def _files(recipe: Recipe, most: int) -> tuple[int, int]:
    """How many files, and how many pictures go into each."""
    files = min(recipe.files or math.ceil(recipe.count / most), recipe.count)
    return files, math.ceil(recipe.count / files)


def _write_tfrecords(folder: Path, recipe: Recipe, pictures: Iterator[Made]) -> None:
    files, each = _files(recipe, 128)
    left = recipe.count
    for number in range(files):
        path = folder / f"{recipe.split}-{number:05d}-of-{files:05d}"
        count = min(each, left)
        left -= write_records(path, (_example(next(pictures)) for _ in range(count)))


def _example(made: Made) -> bytes:
    left, top, right, bottom = _BOX
    return example.encode(
        {
            "image/encoded": [made.data],
            "image/format": [b"JPEG"],
            "image/colorspace": [b"RGB"],
            "image/channels": [3],
            "image/height": [made.height],
            "image/width": [made.width],
            "image/filename": [f"{made.stem}.JPEG".encode()],
            "image/class/label": [made.label + 1],
            "image/class/synset": [f"n{made.label:08d}".encode()],
            "image/class/text": [f"class {made.label}".encode()],
            "image/object/bbox/xmin": [left],
            "image/object/bbox/ymin": [top],
            "image/object/bbox/xmax": [right],
            "image/object/bbox/ymax": [bottom],
            "image/object/bbox/label": [made.label + 1],
        }
    )


def _write_webdataset(folder: Path, recipe: Recipe, pictures: Iterator[Made]) -> None:
    files, each = _files(recipe, 1024)
    left = recipe.count
    for number in range(files):
        count = min(each, left)
        left -= count
        with tarfile.open(folder / f"{recipe.split}-{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for _ in range(count):
                _add_sample(archive, next(pictures))
    facts = {f"{split}_length": recipe.count if split == recipe.split else 0 for split in SPLITS}
    facts |= _known(folder / METADATA, recipe.split)
    rest = {"format": "img", "shuffle": False, "seed": recipe.seed, "image_quality": recipe.quality}
    (folder / METADATA).write_text(json.dumps(facts | rest, indent=2) + "\n", encoding="utf-8")


def _known(path: Path, split: str) -> dict[str, int]:
    """The lengths of the other splits, if there are some already."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    return {f"{other}_length": found.get(f"{other}_length", 0) for other in SPLITS if other != split}


def _add_sample(archive: tarfile.TarFile, made: Made) -> None:
    facts = json.dumps({"bbox": list(_BOX)}).encode()
    for kind, data in (("jpg", made.data), ("cls", str(made.label).encode()), ("json", facts)):
        member = tarfile.TarInfo(f"{made.number:08d}.{kind}")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


def _write_raw(folder: Path, recipe: Recipe, pictures: Iterator[Made]) -> None:
    for made in pictures:
        place = folder / recipe.split / f"n{made.label:08d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{made.stem}.JPEG").write_bytes(made.data)


_WRITERS: dict[str, Callable[[Path, Recipe, Iterator[Made]], None]] = {
    "tfrecord": _write_tfrecords,
    "webdataset": _write_webdataset,
    "raw": _write_raw,
}
