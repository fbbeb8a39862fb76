"""One run of `train.py` around its schedule: what is printed and kept whatever goes wrong there."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from layermark.errors import UserError
from layermark.seeds.cnns import train_recipe, train_run
from layermark.store import open_store

from .samples import a_run
from .train_commands import TINY, read


def test_the_figures_are_printed_though_the_store_has_failed(monkeypatch, capsys):
    def full(*_):
        raise UserError("the store is full")

    store = open_store(":memory:")
    request = read(f"{TINY} --no-logs --no-validation")
    outcome = a_run(spec=train_recipe.spec_of(request), item="picture")
    monkeypatch.setattr(store, "append", full)
    monkeypatch.setattr(train_run, "open_store", lambda _: store)
    monkeypatch.setattr(train_run, "_trained", lambda job: (outcome, False))
    with pytest.raises(UserError, match="the store is full"):
        train_run.run(request, "command")
    assert "Summary" in capsys.readouterr().out


def test_what_follows_training_is_told_by_phase(monkeypatch):
    run = a_run(settings={"training": {"excluded_s": {"compile": 1.0}}}, wall_s={"timed": 5.0})
    after = SimpleNamespace(seconds={"validation": 3.0}, found=[], failed=False)
    crew = nullcontext()
    monkeypatch.setattr(train_run, "Crew", lambda: crew)
    for name, found in (("make_readable", None), ("Team", None), ("train", run), ("AfterTraining", after)):
        monkeypatch.setattr(train_run, name, lambda *_, found=found: found)
    monkeypatch.setattr(train_run.Resources, "of", lambda *_, **__: None)
    job = MagicMock(spec_set=["request", "spec", "plan", "folder", "printer", "deadline", "peers"])
    job.plan.restore, job.plan.folder, job.spec, job.request.recorded = None, None, run.spec, {}
    outcome, _ = train_run._trained(job)
    assert {"timed": 5.0, "validation": 3.0} == outcome.wall_s
    assert {"compile": 1.0, "validation": 3.0} == outcome.settings["training"]["excluded_s"]
