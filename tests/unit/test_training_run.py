"""The schedule of a training run, with a crew that only plays its part."""

import math
from pathlib import Path

import pytest

from layermark.errors import UserError
from layermark.launch.rendezvous import PeerLost
from layermark.outcome import Failed, Run, Skipped
from layermark.session import training
from layermark.session.phases import Phases
from layermark.session.team import Team
from layermark.session.training import COMPLETE, TrainingListener, TrainingPlan, train
from layermark.spec import Spec
from layermark.training.lengths import Lengths
from layermark.training.schedule import Constant, Cosine, LearningRate

from .crew import DEAD, HONEST, VERIFIED, WRONG, Clock, FakeCeilings, FakeOracle, a_block, resources

SPEC = Spec(workload="dense", backend="null", mode="train", batch_size=4, threads=1, params={"size": 8})
LENGTHS = Lengths(micro_batch=4, accumulation=2, replicas=2, pictures=160, epochs=2, logs_per_epoch=5)
# 16 pictures an update, 10 updates an epoch, 20 updates in calls of 2.


class Told(TrainingListener):
    def __init__(self):
        self.heard, self.lines, self.saves = [], [], []

    def expected(self, seconds):
        self.heard.append("expected")

    def shortened(self, fitted):
        self.heard.append(fitted.shortened)

    def compiled(self, seconds):
        self.heard.append("compiled")

    def restored(self, path, update):
        self.heard.append(f"restored {path.name} {update}")

    def called(self, done, *, line):
        self.lines += [done.call.last] * line

    def saved(self, path, update, epoch):
        self.saves.append((update, epoch))

    def stopped(self, done, asked):
        self.heard.append(f"stopped {done} of {asked}")


def trained(*differences, lengths=LENGTHS, schedule=None, phases=None, **more):
    shared = resources(*differences, **{name: more.pop(name) for name in ("clock", "budget_s") if name in more})
    rate = LearningRate(peak=1.0, schedule=schedule or Constant(), total=lengths.target, epochs=2.0)
    team, told = Team(SPEC, shared), Told()
    team.phases = phases or team.phases
    outcome = train(team, TrainingPlan(lengths=lengths, rate=rate, **more), shared.deadline, told)
    return outcome, told, shared.crew.workers[0].asked


def messages(asked, name):
    return [given for do, given in asked if do == name]


def test_a_result_tells_by_phase_how_long_it_was_waited_for(monkeypatch):
    clock = Clock()
    taken = {"prepare": 1, "verify": 3, "seconds_per_batch": 5, "begin_training": 7, "train": 20, "save": 2}
    slow = {name: clock.wait(seconds, HONEST[name]) for name, seconds in taken.items()}
    monkeypatch.setattr(training.Anatomy, "take", lambda _: clock.wait(11, {})())
    outcome, _, asked = trained(slow, phases=Phases(clock), clock=clock, folder=Path("runs"), interval=10)
    known = {name: seconds for name, seconds in outcome.wall_s.items() if seconds and name != "ceilings"}
    saves, building = len(messages(asked, "save")), ("start", "import", "build")
    # 10 calls, with a proof before and one after them.
    expected = {"proof": 2 * 3, "warm_up": 5, "timed": 10 * 20, "checkpoints": saves * 2, "anatomy": 11}
    assert expected == {name: seconds for name, seconds in known.items() if name not in building} and saves
    assert 8 == sum(known.get(name, 0) for name in building)
    assert clock.now == pytest.approx(sum(known.values()))


def test_every_call_goes_on_where_the_last_one_ended():
    outcome, told, asked = trained()
    assert isinstance(outcome, Run) and outcome.verified.ok and not outcome.faults
    assert [{"micro_batches": 4, "marker": ""}] == messages(asked, "begin_training")
    assert [2] * 10 == [each["updates"] for each in messages(asked, "train")]
    assert list(range(2, 21, 2)) == told.lines
    assert ["expected", "compiled"] == told.heard


def test_the_first_call_is_no_part_of_the_rate():
    slow = {"block": a_block((9000,), 4), "loss": 2.0, "right": 8}
    outcome, _, _ = trained({"train": [slow, HONEST["train"]]})
    assert 9 == len(outcome.blocks) and 9.0 == outcome.timings_s["first_step"]
    assert {1_000_000_000} == {block.samples_ns[0] for block in outcome.blocks}


def test_the_rate_is_that_of_the_first_update_of_a_call():
    _, _, asked = trained(schedule=Cosine())
    rates = [each["rate"] for each in messages(asked, "train")]
    assert [0.5 * (1 + math.cos(math.pi * update / 20)) for update in range(0, 20, 2)] == pytest.approx(rates)


