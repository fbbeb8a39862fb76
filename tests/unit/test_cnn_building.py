"""`--compile-only`: the program is built as it would be run, on a crew that only plays its part."""

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from layermark.errors import Unsupported
from layermark.seeds.cnns import building, entry, train_run

from .crew import DEAD, HONEST, FakeCrew
from .train_commands import TINY, read

VALIDATION = Path(__file__).parents[2] / "benchmarks" / "tensorflow_cnns" / "validation.py"
MADE_UP = "--dataset cifar-10 --model-size 8 --synthetic-data --compile-only --no-logs --backend null"


@pytest.fixture
def built(monkeypatch):
    """Type options of `validation.py`; returns its status and the crew that built."""

    def typed(more="", *differences):
        crew = FakeCrew(*differences)
        monkeypatch.setattr(building, "Crew", lambda: nullcontext(crew))
        return entry.validation(VALIDATION, [*MADE_UP.split(), *more.split()]), crew

    return typed


def test_every_replica_is_built(built, capsys):
    status, crew = built("--replicas 2 --threads 2", {}, {"prepare": slow(3.0)})
    assert (0, [["prepare"]] * 2) == (status, [worker.said() for worker in crew.workers])
    assert [1, 1] == [worker.asked[0][1]["spec"]["threads"] for worker in crew.workers]
    assert "Compiled in 3.000 seconds" in capsys.readouterr().out


def test_workers_have_the_variables_of_the_request(built, monkeypatch):
    monkeypatch.setattr("layermark.seeds.device.gpus", lambda: ["4", "5"])
    _, crew = built("--replicas 2 --select-ipu 0")
    assert ["4", "5"] == [variables["CUDA_VISIBLE_DEVICES"] for variables in crew.variables]


def test_a_budget_ends_it(built, capsys):
    status, _ = built("--budget 1ms", {"prepare": lambda: time.sleep(0.01) or DEAD})
    assert 0 == status and "Not built: not measured: the budget was used up" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "status"), [(DEAD, 1), (Unsupported("no such layer"), 0)])
def test_what_cannot_be_built_says_why(built, capsys, answer, status):
    assert status == built("", {"prepare": answer})[0]
    assert f"Not built: {answer}" in capsys.readouterr().out


def test_a_checkpoint_is_made_readable_first(built, monkeypatch):
    seen = []
    monkeypatch.setattr(building, "make_readable", lambda crew, specs, timeout: seen.append(len(crew.workers)))
    built()
    assert [0] == seen


def test_training_is_built_in_the_same_way(monkeypatch, capsys):
    crew = FakeCrew({"prepare": slow(2.0)})
    monkeypatch.setattr(building, "Crew", lambda: nullcontext(crew))
    assert 0 == train_run.compile_only(read(f"{TINY} --compile-only"))
    assert "Compiled in 2.000 seconds" in capsys.readouterr().out and ["prepare"] == crew.workers[0].said()


def slow(seconds):
    return {**HONEST["prepare"], "timings_s": {**HONEST["prepare"]["timings_s"], "compile": seconds}}
