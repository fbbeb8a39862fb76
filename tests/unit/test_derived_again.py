"""Whatever a document needs is stored: derived again from the store it is the same, for every kind of session."""

import pytest

from layermark import stats
from layermark.errors import Unsupported
from layermark.session import compare, gate
from layermark.session.budget import ProfileRequest, StepPlan
from layermark.session.fixed_steps import StepListener, measure_fixed_steps
from layermark.session.head_to_head import finish_starts
from layermark.session.team import Team
from layermark.session.training import TrainingListener, TrainingPlan, train
from layermark.session.until_settled import measure_until_settled
from layermark.session.writer import SessionWriter
from layermark.spec import Plan, Protocol, Spec
from layermark.store import open_store
from layermark.training.lengths import Lengths
from layermark.training.schedule import Constant, LearningRate

from .crew import DEAD, HONEST, WRONG, a_block, resources
from .test_peers import Instance
from .test_peers import measured as measured_with_instances
from .test_profile_facts import operator
from .test_schedules import Crowd

SPEC = Spec(workload="dense", backend="null", batch_size=4, threads=1, params={"size": 8})
NETWORK = SPEC.replace(workload="resnet8-cifar", params={}, batch_size=2)
LENGTHS = Lengths(micro_batch=4, accumulation=2, replicas=1, pictures=80, epochs=1, logs_per_epoch=5)
PROFILE = {"files": [], "batches": 2, "pass_s": 0.02, "operators": [operator(0.015)], "memory": {}}
PROTOCOL = Protocol(min_blocks=3)
UNEVEN = {"measure": [{**HONEST["measure"], **a_block((each,) * 5)} for each in (10, 11, 10, 12, 10)]}


@pytest.fixture(autouse=True)
def _plenty_of_memory(monkeypatch):
    from layermark.devices import cpu

    monkeypatch.setattr(cpu, "free_memory", lambda: 1 << 40)


def run(spec=SPEC, *differences, **more):
    shared = resources(*differences)
    return measure_until_settled([Team(spec, shared)], PROTOCOL, shared.deadline, box_s=0.0, **more)


def stepped(spec, *differences, **plan):
    shared = resources(*differences)
    whole = StepPlan(**{"steps": 3, "batches": 5, **plan})
    return [measure_fixed_steps(Team(spec, shared), whole, shared.deadline, StepListener())]


def cnn_inference(folder, _):
    profile = ProfileRequest(folder=folder, name="x")
    accuracy = {"against": "labels", "items": 10, "relative_error": None, "top1_agreement": 0.3}
    told = {"prepare": {**HONEST["prepare"], "accuracy": accuracy}, "profile": PROFILE}
    return stepped(NETWORK, told, warm_up=True, dropped=1, scored=2, latencies=True, profile=profile)


def training():
    shared = resources({"facts": {"memory": {"peak_rss_bytes": 5}, "environment": {"cpu": "fake"}}})
    rate = LearningRate(peak=1.0, schedule=Constant(), total=LENGTHS.target, epochs=1.0)
    team = Team(NETWORK.replace(mode="train"), shared)
    return [train(team, TrainingPlan(lengths=LENGTHS, rate=rate), shared.deadline, TrainingListener())]


def instances():
    other = Instance(step={"block": a_block((12,)), "began_ns": 0})
    found = measured_with_instances(other)
    other.peers.end(0)
    assert other.ended()
    return [found]


def profiled(folder, _):
    shared = resources({"profile": PROFILE})
    object.__setattr__(shared, "profiles", folder)
    (found,) = measure_until_settled([Team(SPEC, shared)], PROTOCOL, shared.deadline, box_s=0.0)
    assert found.profile
    return [found]


def kept_of(schedule, monkeypatch):
    """The outcomes of the starts that a schedule is about to finish."""
    found = []
    monkeypatch.setattr(schedule, "finish_starts", lambda *given: found.extend(finish_starts(*given)) or found)
    return found


def compared(_, monkeypatch):
    """The starts of a comparison, which keeps none of them itself."""
    found = kept_of(compare, monkeypatch)
    Crowd(monkeypatch)
    compare.compare_settings(SPEC, SPEC.replace(execution="other"), Protocol(), starts=3, budget_s=0.1)
    return found


def gated(_, monkeypatch):
    found = kept_of(gate, monkeypatch)
    Crowd(monkeypatch, *[{}, {}, {"measure": a_block((20,) * 10)}] * 3)
    side = gate.Side(spec=SPEC)
    gate.gate_sides(side, side, Protocol(), 0.03, rounds=5, budget_s=0.1)
    return found


KINDS = {
    "run": lambda *_: run(),
    "run of what is uneven": lambda *_: run(SPEC, UNEVEN),
    "run of replicas": lambda *_: run(SPEC.replace(threads=2, plan=Plan(replicas=2))),
    "run without a ceiling": lambda *_: run(ceilings=False),
    "run that fails": lambda *_: run(SPEC, {"measure": DEAD}),
    "run that is wrong": lambda *_: run(SPEC, {"verify": [HONEST["verify"], WRONG]}),
    "run that is skipped": lambda *_: run(SPEC, {"prepare": Unsupported("no", instead={"cell": "loop"})}),
    "seed script of a layer": lambda *_: stepped(SPEC, dropped=1),
    "CNN inference": cnn_inference,
    "training": lambda *_: training(),
    "instances": lambda *_: instances(),
    "profile": profiled,
    "compare": compared,
    "gate": gated,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_that_is_derived_again_is_the_same(kind, tmp_path, monkeypatch):
    outcomes = KINDS[kind](tmp_path, monkeypatch)
    assert outcomes
    for number, outcome in enumerate(outcomes):
        with open_store(str(tmp_path / f"{number}.db")) as store:
            writer = SessionWriter(store, [outcome.spec], PROTOCOL, command="typed")
            writer.append(outcome)
            with monkeypatch.context() as later:
                later.setattr(stats, "DERIVED_VERSION", stats.DERIVED_VERSION + 1)
                assert writer.documents == store.documents(writer.id)
