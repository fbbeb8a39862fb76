"""What a comparison group concludes from its blocks, without starting anything."""

import pytest

from layermark.axes import complete
from layermark.outcome import Block
from layermark.session.group import admitted, needed_bytes, over_budget, thread_faults, unsettled
from layermark.spec import Spec

SPEC = Spec(workload="dense", backend="null", batch_size=1, threads=1, params={"size": 8})


def context(busy, cpu_s):
    """Of one second on a mask of two."""
    return {"busy_threads": busy, "cpu_s": cpu_s, "wall_s": 1.0, "cpus": 2}


@pytest.mark.parametrize(
    ("seen", "budget", "over"),
    [
        (context(1.0, 1.0), 1, False),
        (context(1.5, 1.4), 1, True),
        (context(1.5, 1.0), 1, False),
        (context(2.3, 1.9), 2, False),
        (context(2.9, 1.9), 2, True),
        (context(2.9, 1.2), 2, False),  # other programs had the rest
        ({}, 1, False),
    ],
)
def test_more_threads_than_the_budget_are_noticed(seen, budget, over):
    assert over == over_budget(seen, budget)


def test_one_odd_block_is_no_fault():
    good, odd = (Block(calls=1, batches=1, samples_ns=(1,), context=context(each, each)) for each in (1.0, 2.0))
    assert [] == thread_faults(SPEC, [good, good, odd])
    assert ["keeps 2.0 threads busy on a budget of 1"] == thread_faults(SPEC, [good, odd, odd])


def test_what_does_not_fit_into_memory_is_not_started(monkeypatch):
    from layermark.devices import cpu

    other = SPEC.replace(seed=1)
    monkeypatch.setattr(cpu, "free_memory", lambda: int(1.5 * needed_bytes(SPEC)))
    outcomes = {}
    assert [SPEC] == admitted([SPEC, other], outcomes)
    assert "MiB are free" in outcomes[other.key].reason


def test_memory_is_estimated_by_what_a_runtime_makes_of_the_weights() -> None:
    spec = complete(Spec(workload="resnet50", backend="torch"))
    weights = 4 * 25_610_152
    assert needed_bytes(spec.replace(backend="tensorflow")) - needed_bytes(spec) == 32 * weights
    assert 4 * weights < needed_bytes(spec) < 1.5 * 2**30


@pytest.mark.parametrize(
    ("readings", "share", "again"),
    [(1, 0.99, False), (39, 1.01, True), (40, 1.01, False), (7, 100.0, True), (8, 100.0, False)],
)
def test_the_ceiling_is_read_again_before_a_rate_is_called_impossible(readings, share, again):
    assert again == unsettled(readings, share)
