"""From the options of a measurement to the batches that a network is fed with."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from layermark.data.base import Place, Source, Trouble
from layermark.data.opening import default_folder, open_source
from layermark.data.order import Order
from layermark.data.pipeline import Pipeline
from layermark.data.preprocess import Preprocess
from layermark.spec import Loading

_MOST_WORKERS = 32


def opened(loading: Loading) -> tuple[Source, Trouble, Path]:
    """The data set that these options name, what was bad about it, and where it is."""
    folder = Path(loading.data_dir) if loading.data_dir else default_folder()
    trouble = Trouble(skip=loading.skip_bad)
    return open_source(loading.source, Place(folder, loading.split, trouble)), trouble, folder


def worker_count(loading: Loading) -> int:
    """How many processes load."""
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0))) if loading.loader_workers < 0 else loading.loader_workers


def pipeline_of(source: Source, loading: Loading, preprocess: Preprocess, seed: int = 0) -> Pipeline:
    """What fills rows of a batch."""
    order = Order(len(source), shuffle=loading.shuffle, seed=seed)
    return Pipeline(source, order, preprocess, skip_bad=loading.skip_bad, cache=loading.data_cache)


def fingerprint(source: Source) -> str:
    """A short name of the files behind a source, as they are now."""
    digest = hashlib.sha256()
    for path in source.files:
        facts = path.stat()
        digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
