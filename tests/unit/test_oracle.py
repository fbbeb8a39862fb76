"""The oracle as the session sees it: begun ahead, waited for once, and what goes wrong is told to who asks."""

import dataclasses

import pytest

from layermark import cache
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.oracle import Oracle
from layermark.spec import Spec
from layermark.training.mixing import Mixing
from layermark.training.update import Update

from .crew import DEAD, FakeCrew

SPEC = Spec(workload="dense", backend="null", batch_size=4, threads=1, params={"size": 8})
UPDATES = {
    "optimiser": "lars",
    "momentum": 0.5,
    "rmsprop_decay": 0.5,
    "rmsprop_epsilon": 0.5,
    "lars_eeta": 0.5,
    "lars_epsilon": 0.5,
    "lars_skip": ("bias",),
    "weight_decay": 0.5,
    "decay_per": "micro-batch",
    "label_smoothing": 0.5,
    "loss_scaling": 2.0,
    "dynamic_scaling": True,
    "clip_norm": 0.5,
    "accumulation": 2,
    "statistics_per": "update",
    "variable_filter": ("weight",),
    "replicas": 2,
}
MIXING = {"mixup_alpha": 0.5, "cutmix_lambda": 0.5, "cutmix_version": 2, "mixing_place": "host"}


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


def test_two_recipes_never_share_an_answer(oracle, tmp_path):
    """Every option of update, mixing and network is part of the key; what all runtimes share is not."""
    assert UPDATES.keys() == {item.name for item in dataclasses.fields(Update)}
    assert MIXING.keys() == {item.name for item in dataclasses.fields(Mixing)}
    plain = SPEC.replace(workload="resnet8-cifar", params={}, mode="train")
    recipes = [plain, plain.replace(precision="16.32"), plain.replace(workload="resnet20-cifar"), plain.replace(seed=1)]
    recipes += [plain.replace(update=Update(**{name: value})) for name, value in UPDATES.items()]
    recipes += [plain.replace(mixing=Mixing(**{name: value})) for name, value in MIXING.items()]
    found, crew = oracle()
    for spec in recipes:
        found.begin(spec)
        found.settle()
        found.begin(spec.replace(backend="torch", execution="eager", threads=2))
        found.settle()
    paths = [given["path"] for _, given in crew.workers[0].asked]
    assert paths[::2] == paths[1::2] and len(recipes) == len(set(paths))
