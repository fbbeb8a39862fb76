"""`--precision int8` as typed: groups of its own, what was lost in document and table, skips elsewhere."""

import pytest

from layermark.backends.base import backend

pytestmark = pytest.mark.skipif(not backend("onnxruntime").installed, reason="onnxruntime is not installed")


def test_int8_says_what_it_lost_and_is_skipped_where_nothing_quantises(layermark):
    sizes = ("--size", 64, "--batch-size", 8, "--precision", "int8", "--backend", "onnxruntime,null")
    done = layermark("run", "dense", *sizes, "--json", "--time-box", "300ms", "--block", "50ms")
    whole, other = done.documents
    assert (0, "ok", "skipped") == (done.status, whole["status"], other["status"]), whole["reason"]
    assert (64, True) == (whole["accuracy"]["items"], 0 < whole["accuracy"]["relative_error"] < 0.08)
    assert other["accuracy"]["items"] is None
    assert "int8" == whole["settings"]["compute_type"]
    assert not whole["impossible"] and whole["ceiling"]["probe"] == "onnxruntime int8"


def test_int8_is_not_compared_with_floats(layermark):
    done = layermark("compare", "dense --precision 32.32", "dense --precision int8", "--backend", "onnxruntime")
    assert (2, 1) == (done.status, done.stderr.count("\n")) and "what was lost" in done.stderr
