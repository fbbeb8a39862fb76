"""What a network is fed with under `--data real`."""

import numpy as np
import pytest

from layermark.axes import expand
from layermark.data.base import BadData
from layermark.data.decode import encode
from layermark.errors import UserError
from layermark.spec import Group, Plan
from layermark.training.mixing import Mixing
from layermark.worker.picture_task import fed_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(5):
        (made / f"{number}.jpg").write_bytes(encode(rng.integers(0, 256, (40, 50, 3), dtype="uint8"), 90))
    return made


def fed(folder, workload="resnet18", **values):
    typed = {"backend": "null", "data": "real", "data_dir": str(folder), "loader_workers": "0", "batch_size": "2"}
    if workload == "resnet18":
        typed["image_size"] = "32"
    return fed_task(expand([workload], typed | values).only())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_reference_sees_the_pictures_that_the_program_sees(folder, layout, workers):
    task = fed(folder, mode="train", loader_workers=workers)
    task.stream.start(layout)
    try:
        for index in range(4):
            taken, known = task.stream.take(), task.batch(index)
            assert list(taken) == list(known) and set(task.graph.inputs) == set(known)
            assert all(np.array_equal(taken[name], known[name]) for name in known)
        task.stream.rewind()
        assert np.array_equal(task.stream.take()["x"], task.batch(0)["x"])
    finally:
        task.stream.close()


def test_pictures_without_classes_have_their_numbers_as_labels(folder):
    assert [2, 3] == list(fed(folder, mode="train").batch(1)["target"])
    assert [0, 1] == list(fed(folder, mode="train", classes="2").batch(1)["target"])


def test_a_network_that_normalises_is_sent_bytes_or_shares(folder):
    plain, shares, whole = (fed(folder, pictures=kind).batch(0)["x"] for kind in ("8-bit", "float", "normalised"))
    assert (plain.dtype, shares.dtype) == (np.uint8, np.float32)
    assert np.allclose(plain / 255, shares, atol=1e-6)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    assert np.allclose((shares - mean[:, None, None]) / deviation[:, None, None], whole, atol=1e-5)
    assert np.array_equal(plain, fed(folder, normalise="none").batch(0)["x"])


def test_a_label_beyond_the_classes_of_the_network_is_named(tmp_path):
    for name in "abc":
        (tmp_path / "validation" / name).mkdir(parents=True)
        (tmp_path / "validation" / name / "1.jpg").write_bytes(encode(np.zeros((40, 40, 3), "uint8"), 90))
    with pytest.raises(BadData, match=f"{tmp_path}: wrong label 2: input target of the network takes 0 to 1"):
        fed(tmp_path, mode="train", classes="2").batch(1)


def test_what_takes_no_pictures_is_refused(folder):
    with pytest.raises(UserError, match="lstm: --data real feeds pictures"):
        fed(folder, "lstm")


def test_an_empty_folder_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match=f"resnet18: {tmp_path}: no pictures"):
        fed(tmp_path)


def test_counters_tell_what_loading_took(folder):
    task = fed(folder, skip_bad="on")
    task.stream.start("NCHW")
    task.stream.take()
    found = task.stream.counters()
    assert (2, 1, 0) == (found["pictures"], found["loader_batches"], found["bad"])


MIXED = {"mode": "train", "batch_size": "3", "ring": "2", "block_survival_prob": "0.5", "dropout_rate": "0.5"}


def masked(folder, ranks, workers="0"):
    """What every rank of replicas is fed with: masks of dropout and stochastic depth, mixup and cutmix."""
    typed = {"backend": "null", "data": "real", "data_dir": str(folder), "image_size": "32", "loader_workers": workers}
    spec = expand(["efficientnet-cifar"], typed | MIXED).only()
    spec = spec.replace(mixing=Mixing(mixup_alpha=0.4, cutmix_lambda=0.5), plan=Plan(replicas=ranks))
    places = [Group(rank=rank, addresses=("127.0.0.1:1",) * ranks) if ranks > 1 else None for rank in range(ranks)]
    return [fed_task(spec, place) for place in places]


def assert_same(expected, found):
    assert expected.keys() == found.keys()
    assert [] == [name for name in expected if not np.array_equal(expected[name], found[name])]


@pytest.mark.parametrize("ranks", [2, 3])
def test_replicas_together_see_the_masks_and_the_mixing_of_one_process(folder, ranks):
    (alone,) = masked(folder, 1)
    together = masked(folder, ranks)
    assert any("mask" in name for name in alone.graph.inputs)
    for number in range(3 * ranks):
        assert_same(alone.batch(number), together[number % ranks].batch(number // ranks))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_streams_of_replicas_go_on_with_the_masks_of_one_process(folder, workers):
    (alone,) = masked(folder, 1)
    together = masked(folder, 2, workers)
    try:
        for task in together:
            task.stream.start("NCHW")
        for number in range(4):
            assert_same(alone.batch(number), together[number % 2].stream.take())
        kept = together[0].stream.position
        for task in together:
            task.stream.take()
            task.stream.seek(kept)
        for number in range(4, 8):
            assert_same(alone.batch(number), together[number % 2].stream.take())
    finally:
        for task in together:
            task.stream.close()


def test_replicas_go_on_where_another_number_of_them_stopped(folder):
    (alone,) = masked(folder, 1)
    alone.stream.start("NCHW")
    for _ in range(3):
        alone.stream.take()
    together = masked(folder, 2)
    for number, task in enumerate(together, 3):
        task.stream.start("NCHW")
        task.stream.seek(alone.stream.position)
        assert_same(alone.batch(number), task.stream.take())
