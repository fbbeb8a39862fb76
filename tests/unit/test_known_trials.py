"""Trials that are not made again: what an earlier one chose for the same spec on the same machine."""

import pytest

from layermark import environment, stats
from layermark.axes import complete
from layermark.outcome import Failed
from layermark.session import run_session
from layermark.session.known_trials import KnownTrials
from layermark.spec import Protocol, Spec
from layermark.store import open_store

from .samples import a_run, a_spec

SPEC = a_spec()
TRIED = {"execution": "compile", "execution_trial": "eager 10/s, compile 20/s"}


@pytest.fixture
def store():
    with open_store(":memory:") as opened:
        yield opened


def keep(store, session, *, spec=SPEC, settings=TRIED, machine=None, **changes):
    record = environment.record() | (machine or {})
    mark = environment.fingerprint(record)
    kept = {"command": "", "specs": [spec], "protocol": Protocol(), "environment": record, "fingerprint": mark}
    store.begin(session, **kept)
    run = a_run(spec=spec, settings=settings, **changes)
    store.append(session, run, stats.document(run, session=session))


def test_the_newest_trial_of_the_same_measurement_chooses(store):
    keep(store, "s1", settings=TRIED | {"execution": "eager"})
    keep(store, "s2")
    found = KnownTrials(store, Protocol()).choose(SPEC, time_to_try=False)
    assert ("compile", "s2") == (found.runs.execution, found.session)
    run = found.outcome(a_run(spec=found.runs, settings={"execution": "compile"}))
    assert SPEC == run.spec and "known" == run.settings["execution_choice"] and not run.warnings
    assert "known from session s2: eager 10/s, compile 20/s" == run.settings["execution_trial"]


@pytest.mark.parametrize(
    "kept",
    [
        {"machine": {"versions": {"torch": "0.1"}}},
        {"machine": {"cpu": "another"}},
        {"spec": a_spec(batch_size=8)},
        {"settings": {"execution": "compile"}},
        {"settings": TRIED | {"execution_choice": "known"}},
        {"verified": a_run().verified.__class__(ok=False, max_error=1.0, tolerance=0.1, against="x")},
    ],
    ids=["version", "machine", "spec", "no trial", "no trial of its own", "failed"],
)
def test_other_trials_say_nothing(store, kept):
    keep(store, "s1", **kept)
    assert SPEC == KnownTrials(store, Protocol()).choose(SPEC, time_to_try=True).runs


def test_a_fresh_trial_and_a_typed_execution_ask_nobody(store):
    keep(store, "s1")
    assert SPEC == KnownTrials(store, Protocol(trial="fresh")).choose(SPEC, time_to_try=True).runs
    typed = SPEC.replace(execution="eager")
    assert typed == KnownTrials(store, Protocol()).choose(typed, time_to_try=True).runs


@pytest.mark.parametrize(("backend", "execution"), [("torch", "compile"), ("tensorflow", "auto"), ("jax", "auto")])
def test_a_word_that_does_not_say_how_several_batches_are_run_is_not_enough(store, backend, execution):
    spec = a_spec(backend=backend, batches_per_step=10)
    keep(store, "s1", spec=spec)
    assert execution == KnownTrials(store, Protocol()).choose(spec, time_to_try=True).runs.execution


def test_without_a_trial_and_without_time_the_plain_execution_runs(store):
    found = KnownTrials(store, Protocol()).choose(SPEC, time_to_try=False)
    assert "eager" == found.runs.execution and "no_trial" == found.outcome(a_run(spec=found.runs)).warnings[-1].code


def test_a_choice_that_does_not_run_says_how_to_try_again(store):
    keep(store, "s1")
    found = KnownTrials(store, Protocol()).choose(SPEC, time_to_try=True)
    told = found.outcome(Failed(spec=found.runs, reason="died", code="died"))
    assert SPEC == told.spec and "--trial fresh" in told.reason and "died" == told.code


def test_a_session_hands_the_known_execution_to_its_worker(store):
    spec = complete(Spec(workload="dense", backend="null", batch_size=2, threads=1, params={"size": 8}))
    keep(store, "s1", spec=spec, settings={"execution": "reference", "execution_trial": "reference 10/s"})
    (document,) = run_session([spec], Protocol(block=0.02), store=store)
    assert "ok" == document["status"] and "auto" == document["spec"]["execution"]
    assert "known" == document["settings"]["execution_choice"]
    (document,) = run_session([spec], Protocol(block=0.02, trial="fresh"), store=store)
    assert "execution_choice" not in document["settings"]
