"""What a worker does with programs that come and go."""

import pytest

from layermark.backends.null import NullBackend, NullProgram
from layermark.errors import Unsupported
from layermark.session.ranks import refusal
from layermark.spec import Group, Plan, Spec
from layermark.training.update import Update
from layermark.worker.service import Service


def test_a_program_is_closed_once_even_if_the_next_are_refused():
    service, closed = Service(), []
    spec = Spec(workload="dense", backend="null", params={"size": 8}, threads=1)
    service.prepare(spec.to_json())
    service._programs[0].close = lambda: closed.append(1)
    for _ in range(2):
        with pytest.raises(Unsupported):
            service.prepare(spec.replace(mode="train").to_json())
    assert [1] == closed


@pytest.mark.parametrize(("batches", "wanted"), [(1, "reference"), (8, "auto")])
def test_a_copy_has_no_trial_but_runs_as_the_first_does(monkeypatch, batches, wanted):
    asked = []

    def prepare(self, spec, task):
        asked.append(spec.execution)
        return NullProgram(spec, task)

    monkeypatch.setattr(NullBackend, "executions", ("auto", "reference"))
    monkeypatch.setattr(NullBackend, "prepare", prepare)
    service = Service()
    spec = Spec(workload="dense", backend="null", params={"size": 8}, threads=1, batches_per_step=batches)
    service.prepare(spec.to_json())
    service.build_copy()
    assert ["auto", wanted] == asked


def test_a_rank_refuses_what_its_parent_refuses_with_the_same_code_and_words():
    spec = Spec(workload="dense", backend="null", mode="train", params={"size": 8}, threads=2, plan=Plan(replicas=2))
    spec = spec.replace(update=Update(replicas=2))
    group = Group(rank=0, addresses=("127.0.0.1:1", "127.0.0.1:2"))
    with pytest.raises(Unsupported) as refused:
        Service().prepare(spec.to_json(), group.to_json())
    expected = refusal(spec)
    assert ("no_replicas", str(expected)) == (refused.value.code, str(refused.value))
    assert expected.code == refused.value.code and expected.instead == refused.value.instead


def test_norms_in_full_precision_are_torchs_only():
    spec = Spec(workload="dense", backend="null", batch_size=2, threads=1, params={"size": 8}, norms="full")
    with pytest.raises(Unsupported) as refused:
        Service().handle("prepare", {"spec": spec.to_json()})
    assert ("no_full_norms", {"norms": "own"}) == (refused.value.code, refused.value.instead)
