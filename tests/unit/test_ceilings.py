"""Which runtimes probe for whom, and that the best probe counts."""

import pytest

from layermark.backends.base import backend
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch import ceilings
from layermark.launch.ceilings import Ceilings, probing_backends
from layermark.spec import Spec


@pytest.fixture(autouse=True)
def all_installed(monkeypatch):
    for name in ("torch", "onnxruntime"):
        monkeypatch.setattr(type(backend(name)), "installed", True)


def names(runtime, *among):
    found = probing_backends(Spec(workload="dense", backend=runtime), {runtime, *among})
    return {each.name for each in found}


@pytest.mark.parametrize(
    ("runtime", "among", "expected"),
    [
        ("torch", (), {"torch"}),
        ("jax", ("torch",), {"torch"}),
        ("onnxruntime", (), {"torch", "onnxruntime"}),
        ("jax", ("onnxruntime",), {"torch", "onnxruntime"}),
        ("null", ("torch",), {"null"}),
    ],
)
def test_the_runtimes_of_the_group_have_a_say(runtime, among, expected):
    assert expected == names(runtime, *among)


def test_whoever_can_probes_where_the_usual_one_is_missing(monkeypatch):
    monkeypatch.setattr(type(backend("torch")), "installed", False)
    assert {"onnxruntime"} == names("jax")
    monkeypatch.setattr(type(backend("onnxruntime")), "installed", False)
    with pytest.raises(Unsupported, match="no installed runtime"):
        names("jax")


class Hired:
    """A worker that answers as it was told to."""

    def __init__(self, answer):
        self.answer = answer

    def call(self, do, timeout, **given):
        return {}

    def begin(self, do, **given):
        assert do in ("probe", "ceiling")


class Staff:
    """A crew that hires by the runtime's name."""

    def __init__(self, **answers):
        self.answers = answers

    def hire(self, environment):
        return Hired(self.answers[environment["runtime"]])

    def others(self, *workers):
        return []

    def dismiss(self, worker):
        pass


@pytest.fixture
def read(monkeypatch):
    monkeypatch.setattr(ceilings, "worker_environment", lambda spec: {"runtime": spec.backend})

    def together(workers, timeout):
        for worker in workers:
            if isinstance(worker.answer, Exception):
                raise worker.answer
        return [worker.answer for worker in workers]

    monkeypatch.setattr(ceilings, "await_all", together)

    def reading(copies=1, **answers):
        spec = Spec(workload="dense", backend="onnxruntime")
        return Ceilings(Staff(**answers), lambda: 1.0).reading(spec, 1024, 0.1, copies)

    return reading


def test_the_best_of_every_probe_counts(read):
    torch, onnxruntime = {"flops_per_s": 3.0, "bytes_per_s": 1.0}, {"flops_per_s": 2.0, "bytes_per_s": 5.0}
    assert {"flops_per_s": 3.0, "bytes_per_s": 5.0} == read(torch=torch, onnxruntime=onnxruntime)


def test_copies_are_added_up(read):
    one = {"flops_per_s": 3.0, "bytes_per_s": 1.0}
    assert {"flops_per_s": 9.0, "bytes_per_s": 3.0} == read(copies=3, torch=one, onnxruntime=one)


def test_a_probe_that_fails_leaves_the_word_to_the_others(read):
    torch = {"flops_per_s": 3.0, "bytes_per_s": 1.0}
    assert torch == read(torch=torch, onnxruntime=WorkerFailed("gone"))
    with pytest.raises(WorkerFailed, match="gone"):
        read(torch=WorkerFailed("gone"), onnxruntime=WorkerFailed("gone"))
