"""`--data real`, as typed."""

CONV = ("conv", "--channel-size", 3, "--input-height", 32, "--input-width", 32, "--filter-number", 4, "--batch-size", 2)
QUICK = ("--time-box", "500ms", "--block", "50ms")


def test_pictures_are_found_in_images_and_the_result_is_proven(layermark, pictures):
    done = layermark("run", *CONV, "--backend", "torch", "--data", "real", "--json", "--execution", "eager", *QUICK)
    (document,) = done.documents
    assert (0, "ok", True) == (done.status, document["status"], document["verified"]["ok"]), document["reason"]
    assert document["spec"]["data"] == "real"


def test_a_corrupt_picture_fails_by_name_or_is_passed_over(layermark, pictures):
    bad = pictures / "1.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    typed = ("run", *CONV, "--backend", "null", "--data", "real", "--json", *QUICK)
    done = layermark(*typed)
    (document,) = done.documents
    assert (1, "failed") == (done.status, document["status"])
    assert f"{bad.relative_to(pictures.parent)}: corrupt JPEG" in document["reason"]
    assert layermark(*typed, "--skip-bad").documents[0]["status"] == "ok"


def test_a_folder_without_pictures_is_a_wrong_request(layermark, tmp_path):
    done = layermark("run", *CONV, "--backend", "null", "--data", "real", "--data-dir", tmp_path)
    assert (2, 1) == (done.status, done.stderr.count("\n")) and str(tmp_path) in done.stderr
