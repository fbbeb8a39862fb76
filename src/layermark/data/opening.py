"""Which kind of data set a folder holds."""

from __future__ import annotations

import os
from pathlib import Path

from layermark import registry
from layermark.data.base import Place, Source
from layermark.errors import UserError, unknown

AUTO = "auto"
DATASETS = {"imagenet": "imagenet-data", "cifar-10": "cifar-10-batches-bin", "cifar-100": "cifar-100-binary"}
"""Well-known sets, and the folder that each may lie in, anywhere below the one that was named."""
NESTED = tuple(DATASETS.values())
VARIABLES = ("DATASETS_DIR", "DATA_DIR")
HERE = ("images", "data/images", "../data/images")


def open_source(name: str, place: Place) -> Source:
    """The data set in a folder, or in a well-known folder below it; `auto` looks what it is."""
    if not place.folder.is_dir():
        raise UserError(f"{place.folder}: no such folder; give the folder that holds the data with --data-dir")
    if name != AUTO:
        found = kind(name)
        return found(next((each for each in _places(place) if found.recognises(each)), place))
    for each in _places(place):
        for found in sorted(map(kind, registry.modules("sources")), key=lambda source: -source.rank):
            if found.recognises(each):
                return found(each)
    raise UserError(
        f"{place.folder}: no pictures and no data set of split {place.split} found here; "
        f"layermark data images {place.folder} puts sample pictures there"
    )


def dataset_folder(folder: Path, dataset: str) -> Path:
    """Return where a set of `DATASETS` lies: in its well-known folder below this one, else in this one itself.

    A folder may hold several sets; `open_source` with `auto` would take the first.
    """
    if dataset not in DATASETS:
        raise unknown("data set", dataset, DATASETS)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder that holds the data with --data-dir")
    return next((path for path in sorted(folder.rglob(DATASETS[dataset])) if path.is_dir()), folder)


def kind(name: str) -> type[Source]:
    """The kind of source of this name."""
    found: type[Source] = registry.find("sources", name).SOURCE
    return found


def default_folder() -> Path:
    """Where data are looked for when no folder is named: `$DATASETS_DIR`, `$DATA_DIR`, then `images`."""
    named = [Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)]
    present = [path for path in map(Path, HERE) if path.is_dir()]
    return next(iter(named + present), Path(HERE[0]))


def _places(place: Place) -> list[Place]:
    below = [path for name in NESTED for path in sorted(place.folder.rglob(name)) if path.is_dir()]
    return [Place(folder, place.split, place.trouble) for folder in [place.folder, *below]]
