"""ImageNet-shaped data sets of any size, made from a few pictures: for tests, first steps and measuring loaders."""

from __future__ import annotations

import io
import itertools
import json
import math
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from layermark.data import example
from layermark.data.base import Array, Box
from layermark.data.decode import encode
from layermark.data.files import made_folder, written
from layermark.data.patterns import marked
from layermark.data.preprocess import resized, sample_box
from layermark.data.records import write_records
from layermark.data.sources.raw import BOXES
from layermark.data.sources.webdataset import METADATA
from layermark.errors import UserError
from layermark.laws import random_generator
from layermark.options import integer, option
from layermark.spec import DATA_SPLITS

# Sizes that are common in ImageNet, as (height, width).
SIZES = ((375, 500), (333, 500), (500, 375), (500, 333), (500, 500), (400, 500))
_BOXES = (0, 1, 1, 1, 2)
"""How many boxes a picture may have: in ImageNet, some have none and some several."""
_BOX_SIDES = (0.3, 0.8)
"""The least and the largest side of a box, as a share of the picture's."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to make."""

    count: int = option(1024, parse=integer(1), axis=False, help="pictures")
    format: str = option("tfrecord", choices=("tfrecord", "webdataset", "raw"), axis=False, help="form of the data set")
    split: str = option("validation", choices=DATA_SPLITS, axis=False, help="which split they are")
    content: str = option(
        "photographs",
        choices=("photographs", "classes"),
        axis=False,
        help="random parts of photographs, whatever their label; or with an object of the class, to learn from",
    )
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
    boxes: Sequence[Box]

    @property
    def stem(self) -> str:
        """Its name without ending."""
        return f"ILSVRC2012_made_{self.number:08d}"


def make(folder: Path, recipe: Recipe, photographs: Sequence[Array], step: Callable[[], None] = lambda: None) -> int:
    """Write a data set into a folder and return how many bytes its pictures have. `step` is called for each.

    Raise `UserError` if the folder holds other files of the split, which would become part of the set, or is full.
    """
    made_folder(folder)
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
    rng, label = random_generator(recipe.seed, "made", number), number % recipe.classes
    picture = photographs[number % len(photographs)]
    height, width = SIZES[int(rng.integers(len(SIZES)))]
    part = resized(picture, (height, width), sample_box(picture.shape[:2], (), rng))
    pixels = part[:, ::-1] if rng.random() < 0.5 else part
    boxes = _boxes(recipe, number)
    if recipe.content == "classes":
        pixels = marked(pixels, label, boxes[0], rng)
    return Made(number, label, encode(pixels, recipe.quality), height, width, boxes)


def _boxes(recipe: Recipe, number: int) -> list[Box]:
    """Where the objects of a picture are said to be; one that shows its class has one."""
    rng = random_generator(recipe.seed, "boxes", number)
    count = 1 if recipe.content == "classes" else int(rng.choice(_BOXES))
    return [_box(rng) for _ in range(count)]


def _box(rng: np.random.Generator) -> Box:
    (width, height), (across, down) = rng.uniform(*_BOX_SIDES, 2), rng.random(2)
    left, top = across * (1 - width), down * (1 - height)
    return float(left), float(top), float(left + width), float(top + height)


def _files(recipe: Recipe, most: int) -> tuple[int, int]:
    """How many files, and how many pictures go into each."""
    files = min(recipe.files or math.ceil(recipe.count / most), recipe.count)
    return files, math.ceil(recipe.count / files)


def _write_tfrecords(folder: Path, recipe: Recipe, pictures: Iterator[Made]) -> None:
    files, each = _files(recipe, 128)
    paths = [folder / f"{recipe.split}-{number:05d}-of-{files:05d}" for number in range(files)]
    _refuse_others(folder, f"{recipe.split}-[0-9]*-of-[0-9]*", paths)
    for path in paths:
        write_records(path, map(_example, itertools.islice(pictures, each)))


def _refuse_others(folder: Path, pattern: str, paths: Sequence[Path]) -> None:
    others = sorted({*folder.glob(pattern)} - {*paths})
    if others:
        raise UserError(f"{folder}: {others[0].name} is there already and would be mixed in; give an empty folder")


def _example(made: Made) -> bytes:
    sides = (
        dict(zip(("xmin", "ymin", "xmax", "ymax"), zip(*made.boxes, strict=True), strict=True)) if made.boxes else {}
    )
    return example.encode(
        {
            **{f"image/object/bbox/{name}": values for name, values in sides.items()},
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
            "image/object/bbox/label": [made.label + 1] * len(made.boxes),
        }
    )


def _write_webdataset(folder: Path, recipe: Recipe, pictures: Iterator[Made]) -> None:
    files, each = _files(recipe, 1024)
    paths = [folder / f"{recipe.split}-{number:06d}.tar" for number in range(files)]
    _refuse_others(folder, f"{recipe.split}-[0-9]*.tar", paths)
    for path in paths:
        with written(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for made in itertools.islice(pictures, each):
                _add_sample(archive, made)
    facts = {f"{split}_length": recipe.count if split == recipe.split else 0 for split in DATA_SPLITS}
    facts |= _known(folder / METADATA, recipe.split)
    rest = {"format": "img", "shuffle": False, "seed": recipe.seed, "image_quality": recipe.quality}
    with written(folder / METADATA) as file:
        file.write((json.dumps(facts | rest, indent=2) + "\n").encode())


def _known(path: Path, split: str) -> dict[str, int]:
    """The lengths of the other splits, if there are some already."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    return {f"{other}_length": found.get(f"{other}_length", 0) for other in DATA_SPLITS if other != split}


def _add_sample(archive: tarfile.TarFile, made: Made) -> None:
    facts = json.dumps({"bbox": list(map(list, made.boxes))}).encode()
    for kind, data in (("jpg", made.data), ("cls", str(made.label).encode()), ("json", facts)):
        member = tarfile.TarInfo(f"{made.number:08d}.{kind}")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


def _write_raw(folder: Path, recipe: Recipe, pictures: Iterator[Made]) -> None:
    """Class folders; the table of boxes is that of the training set, the only one that uses them."""
    rows = []
    for made in pictures:
        place = made_folder(folder / recipe.split / f"n{made.label:08d}")
        with written(place / f"{made.stem}.JPEG") as file:
            file.write(made.data)
        rows += [",".join(map(str, (f"{made.stem}.JPEG", *box))) for box in made.boxes]
    if recipe.split == "train":
        with written(folder / BOXES) as file:
            file.write("".join(f"{row}\n" for row in rows).encode())


_WRITERS: dict[str, Callable[[Path, Recipe, Iterator[Made]], None]] = {
    "tfrecord": _write_tfrecords,
    "webdataset": _write_webdataset,
    "raw": _write_raw,
}
