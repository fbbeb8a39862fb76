"""`perf/scale.py`: a row that cannot be measured is named, and the others go on."""

import importlib.util
from pathlib import Path

import pytest

from layermark.errors import WorkerFailed

PERF = Path(__file__).parents[2] / "perf"


@pytest.fixture
def scale(monkeypatch):
    """The program, which finds its neighbours in its folder."""
    monkeypatch.syspath_prepend(str(PERF))
    found = importlib.util.spec_from_file_location("perf_scale", PERF / "scale.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("error", [RuntimeError("not verified"), WorkerFailed("died"), SystemExit("ended")])
def test_the_next_runtime_is_measured_where_one_fails(scale, monkeypatch, capsys, error):
    asked = []

    def measure(backend, model, _):
        asked.append(backend)
        if backend == "openvino":
            raise error
        return True

    monkeypatch.setattr(scale, "measure_row", measure)
    monkeypatch.setattr(scale, "measure_bubble", lambda *_: True)
    monkeypatch.setattr("sys.argv", ["scale.py", "--rows", "copies,bubble", "--models", "resnet50"])
    assert 1 == scale.main()
    assert list(scale.RUNTIMES) == asked
    assert [f"openvino resnet50: FAILED, {error}", "failed: openvino resnet50"] == capsys.readouterr().out.splitlines()


def test_rows_that_all_reach_their_goals_are_status_0(scale, monkeypatch, capsys):
    monkeypatch.setattr(scale, "measure_bubble", lambda *_: True)
    monkeypatch.setattr("sys.argv", ["scale.py", "--rows", "bubble"])
    assert 0 == scale.main() and "" == capsys.readouterr().out
