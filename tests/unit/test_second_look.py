"""What a budget has left at the end goes to the widest intervals, with a crew that only plays its part."""

import pytest

from layermark import stats
from layermark.axes import complete
from layermark.outcome import Diagnostic, Failed, Run, Skipped
from layermark.session import run as run_module
from layermark.session import run_session, until_settled
from layermark.session.deadline import Deadline
from layermark.session.failure import BUDGET
from layermark.session.known_trials import Choice
from layermark.session.listener import Listener
from layermark.session.run import Interrupted
from layermark.session.second_look import Measured, look_again
from layermark.session.shares import Shares
from layermark.session.writer import SessionWriter
from layermark.spec import Protocol, Spec
from layermark.store import open_store

from .crew import DEAD, HONEST, WRONG, Clock, a_block, resources
from .samples import a_run, blocks_of

SPEC = Spec(workload="dense", backend="null", threads=1, params={"size": 8})
FIRST, SECOND = (complete(SPEC.replace(batch_size=size)) for size in (4, 8))
NOISY = {"measure": [{**HONEST["measure"], **a_block((each,) * 5)} for each in (10, 90) * 50]}
ONE_S = Protocol(time_box=1.0, min_blocks=3)


class Told(Listener):
    def __init__(self):
        self.documents = []

    def finished(self, document):
        self.documents.append(document)


@pytest.fixture(autouse=True)
def _plenty_of_memory(monkeypatch):
    from layermark.devices import cpu

    monkeypatch.setattr(cpu, "free_memory", lambda: 1 << 40)


@pytest.fixture
def session(monkeypatch):
    """Measures two groups within a budget; blocks take as long as their samples say."""

    def measured(*differences, budget_s=60.0, clock=None, **more):
        shared = resources(*differences, clock=clock or Clock(), budget_s=budget_s)
        crew = shared.crew
        monkeypatch.setattr(type(crew), "__enter__", lambda self: self, raising=False)
        monkeypatch.setattr(type(crew), "__exit__", lambda *_: None, raising=False)
        monkeypatch.setattr(run_module, "Crew", lambda: crew)
        monkeypatch.setattr(run_module, "Deadline", lambda _: shared.deadline)
        monkeypatch.setattr(run_module.Resources, "of", lambda *_, **__: shared)
        monkeypatch.setattr(until_settled, "_timed_s", lambda teams: sum(team.timed_s for team in teams))
        told = Told()
        with open_store(":memory:") as store:
            documents = run_session([FIRST, SECOND], ONE_S, store=store, budget_s=budget_s, listener=told, **more)
            kept = sorted(store.documents(documents[0]["session"]), key=lambda each: each["spec"]["batch_size"])
        return documents, told.documents, kept, crew.workers

    return measured


def half_width(document):
    rate = document["throughput"]
    return max(rate["high"] - rate["value"], rate["value"] - rate["low"]) / rate["value"]


def test_what_is_left_at_the_end_goes_to_the_widest_interval(session):
    documents, told, kept, workers = session(NOISY)
    assert 3 == len(workers) and [4, 8] == [each["spec"]["batch_size"] for each in documents]
    assert [0.0, 0.0] == [half_width(each) for each in documents]
    assert documents == kept
    # Everybody hears of each result once, and of the one that counts.
    assert [8, 4] == [each["spec"]["batch_size"] for each in told] and documents[0] is told[1]


@pytest.mark.parametrize("second", [NOISY, {"prepare": DEAD}, {"measure": DEAD}], ids=["as wide", "lost", "died"])
def test_a_second_look_that_says_no_more_changes_nothing(session, second):
    documents, told, kept, workers = session(NOISY, {}, second)
    assert 3 == len(workers) and 2 == len(told) and documents == kept
    assert "ok" == documents[0]["status"] and half_width(documents[0]) > 0.01


def test_what_a_second_look_finds_wrong_counts(session):
    documents, *_ = session(NOISY, {}, {"verify": [HONEST["verify"], WRONG]})
    assert ["failed", "ok"] == [each["status"] for each in documents]


