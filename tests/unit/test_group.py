"""What a comparison group concludes from its blocks, without starting anything."""

import pytest

from layermark.axes import complete
from layermark.outcome import Block
from layermark.session.group import admitted, needed_bytes, over_budget, thread_faults
from layermark.spec import Spec

SPEC = Spec(workload="dense", backend="null", batch_size=1, threads=1, params={"size": 8})


def busy(threads, cpu_s, cpus):
    """A context of one second of wall time."""
    return {"busy_threads": threads, "cpu_s": cpu_s, "wall_s": 1.0, "cpus": cpus}


@pytest.mark.parametrize(
    ("context", "over"),
    [
        (busy(1, 1.0, 2), False),
        (busy(2, 1.9, 2), True),
        (busy(2, 1.0, 2), False),  # two threads that take turns
        (busy(3, 2.0, 2), True),
    ],
)
def test_a_second_thread_counts_unless_it_takes_turns(context, over):
    assert over == over_budget(context, 1)


def test_with_a_mask_as_narrow_as_the_budget_the_threads_alone_tell():
    assert over_budget(busy(3, 2.0, 2), 2)


def test_one_odd_block_is_no_fault():
    good, odd = (Block(calls=1, batches=1, samples_ns=(1,), context=each) for each in (busy(1, 1, 2), busy(2, 2, 2)))
    assert [] == thread_faults(SPEC, [good, good, odd])
    assert ["uses 2 threads on a budget of 1"] == thread_faults(SPEC, [good, odd, odd])


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
