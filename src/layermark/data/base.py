"""What a source is: numbered samples that any process can read in any order."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from layermark.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[float, float, float, float]
"""Where an object is: left, top, right and bottom as shares of the picture."""

INSTALL = "pip install 'layermark[data]'"


class BadData(UserError):
    """A file, or a place in one, that is not what it should be."""

    def __init__(self, where: str | Path, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = str(where), reason

    def __reduce__(self) -> tuple[type[BadData], tuple[str, str]]:
        return BadData, (self.where, self.reason)


class Trouble:
    """What was found to be bad: the end of the matter, or with `skip` something to count and pass over."""

    def __init__(self, *, skip: bool) -> None:
        self.skip = skip
        self.found: dict[str, str] = {}

    def report(self, problem: BadData) -> None:
        """Raise the problem, or count it once."""
        if not self.skip:
            raise problem
        self.found[problem.where] = problem.reason


class Sample(ABC):
    """One picture before it is decoded."""

    label: int
    where: str
    boxes: Sequence[Box] = ()
    shaped: bool = False
    """Whether it was cut and resized when the data set was made: at the size asked for it is fed as it is."""

    @abstractmethod
    def decode(self) -> Array:
        """The picture as uint8 `[height, width, 3]`, or `BadData`."""


@dataclass(frozen=True)
class Encoded(Sample):
    """A JPEG (or whatever else Pillow reads)."""

    data: bytes
    label: int
    where: str
    boxes: Sequence[Box] = ()
    shaped: bool = False

    def decode(self) -> Array:
        """Decompress it."""
        from layermark.data.decode import decode

        return decode(self.data, self.where)


@dataclass(frozen=True)
class Pixels(Sample):
    """A picture that was never compressed."""

    pixels: Array
    label: int
    where: str
    boxes: Sequence[Box] = ()

    def decode(self) -> Array:
        """As it is."""
        return self.pixels


@dataclass(frozen=True)
class Place:
    """Where the samples are: a folder, which split of it, and whether bad ones are passed over."""

    folder: Path
    split: str = "validation"
    trouble: Trouble = field(default_factory=lambda: Trouble(skip=False))


class Source(ABC):
    """A data set. It is opened once and sent to the processes that read it, so it holds places, not data."""

    summary: ClassVar[str]
    rank: ClassVar[int] = 0
    """When a folder's kind is guessed, sources of a higher rank are asked first."""
    whole: ClassVar[bool] = False
    """Whether pictures are fed as they are, without resizing and cropping (small ones, as CIFAR's)."""
    labelled: ClassVar[bool] = True
    """Whether samples have classes; where they have none, their numbers stand in."""
    classes: int = 1000

    @classmethod
    @abstractmethod
    def recognises(cls, place: Place) -> bool:
        """Whether a folder looks like this kind of data set."""

    @abstractmethod
    def __init__(self, place: Place) -> None:
        """Find the samples."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, index: int) -> Sample:
        """Fetch a sample, or raise `BadData`."""

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The files behind it, in order."""


def needed(module: str) -> ModuleType:
    """Import a package of the `data` extra, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"reading pictures needs {error.name}; install it with: {INSTALL}") from None


def listed(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Files of a folder whose names match, sorted; `UserError` if it is no folder that can be read."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder that holds the data with --data-dir")
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
