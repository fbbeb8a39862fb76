"""One run of `train.py` around its schedule: what is printed and kept whatever goes wrong there."""

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