@pytest.mark.parametrize("more", [{"budget_s": None}, {"second_look": False}])
def test_who_has_no_budget_of_its_own_looks_once(session, more):
    _, told, _, workers = session(NOISY, **more)
    assert 2 == len(workers) and [4, 8] == [each["spec"]["batch_size"] for each in told]


def test_without_time_for_longer_than_before_nobody_is_measured_again(session):
    clock = Clock()
    late = {"facts": clock.wait(59.5, HONEST["facts"])}
    documents, _, _, workers = session(NOISY, late, clock=clock)
    assert 2 == len(workers) and half_width(documents[0]) > 0.01


def test_ctrl_c_in_a_second_look_leaves_the_first(session):
    with pytest.raises(Interrupted) as stop:
        session(NOISY, {}, {"measure": KeyboardInterrupt()})
    assert ["ok", "ok"] == [each["status"] for each in stop.value.documents]


def wide(spec, factor):
    blocks = blocks_of(*(10 * factor**sign for sign in (0, 1, -1) * 4))
    run = a_run(spec=spec, blocks=blocks, precision_goal=0.01)
    return Measured(group=spec.group, choices=[Choice(spec, spec)], outcomes=[run], box_s=1.0, overhead_s=4.0)


def looked(found, budget_s, measure=lambda choices, share: [Failed(spec=choices[0].runs, reason="")]):
    order, clock = [], Clock()

    def measured(choices, share):
        order.append((choices[0].runs.batch_size, share.box_s))
        clock.now += 4.0 + share.box_s
        return measure(choices, share)

    shares = Shares(Deadline(budget_s, clock=clock), ONE_S, len(found))
    with open_store(":memory:") as store:
        writer = SessionWriter(store, [FIRST, SECOND], ONE_S, command="")
        for each in found:
            writer.append(each.outcomes[0])
        look_again(found, shares, measured, writer)
        return order, writer.documents


def test_the_widest_is_first_and_the_others_have_what_it_leaves():
    found = [wide(FIRST, 1.2), wide(SECOND, 1.5)]
    assert [(8, 2.0), (4, 2.0)] == looked(found, 60.0)[0]
    (first, box_s), second = looked(found, 11.0)[0][0], looked(found, 11.0)[0][1:]
    assert (8, 2.0, []) == (first, box_s, second)
    assert [] == looked(found, 5.0)[0]


def test_who_has_settled_or_is_wrong_is_not_measured_again():
    settled = wide(FIRST, 1.0)
    (run,) = wide(SECOND, 1.5).outcomes
    assert 0.0 == settled.widest and [] == looked([settled], 60.0)[0]
    faulty = a_run(spec=SECOND, blocks=run.blocks, precision_goal=0.01, faults=(Diagnostic("wrong_result", "no"),))
    for outcome in (faulty, Failed(spec=SECOND, reason="died")):
        assert 0.0 == Measured(group="", choices=(), outcomes=[outcome], box_s=1.0, overhead_s=1.0).widest


def test_what_its_share_left_without_a_figure_is_first():
    outcome = Skipped(spec=FIRST, reason="not measured", code=BUDGET)
    found = Measured(group=FIRST.group, choices=[Choice(FIRST, FIRST)], outcomes=[outcome], box_s=1.0, overhead_s=9.0)
    assert [4, 8] == [size for size, _ in looked([wide(SECOND, 1.5), found], 60.0)[0]]
    figure = wide(FIRST, 1.5).outcomes[0]
    _, documents = looked([found], 60.0, lambda choices, share: [figure])
    assert ["ok"] == [each["status"] for each in documents]
    refused = Skipped(spec=FIRST, reason="needs more memory", code="memory")
    assert 0.0 == Measured(group="", choices=(), outcomes=[refused], box_s=1.0, overhead_s=1.0).widest


def test_a_figure_with_one_block_is_the_widest_of_all():
    one = a_run(spec=FIRST, blocks=blocks_of(10.0), precision_goal=0.01)
    assert isinstance(one, Run) and stats.throughput(one.blocks, 4).half_width is None
    found = Measured(group=FIRST.group, choices=[Choice(FIRST, FIRST)], outcomes=[one], box_s=0.0, overhead_s=1.0)
    assert [4, 8] == [size for size, _ in looked([wide(SECOND, 1.5), found], 60.0)[0]]