def test_the_result_holds_the_curve_and_what_was_left_out():
    outcome, _, _ = trained(folder=Path("runs"), interval=10)
    facts = outcome.settings["training"]
    assert {"update": 2, "loss": 2.0, "accuracy": 0.5, "rate": 1.0} == facts["curve"][0] and 10 == len(facts["curve"])
    assert {"compile", "proof", "checkpoints", "first call", "taking apart"} == facts["excluded_s"].keys()
    assert 1.0 == facts["excluded_s"]["first call"]
    assert (20, 4, 16) == (facts["updates"], facts["micro_batches"], facts["global_batch"])
    assert facts["anatomy"]["end_to_end_per_s"] == pytest.approx(16)


def test_checkpoints_come_at_the_start_at_the_marks_and_at_the_last_two_calls():
    _, told, asked = trained(folder=Path("runs"), interval=10)
    assert [(0, 0.0), (2, 0.2), (10, 1.0), (18, 1.8), (20, 2.0)] == told.saves
    assert {"runs"} == {each["folder"] for each in messages(asked, "save")}


def test_an_offset_leaves_the_first_checkpoints_out():
    _, told, _ = trained(folder=Path("runs"), interval=10, offset=15)
    assert [0, 18, 20] == [update for update, _ in told.saves]


def test_no_checkpoints_are_written_unless_asked_for():
    _, told, asked = trained()
    assert not told.saves and not messages(asked, "save")


def test_a_restored_run_makes_the_calls_that_are_left():
    marker = Path("runs/ckpt-14.json")
    outcome, told, asked = trained({"begin_training": {"update": 14, "epoch": 1.4}}, restore=marker)
    assert str(marker) == messages(asked, "begin_training")[0]["marker"]
    assert [16, 18, 20] == told.lines and "restored ckpt-14.json 14" in told.heard
    assert 20 == outcome.settings["training"]["updates"]


def test_a_restored_run_with_nothing_left_is_complete():
    outcome, told, asked = trained({"begin_training": {"update": 20, "epoch": 2.0}}, restore=Path("ckpt-20.json"))
    assert isinstance(outcome, Skipped) and COMPLETE == outcome.code
    assert "nothing is left to train: all 20 updates were made before" == outcome.reason
    assert not told.lines and not messages(asked, "train")


def test_a_restored_run_comes_into_step_by_a_shorter_call():
    _, _, asked = trained({"begin_training": {"update": 15, "epoch": 1.5}}, restore=Path("ckpt-15.json"))
    assert [1, 2, 2] == [each["updates"] for each in messages(asked, "train")]


def test_a_budget_is_fitted_to_what_a_checkpoint_leaves():
    """20 updates of 8 micro-batches in all; after 14, six are left: 2.4 s, of which 0.8 x 2 s are to be had."""
    marker = Path("runs/ckpt-14.json")
    answers = {"begin_training": {"update": 14, "epoch": 1.4}, "seconds_per_batch": {"seconds": 0.1}}
    outcome, told, asked = trained(answers, restore=marker, clock=Clock(), budget_s=2.5)
    assert isinstance(outcome, Run) and ("2 of 3 lines",) in told.heard
    assert [16, 18] == told.lines and [2, 2] == [each["updates"] for each in messages(asked, "train")]
    outcome, told, asked = trained(answers, restore=marker, clock=Clock(), budget_s=0.5)
    assert isinstance(outcome, Run) and [15, 16] == told.lines
    outcome, told, _ = trained(answers, restore=marker, clock=Clock(), budget_s=100)
    assert [16, 18, 20] == told.lines and "shortened" not in [each.code for each in outcome.warnings]


def test_a_budget_shortens_calls_then_updates_then_micro_batches():
    outcome, told, asked = trained({"seconds_per_batch": {"seconds": 0.15}}, clock=Clock(), budget_s=1.0)
    assert ("2 of 10 lines", "1 of 2 updates per host call", "1 of 2 micro-batches per update") in told.heard
    assert 2 == messages(asked, "begin_training")[0]["micro_batches"]
    assert [1, 1] == [each["updates"] for each in messages(asked, "train")]
    assert "shortened" in [each.code for each in outcome.warnings]


def test_a_pipeline_keeps_a_micro_batch_for_every_stage():
    _, _, asked = trained({"seconds_per_batch": {"seconds": 5.0}}, clock=Clock(), budget_s=1.0, stages=2)
    assert (
        4
        == messages(asked, "begin_training")[0]["micro_batches"]
        == messages(asked, "seconds_per_batch")[0]["micro_batches"]
    )


