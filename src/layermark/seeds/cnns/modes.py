"""The data modes of the PyTorch inference program as calls: what a program of one's own may be fed with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from layermark.data.preprocess import Preprocess
from layermark.errors import unknown
from layermark.seeds.cnns.inference import data_dir
from layermark.seeds.cnns.loading import Reading
from layermark.spec import Loading


@dataclass(frozen=True)
class Mode:
    """What one mode gives: pictures of a shape, sorted into classes."""

    about: str
    shape: tuple[int, int, int] = (3, 224, 224)
    classes: int = 1000


MODES = {
    "real": Mode("JPEGs of the folder images, loaded by other processes"),
    "generated": Mode("one random batch, copied for every batch"),
    "synthetic": Mode("one random batch that stays where it is"),
}


@contextmanager
def batches(mode: str, batch_size: int, folder: str | None = None, workers: int = -1) -> Iterator[Iterator[object]]:
    """Batches of a mode without end, while the `with` block lasts; real ones have `pictures` and `labels`."""
    if mode not in MODES:
        raise unknown("data mode", mode, MODES)
    _, height, width = MODES[mode].shape
    loading = Loading(data_dir=data_dir(folder), source="images", loader_workers=workers) if mode == "real" else None
    reading = Reading(wanted=Preprocess((height, width)), batch=batch_size, loading=loading, copied=mode == "generated")
    with reading.batches() as (stream, _):
        yield stream
