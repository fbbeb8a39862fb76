"""Outcomes as JSON: lossless, versioned, and readable in every later release."""

import dataclasses
import json
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermark import stats
from layermark.errors import UserError
from layermark.outcome import SCHEMA_VERSION, Block, Diagnostic, Failed, Skipped, from_json, to_json

from .samples import VERIFIED, a_run, a_spec

RECORDED = Path(__file__).parent.parent / "data"


NOTE = Diagnostic("steal", "the hypervisor stole")


def through_json(outcome):
    return from_json(json.loads(json.dumps(to_json(outcome))))


@pytest.mark.parametrize(
    "outcome",
    [
        a_run(),
        a_run(verified=None, ceiling=None, blocks=(), faults=(NOTE,), warnings=(NOTE,), clock="null"),
        a_run(settings=MappingProxyType({"execution": "eager"})),
        a_run(spec=a_spec(params={"kernel_size": (3, 5)})),
        a_run(precision_goal=None),
        Skipped(spec=a_spec(), reason="no", code="cell", instead={"cell": "loop"}),
        Failed(spec=a_spec(), reason="crashed", log="last\nlines"),
    ],
)
def test_outcomes_survive_json(outcome):
    assert outcome == through_json(outcome)


times = st.lists(st.integers(0, 2**62), max_size=8).map(tuple)
context = st.dictionaries(st.sampled_from(["steal_s", "cpu_s"]), st.floats(0, 1e9))


@given(
    st.lists(st.builds(Block, calls=st.integers(1, 9), batches=st.integers(1, 9), samples_ns=times, context=context))
)
@settings(max_examples=30, deadline=None)
def test_blocks_survive_json(blocks):
    run = a_run(blocks=tuple(blocks))
    assert run == through_json(run)


def test_the_version_is_written():
    assert SCHEMA_VERSION == to_json(a_run())["schema"]


def test_a_newer_version_is_refused():
    with pytest.raises(UserError, match="upgrade"):
        from_json({**to_json(a_run()), "schema": SCHEMA_VERSION + 1})


def test_outcomes_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_run().clock = "other"


def test_every_version_has_a_recorded_sample():
    for version in range(1, SCHEMA_VERSION + 1):
        assert version == json.loads((RECORDED / f"outcome_v{version}.json").read_text())["schema"]


def test_the_recorded_sample_of_version_1_still_loads():
    run = from_json(json.loads((RECORDED / "outcome_v1.json").read_text()))
    assert ("lstm", "torch", {"hidden_size": 64}) == (run.spec.workload, run.spec.backend, dict(run.spec.params))
    assert (6, 4, 2e-6) == (len(run.blocks), run.items_per_batch, run.verified.max_error)
    assert VERIFIED == run.verified


def test_warnings_of_version_1_had_no_codes():
    doc = json.loads((RECORDED / "outcome_v1.json").read_text()) | {"warnings": ["words"]}
    assert (Diagnostic("", "words"),) == from_json(doc).warnings


def test_the_recorded_sample_of_version_2_still_loads():
    run = from_json(json.loads((RECORDED / "outcome_v2.json").read_text()))
    assert (Diagnostic("steal", "the hypervisor stole 0.2 s"),) == run.warnings
    assert ((10_000_000, 12_000_000),) == run.blocks[0].ranks_ns
    assert (None, 2) == (run.precision_goal, run.spec.plan.replicas)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_the_recorded_sample_still_gives_its_numbers(version):
    recorded = json.loads((RECORDED / f"outcome_v{version}.json").read_text())
    document = stats.document(from_json(recorded), session="s")
    assert ("ok", "sequences/s") == (document["status"], document["throughput"]["unit"])
    assert 4 / 0.010005 == pytest.approx(document["throughput"]["value"])
