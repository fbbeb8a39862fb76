"""CIFAR-shaped data sets of any size, with classes that a network can learn: for tests and first steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from layermark.data.files import made_folder, written
from layermark.data.opening import DATASETS
from layermark.data.patterns import small_picture
from layermark.data.sources.cifar import SIDE
from layermark.laws import random_generator
from layermark.options import integer, option

_TRAINING_FILES = 5
_FINE_IN_COARSE = 5
"""CIFAR-100 has five classes in each of its twenty groups."""


@dataclass(frozen=True, kw_only=True)
class SmallRecipe:
    """What to make."""

    classes: str = option("10", choices=("10", "100"), axis=False, help="CIFAR-10 or CIFAR-100")
    train: int = option(5000, parse=integer(1), axis=False, help="pictures to train with")
    test: int = option(1000, parse=integer(1), axis=False, help="pictures to validate with")
    seed: int = option(42, parse=integer(0), axis=False, help="of what differs from picture to picture")

    @property
    def folder(self) -> str:
        """The well-known name of the folder that such a set lies in."""
        return DATASETS[f"cifar-{self.classes}"]


def make_small(folder: Path, recipe: SmallRecipe, step: Callable[[], None] = lambda: None) -> Path:
    """Write both splits and return the folder that holds them. `step` is called for every picture."""
    place = made_folder(folder if folder.name == recipe.folder else folder / recipe.folder)
    for name, split, numbers in _files(recipe):
        with written(place / name) as file:
            for number in numbers:
                file.write(_record(recipe, split, number))
                step()
    return place


def _files(recipe: SmallRecipe) -> Iterator[tuple[str, str, range]]:
    """Every file: its name, its split, and the pictures in it. The real CIFAR-10 has five for training as well."""
    if recipe.classes == "100":
        yield "train.bin", "train", range(recipe.train)
        yield "test.bin", "test", range(recipe.test)
        return
    bounds = [recipe.train * each // _TRAINING_FILES for each in range(_TRAINING_FILES + 1)]
    for number in range(_TRAINING_FILES):
        yield f"data_batch_{number + 1}.bin", "train", range(bounds[number], bounds[number + 1])
    yield "test_batch.bin", "test", range(recipe.test)


def _record(recipe: SmallRecipe, split: str, number: int) -> bytes:
    label = number % int(recipe.classes)
    pixels = small_picture(label, SIDE, random_generator(recipe.seed, "small", split, number))
    labels = [label] if recipe.classes == "10" else [label // _FINE_IN_COARSE, label]
    return bytes(labels) + pixels.transpose(2, 0, 1).tobytes()
