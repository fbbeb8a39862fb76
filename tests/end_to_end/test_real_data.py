"""`--data real`, as typed."""

import numpy as np
import pytest

from layermark.data.decode import encode

CONV = ("conv", "--channel-size", 3, "--input-height", 32, "--input-width", 32, "--filter-number", 4, "--batch-size", 2)
QUICK = ("--time-box", "500ms", "--block", "50ms")


@pytest.fixture
def folder(tmp_path):
    made, rng = tmp_path / "images", np.random.default_rng(0)
    made.mkdir()
    for number in range(5):
        (made / f"{number}.jpg").write_bytes(encode(rng.integers(0, 256, (40, 50, 3), dtype="uint8"), 90))
    return made


def test_pictures_are_found_in_images_and_the_result_is_proven(layermark, folder):
    done = layermark("run", *CONV, "--backend", "torch", "--data", "real", "--json", "--execution", "eager", *QUICK)
    (document,) = done.documents
    assert (0, "ok", True) == (done.status, document["status"], document["verified"]["ok"]), document["reason"]
    assert document["spec"]["data"] == "real"


def test_a_corrupt_picture_fails_by_name_or_is_passed_over(layermark, folder):
    bad = folder / "1.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    typed = ("run", *CONV, "--backend", "null", "--data", "real", "--json", *QUICK)
    done = layermark(*typed)
    (document,) = done.documents
    assert (1, "failed") == (done.status, document["status"])
    assert f"{bad.relative_to(folder.parent)}: corrupt JPEG" in document["reason"]
    assert layermark(*typed, "--skip-bad").documents[0]["status"] == "ok"


def test_a_folder_without_pictures_is_a_wrong_request(layermark, tmp_path):
    done = layermark("run", *CONV, "--backend", "null", "--data", "real", "--data-dir", tmp_path)
    assert (2, 1) == (done.status, done.stderr.count("\n")) and str(tmp_path) in done.stderr


def test_the_ladder_names_and_sizes_a_slow_decode_and_a_slow_copy(layermark, folder):
    typed = ("--data-dir", folder, "--source", "slow_pictures", "--loader-workers", 0, "--backend", "slow_copy")
    quick = ("--time-box", "2s", "--block", "200ms")
    done = layermark("data", "ladder", *CONV, *typed, *quick, "--json")
    assert done.status == 0, done.stderr
    (found,) = done.documents
    # Ten milliseconds for each of the two pictures, and ten for the copy of both.
    batch_s = 2 / found["items_per_s"]["real"]
    assert found["lost"]["decode"] == pytest.approx(0.02 / batch_s, rel=0.1)
    assert found["lost"]["copy"] == pytest.approx(0.01 / batch_s, rel=0.1)
    assert found["lost"]["read"] + found["lost"]["preprocess"] < 0.05