def test_with_a_budget_an_update_has_as_many_micro_batches_as_memory_has_room_for(monkeypatch):
    monkeypatch.setattr(training, "most_micro_batches", lambda spec, least, most, host_share: 1)
    told = "shortened: there is memory for 1 of 2 micro-batches in an update"
    outcome, _, asked = trained(clock=Clock(), budget_s=3600.0)
    assert ("shortened_for_memory", told) in [(each.code, each.text) for each in outcome.warnings]
    assert 2 == messages(asked, "begin_training")[0]["micro_batches"]
    outcome, _, asked = trained(clock=Clock())
    assert not outcome.warnings and 4 == messages(asked, "begin_training")[0]["micro_batches"]


def test_a_budget_that_runs_out_ends_the_run_between_two_calls():
    clock = Clock()
    slow = clock.wait(30, {"block": a_block((30_000,), 8), "loss": 2.0, "right": 8})
    outcome, told, asked = trained({"train": slow}, clock=clock, budget_s=100)
    assert isinstance(outcome, Run) and 3 == len(messages(asked, "train"))
    assert "stopped 3 of 10" in told.heard and "stopped" in [each.code for each in outcome.warnings]


@pytest.mark.parametrize(("interval", "saves"), [(10, [0, 2, 6]), (0, [])])
def test_what_was_trained_since_the_last_mark_is_kept_when_a_budget_ends_the_run(interval, saves):
    clock = Clock()
    slow = clock.wait(30, {"block": a_block((30_000,), 8), "loss": 2.0, "right": 8})
    _, told, _ = trained({"train": slow}, clock=clock, budget_s=100, folder=Path("runs"), interval=interval)
    assert "stopped 3 of 10" in told.heard and saves == [update for update, _ in told.saves]


def test_a_short_budget_leaves_out_the_second_proof_and_says_so():
    outcome, _, asked = trained(clock=Clock(), budget_s=100)
    assert 1 == len(messages(asked, "verify")) and "not_proven_again" in [each.code for each in outcome.warnings]
    _, _, asked = trained()
    assert 2 == len(messages(asked, "verify"))


def test_a_second_proof_that_fails_is_an_outcome():
    outcome, told, _ = trained({"verify": [VERIFIED, WRONG]})
    assert isinstance(outcome, Run) and outcome.blocks and 20 == told.lines[-1]
    assert ["wrong_result"] == [each.code for each in outcome.faults]
    outcome, _, _ = trained({"verify": [VERIFIED, DEAD]})
    assert isinstance(outcome, Failed) and "died" == outcome.code


@pytest.mark.parametrize("phase", ["prepare", "verify", "begin_training", "train", "save", "facts"])
def test_ctrl_c_is_nobodys_outcome(phase):
    with pytest.raises(KeyboardInterrupt):
        trained({phase: KeyboardInterrupt()}, folder=Path("runs"), interval=10)


def test_a_reference_that_takes_too_long_is_left_out_and_the_result_says_so(monkeypatch):
    monkeypatch.setattr(FakeOracle, "seconds", lambda self, spec, within: 41.0)
    outcome, _, asked = trained(clock=Clock(), budget_s=100)
    assert outcome.verified is None and not messages(asked, "verify")
    assert "not_proven" in [each.code for each in outcome.warnings]
    outcome, _, asked = trained(clock=Clock(), budget_s=103)
    assert outcome.verified.ok and messages(asked, "verify")


def test_a_budget_leaves_two_calls_however_long_they_take():
    clock = Clock()
    slow = clock.wait(80, {"block": a_block((80_000,), 8), "loss": 2.0, "right": 8})
    _, told, asked = trained({"train": slow}, clock=clock, budget_s=100)
    assert 2 == len(messages(asked, "train")) == len(told.lines) and "stopped 2 of 10" in told.heard


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_and_names_the_last_checkpoint(loss):
    bad = {**HONEST["train"], "loss": loss}
    saves = [{"path": "runs/ckpt-0.json"}, {"path": "runs/ckpt-2.json"}]
    outcome, told, asked = trained({"train": [HONEST["train"], bad], "save": saves}, folder=Path("runs"), interval=10)
    assert isinstance(outcome, Failed) and "not_finite" == outcome.code
    assert "ckpt-2 is intact" in outcome.reason and "lower the learning rate" in outcome.reason
    assert 2 == len(messages(asked, "train")) and [2] == told.lines


