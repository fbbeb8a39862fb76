"""The loader: the same batches with any number of processes, and bad samples named or passed over."""

import os
import signal

import numpy as np
import pytest

from layermark.data.base import BadData, Place
from layermark.data.decode import encode
from layermark.data.loader import loader
from layermark.data.opening import open_source
from layermark.data.order import Order
from layermark.data.pipeline import Pipeline
from layermark.data.preprocess import Preprocess
from layermark.errors import WorkerFailed

COUNT = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        (made / f"{number}.jpg").write_bytes(encode(rng.integers(0, 256, (40, 50, 3), dtype="uint8"), 90))
    return made


def pipeline(folder, *, skip_bad=False, **facts):
    source = open_source("images", Place(folder))
    return Pipeline(source, Order(len(source)), Preprocess((32, 32), **facts), skip_bad=skip_bad)


def taken(made, count):
    return [(batch.pictures.copy(), batch.labels.copy()) for batch in (next(made) for _ in range(count))]


@pytest.mark.parametrize("facts", [{}, {"layout": "NHWC"}, {"dtype": "uint8", "normalise": "none"}])
def test_batches_are_the_same_with_any_number_of_processes(folder, facts):
    alone = taken(loader(pipeline(folder, **facts), 3, workers=0), 5)
    made = loader(pipeline(folder, **facts), 3, workers=2, chunk=2)
    try:
        ahead = taken(made, 5)
    finally:
        made.close()
    assert [list(labels) for _, labels in alone] == [[0, 1, 2], [3, 4, 5], [6, 0, 1], [2, 3, 4], [5, 6, 0]]
    for (a, a_labels), (b, b_labels) in zip(alone, ahead, strict=True):
        assert np.array_equal(a, b) and np.array_equal(a_labels, b_labels)


def test_as_many_processes_load_as_are_asked_for(folder):
    made = loader(pipeline(folder), 2, workers=3)
    try:
        assert [[0, 1], [2, 3], [4, 5], [6, 0]] == [list(labels) for _, labels in taken(made, 4)]
        assert 3 == sum(each.is_alive() for each in made._processes)
    finally:
        made.close()


def test_the_first_batch_can_be_sought_again(folder):
    made = loader(pipeline(folder), 2, workers=2)
    try:
        first = taken(made, 3)
        made.seek(0)
        again = taken(made, 3)
        assert made.counters()["loader_batches"] == 6
    finally:
        made.close()
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=True))


@pytest.fixture
def spoilt(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "4.jpg").write_bytes((folder / "4.jpg").read_bytes()[:400])
    return tmp_path


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_picture_is_named(spoilt, workers):
    made = loader(pipeline(spoilt), 3, workers=workers)
    try:
        assert list(next(made).labels) == [0, 1, 2]
        for _ in range(4):  # nothing is passed over by asking again
            with pytest.raises(BadData, match=f"{spoilt / '4.jpg'}: corrupt JPEG"):
                next(made)
        made.seek(6)
        assert list(next(made).labels) == [6, 0, 1]
    finally:
        made.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_picture_is_passed_over_and_counted(spoilt, workers):
    made = loader(pipeline(spoilt, skip_bad=True), 3, workers=workers)
    try:
        assert [list(labels) for _, labels in taken(made, 3)] == [[0, 1, 2], [3, 5, 5], [6, 0, 1]]
        assert list(made.tally.bad) == [str(spoilt / "4.jpg")]
    finally:
        made.close()


def test_a_folder_of_bad_pictures_ends(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8nothing")
    with pytest.raises(BadData, match="no sample near it is good"):
        next(loader(pipeline(tmp_path, skip_bad=True), 1, workers=0))


def test_a_process_that_dies_is_noticed(folder):
    made = loader(pipeline(folder), 4, workers=1)
    try:
        next(made)
        os.kill(made._processes[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="a loader process was killed by signal SIGKILL"):
            taken(made, 10)
    finally:
        made.close()


def test_stages_are_timed(folder):
    made = loader(pipeline(folder), COUNT, workers=0)
    taken(made, 2)
    assert made.counters()["pictures"] == 2 * COUNT
    assert min(made.counters()[f"{stage}_s"] for stage in ("read", "decode", "preprocess")) > 0
