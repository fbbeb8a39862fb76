"""Whole profiles: measured, kept, shown again, and a trace that a browser draws."""

import json
import threading

import pytest

from browser import Browser
from layermark.backends.base import backend
from layermark.report.trace import faults, server

QUICK = ("--execution", "auto", "--block", "20ms", "--time-box", "1s", "--threads", "1", "--batch-size", "2")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A command line that has profiled a small network on ONNX Runtime, and what it printed."""
    from conftest import CommandLine

    if not backend("onnxruntime").installed:
        pytest.skip("needs onnxruntime")
    layermark = CommandLine(tmp_path_factory.mktemp("profiled"))
    finished = layermark("profile", "resnet8-cifar", "--backend", "onnxruntime", *QUICK)
    assert 0 == finished.status, finished.stdout + finished.stderr
    return layermark, finished


def trace_of(layermark):
    (path,) = (layermark.folder / "layermark-profiles").glob("*.trace.json")
    return path


def test_the_table_says_where_the_time_goes(profiled):
    _, finished = profiled
    for words in (
        "of ceiling",
        "layer1/0/conv1",
        "sum of operators",
        "beside the timed step",
        "profiler",
        "tied to nodes",
    ):
        assert words in finished.stdout


def test_the_profile_is_part_of_the_stored_document(profiled):
    layermark, _ = profiled
    (document,) = layermark.kept()
    found = document["profile"]
    assert "layermark profile" in document["command"] and 0.95 <= found["tied"]
    assert pytest.approx(1.0) == sum(row["share"] for row in found["operators"])
    assert pytest.approx(found["sum_s"] / found["step_s"] - 1) == found["gap"]
    assert (abs(found["gap"]) > 0.1) == ("gap" in [each["code"] for each in found["insights"]])
    raw = json.loads(trace_of(layermark).with_name(trace_of(layermark).name.replace("trace", "profile")).read_text())
    assert len(raw["operators"]) == len(found["operators"])


def test_show_and_report_have_it(profiled):
    layermark, _ = profiled
    assert "sum of operators" in layermark("show").stdout
    assert 0 == layermark("report", "-o", "page.html").status
    assert "layer1/0/conv1, layer1/0/bn1" in (layermark.folder / "page.html").read_text()


def test_a_runtime_without_a_profiler_keeps_its_result(layermark):
    finished = layermark("run", "dense", "--size", "8", "--backend", "null", "--block", "20ms", "--profile", "--json")
    (document,) = finished.documents
    assert ("ok", None) == (document["status"], document["profile"]) and "no_profile" in document["warning_codes"]


def test_a_folder_that_cannot_be_is_refused_before_anything_is_measured(layermark):
    (layermark.folder / "file").touch()
    refused = layermark("profile", "dense", "--backend", "null", "--profile-dir", "file/below")
    assert (2, 1) == (refused.status, len(refused.stderr.splitlines()))
    assert "--profile-dir file/below" in refused.stderr and not (layermark.folder / "results.db").exists()


def test_the_trace_is_drawn_without_a_word_to_anybody(profiled):
    path = trace_of(profiled[0])
    assert [] == list(faults(json.loads(path.read_text())))
    with server(path) as serving, Browser() as browser:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_port}/"
        browser.size(1000, 600)
        browser.open(address)
        browser.wait("document.getElementById('about').textContent.includes('spans in')")
        assert [] == browser.complaints()
        assert all(each.startswith((address, "data:")) for each in browser.requests())
        painted = "new Set(pen.getImageData(0, 0, canvas.width, canvas.height).data).size"
        assert 10 < browser.evaluate(painted)
        browser.evaluate("zoomed(0.5, end / 2)")
        assert browser.evaluate("to - from < 0.51 * end")
        serving.shutdown()