def test_weights_that_are_no_numbers_end_the_run_before_they_are_called_a_checkpoint():
    saves = [{"path": "runs/ckpt-0.json"}, {"not_finite": "conv1/weight"}]
    outcome, told, asked = trained({"save": saves}, folder=Path("runs"), interval=10)
    assert isinstance(outcome, Failed) and "not_finite" == outcome.code
    assert outcome.reason.startswith("conv1/weight is not finite after update 2: training has diverged; ckpt-0 is")
    assert [(0, 0.0)] == told.saves and 1 == len(messages(asked, "train"))


def test_a_disk_that_is_full_ends_the_run_with_the_worker_s_own_words():
    full = UserError("cannot save ckpt-2 in runs: No space left on device; ckpt-0 is intact; free some space")
    outcome, _, asked = trained({"save": [{"path": "runs/ckpt-0.json"}, full]}, folder=Path("runs"), interval=10)
    assert isinstance(outcome, Failed) and "ckpt-0 is intact" in outcome.reason
    assert 1 == len(messages(asked, "train"))


@pytest.mark.parametrize("phase", ["prepare", "seconds_per_batch", "begin_training", "train"])
def test_a_worker_that_dies_is_an_outcome(phase):
    outcome, _, _ = trained({phase: DEAD})
    assert isinstance(outcome, Failed) and "died" == outcome.code


def test_a_program_that_is_wrong_or_returns_early_is_not_trained():
    outcome, _, asked = trained({"verify": WRONG})
    assert not outcome.verified.ok and not messages(asked, "train")
    outcome, _, asked = trained({"seconds_per_batch": {"fault": "returns before the work is done"}})
    assert ["returns_early"] == [each.code for each in outcome.faults] and not messages(asked, "train")


@pytest.mark.parametrize("when", ["compiled", "called", "saved"])
def test_an_instance_that_is_lost_while_a_line_is_printed_is_the_outcome(monkeypatch, when):
    def lose(self, *given, **more):
        raise PeerLost("instance 1 is gone")

    monkeypatch.setattr(Told, when, lose)
    outcome, _, _ = trained(folder=Path("runs"), interval=10)
    assert (Failed, "instance 1 is gone") == (type(outcome), outcome.reason)


def test_an_instance_that_is_lost_while_ceilings_are_read_is_the_outcome(monkeypatch):
    readings = [{"flops_per_s": 1e12, "bytes_per_s": 1e12}] * 3

    def read(self, *given):
        if not readings:
            raise PeerLost("instance 1 is gone")
        return readings.pop()

    monkeypatch.setattr(FakeCeilings, "reading", read)
    outcome, told, asked = trained()
    assert (Failed, "instance 1 is gone") == (type(outcome), outcome.reason)
    assert 5 == len(messages(asked, "train")) == len(told.lines)  # then the fourth reading is due


@pytest.mark.parametrize(("seconds", "expected"), [(500.0, 10 * (500.0 * 8 + 0.5)), (1e-6, 60.0)])
def test_a_call_has_hung_after_ten_times_what_it_should_take_and_a_minute_at_least(seconds, expected):
    """Building and proving may take ten minutes here: nobody knows how long they take."""
    waits = {}
    shared = resources({"seconds_per_batch": {"seconds": seconds}})
    hire = shared.crew.hire

    def watched(environment, *, memory_limit=0, runtime=""):
        worker = hire(environment)
        finish = worker.finish
        worker.finish = lambda timeout: waits.setdefault(worker.said()[-1], timeout) and finish(timeout)
        return worker

    shared.crew.hire = watched
    rate = LearningRate(peak=1.0, schedule=Constant(), total=20, epochs=2.0)
    train(Team(SPEC, shared), TrainingPlan(lengths=LENGTHS, rate=rate), shared.deadline, Told())
    assert pytest.approx(expected, rel=1e-2) == waits["train"]
    assert [pytest.approx(600.0, rel=1e-2)] * 2 == [waits["seconds_per_batch"], waits["prepare"]]
    assert pytest.approx(60.0, rel=1e-2) == waits["begin_training"]


def test_the_least_wait_is_a_variable(monkeypatch):
    monkeypatch.setenv("LAYERMARK_LEAST_WAIT", "90s")
    assert (90.0, 120.0, 600.0) == tuple(map(resources().wait_s, (1.0, 12.0, None)))
    monkeypatch.setenv("LAYERMARK_LEAST_WAIT", "soon")
    with pytest.raises(UserError, match="LAYERMARK_LEAST_WAIT=soon: expected a length of time"):
        resources()
