"""What real data cost, from three runs."""

import pytest

from layermark.outcome import Block, Run
from layermark.spec import Spec
from layermark.stats import ladder


def run(batch_ns, **context):
    blocks = tuple(Block(calls=1, batches=1, samples_ns=(batch_ns,) * 4, context=context) for _ in range(4))
    facts = {"settings": {}, "environment": {}, "timings_s": {}, "memory": {}}
    return Run(spec=Spec(workload="conv", backend="torch"), items_per_batch=2, item="picture", blocks=blocks, **facts)


def test_what_is_lost_is_split_as_the_loader_spent_its_time():
    real = run(100_000_000, read_s=1.0, decode_s=6.0, preprocess_s=3.0)
    found = ladder({"synthetic": run(50_000_000), "generated": run(60_000_000), "real": real})
    expected = {"read": 0.04, "decode": 0.24, "preprocess": 0.12, "copy": 0.1}
    assert {name: pytest.approx(share) for name, share in expected.items()} == found.lost
    assert found.total == pytest.approx(0.5)


def test_a_loader_that_is_hidden_costs_nothing():
    real = run(99_000_000, read_s=1.0, decode_s=6.0, preprocess_s=3.0)
    found = ladder({"synthetic": run(100_000_000), "generated": run(100_000_000), "real": real})
    assert {"read": 0, "decode": 0, "preprocess": 0, "copy": 0} == found.lost
