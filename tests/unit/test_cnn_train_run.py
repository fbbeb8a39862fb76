"""One run of `train.py` around its schedule: what is printed and kept whatever goes wrong there."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from layermark.errors import UserError
from layermark.outcome import Failed
from layermark.seeds.cnns import train_recipe, train_run
from layermark.session.training import NOT_FINITE
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


@pytest.mark.parametrize(
    ("code", "saved", "words", "told"),
    [
        ("wrong_request", True, "", "; go on from ckpt-20 with --restore-path runs"),
        ("died", True, "", "; go on from ckpt-20 with --restore-path runs"),
        (NOT_FINITE, True, "", ""),  # it would only diverge again
        ("died", False, "", ""),
        ("died", True, "--no-logs", ""),
    ],
)
def test_what_ends_a_run_says_how_to_go_on_from_its_last_checkpoint(
    monkeypatch, tmp_path, capsys, code, saved, words, told
):
    def ends(team, plan, deadline, printer):
        if saved:
            printer.saved(Path("ckpt/ckpt-20.json"), 20, 1.0)
        return Failed(spec=team.spec, reason="the data are gone", code=code)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_run, "train", ends)
    request = read(f"{TINY} --no-validation --logs-path runs --store {tmp_path / 'kept.db'} {words}")
    assert 1 == train_run.run(request, "command")
    assert f"FAILED: the data are gone{told}\n" in capsys.readouterr().out


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
