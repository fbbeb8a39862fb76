"""The oracle as the session sees it: begun ahead, waited for once, and what goes wrong is told to who asks."""

import pytest

from layermark import cache
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.oracle import Oracle
from layermark.spec import Spec

from .crew import DEAD, FakeCrew

SPEC = Spec(workload="dense", backend="null", batch_size=4, threads=1, params={"size": 8})


@pytest.fixture
def oracle(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda name: tmp_path)

    def made(answer=None):
        crew = FakeCrew({"oracle": answer or {}})
        return Oracle(crew, lambda: 1.0), crew

    return made


def written(crew):
    """Write what the worker was asked for, as it would."""
    for _, given in crew.workers[0].asked:
        with open(given["path"], "w"):
            pass


def test_what_was_begun_is_not_computed_again(oracle):
    found, crew = oracle()
    found.begin(SPEC)
    found.begin(SPEC.replace(seed=1))  # one at a time
    written(crew)
    found.settle()
    assert found.answer(SPEC).exists() and found.answer(SPEC.replace(backend="torch")).exists()
    assert ["oracle"] == crew.workers[0].said()


def test_an_answer_waits_for_another_that_was_begun(oracle):
    found, crew = oracle()
    found.begin(SPEC)
    with pytest.raises(FileNotFoundError):  # the worker of this test writes nothing
        found.answer(SPEC.replace(seed=1))
    assert ["oracle", "oracle"] == crew.workers[0].said()


@pytest.mark.parametrize(
    ("failure", "words"), [(DEAD, "the reference could not be computed"), (Unsupported("no"), "no")]
)
def test_what_goes_wrong_is_told_to_who_asks(oracle, failure, words):
    found, crew = oracle(failure)
    found.begin(SPEC)
    found.settle()
    with pytest.raises((WorkerFailed, Unsupported), match=words):
        found.answer(SPEC)
    assert ["oracle"] == crew.workers[0].said()
    assert crew.workers[0].ended == isinstance(failure, WorkerFailed)
