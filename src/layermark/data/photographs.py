"""Real photographs without a network: those that scikit-image's wheel carries, with where each comes from."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from layermark.data.base import INSTALL, Array, needed
from layermark.data.decode import encode
from layermark.data.files import made_folder, written
from layermark.errors import UserError

ORIGINS_FILE = "ORIGINS.txt"
QUALITY = 95
_SHORT_SIDE = 400
"""Larger photographs are made smaller, since those of ImageNet seldom are."""


@dataclass(frozen=True)
class Photograph:
    """A picture in scikit-image's data folder, and what its documentation says about it."""

    file: str
    what: str
    origin: str

    @property
    def name(self) -> str:
        """The name without its ending."""
        return Path(self.file).stem


# Only those whose origin and freedom scikit-image's own documentation (skimage.data) states.
PHOTOGRAPHS = (
    Photograph("astronaut.png", "the astronaut Eileen Collins", "NASA Great Images database, public domain"),
    Photograph("brick.png", "a brick wall", "CC0Textures Bricks25, CC0"),
    Photograph("camera.png", "a camera on a tripod", "Lav Varshney, CC0"),
    Photograph("chelsea.png", "the cat Chelsea", "Stefan van der Walt, CC0"),
    Photograph("clock_motion.png", "a clock, blurred", "Stefan van der Walt, public domain"),
    Photograph("coffee.png", "a cup of coffee", "Rachel Michetti, courtesy of Pikolo Espresso Bar, CC0"),
    Photograph("coins.png", "Greek coins from Pompeii", "Brooklyn Museum Collection, no known copyright restrictions"),
    Photograph("grass.png", "grass", "DeviantArt, linolafett, Grass 01, CC0"),
    Photograph("gravel.png", "gravel", "CC0Textures Gravel04, CC0"),
    Photograph("hubble_deep_field.jpg", "the Hubble eXtreme Deep Field", "NASA, HubbleSite, public domain"),
    Photograph("ihc.png", "stained colonic glands", "CMMI, no known copyright restrictions"),
    Photograph("retina.jpg", "a human retina", "Mikael Haggstrom, Wikimedia Commons, CC0"),
    Photograph("rocket.jpg", "the launch of a Falcon 9", "SpaceX Photos, public domain"),
)


def photographs() -> Iterator[tuple[Photograph, Array]]:
    """Every photograph as uint8 `[height, width, 3]`, at most 400 pixels on its short side."""
    image = needed("PIL.Image")
    folder = _folder()
    for each in PHOTOGRAPHS:
        with image.open(folder / each.file) as opened:
            picture = opened.convert("RGB")
        shrink = min(1.0, _SHORT_SIDE / min(picture.size))
        if shrink < 1:
            width, height = (round(side * shrink) for side in picture.size)
            picture = picture.resize((width, height), image.Resampling.LANCZOS)
        yield each, np.asarray(picture)


def write_photographs(folder: Path) -> list[Path]:
    """Write them as JPEGs, with a file that says where they come from; return the pictures written."""
    made_folder(folder)
    paths = []
    for each, pixels in photographs():
        paths.append(folder / f"{each.name}.jpg")
        with written(paths[-1]) as file:
            file.write(encode(pixels, QUALITY))
    with written(folder / ORIGINS_FILE) as file:
        file.write(origins().encode())
    return paths


def origins() -> str:
    """Where the photographs come from."""
    head = f"Photographs from scikit-image {_version()} (skimage/data), which states these origins:"
    return "\n".join([head, "", *(f"{each.name}.jpg: {each.what}; {each.origin}" for each in PHOTOGRAPHS), ""])


def _folder() -> Path:
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        raise UserError(
            f"the sample photographs are those of scikit-image, which is missing; install it with: {INSTALL}"
        )
    return Path(found.origin).parent / "data"


def _version() -> str:
    return importlib.metadata.version("scikit-image")
