"""From a request of `train.py` to the records of a run; averages, candidates for validation, tables."""

import json
from pathlib import Path

import numpy as np
import pytest

from layermark import safetensors
from layermark.devices import cpu
from layermark.errors import UserError, WorkerFailed
from layermark.launch.ranks import JobPlace
from layermark.launch.rendezvous import PeerLost
from layermark.seeds.cnns import averages, train_recipe
from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.train_opening import arguments
from layermark.seeds.cnns.train_parsing import parse
from layermark.seeds.cnns.train_run import instance_of, place_of
from layermark.seeds.cnns.train_stages import evenly_cut
from layermark.seeds.cnns.train_validation import (
    AfterTraining,
    averages_of,
    candidates,
    validate,
    validated_before,
    validation_spec,
)
from layermark.seeds.cnns.validation import checkpoints
from layermark.session import balance
from layermark.session.deadline import Deadline
from layermark.spec import Spec
from layermark.training import checkpoint
from layermark.training.checkpoint import Checkpoint
from layermark.training.schedule import Cosine, Exponential, Polynomial, Stepped
from layermark.worker.picture_task import fed_task
from layermark.workloads.base import task

from .crew import DEAD, resources
from .train_commands import SCRIPT, SMALL, TINY, document, read


def plan_of(request, folder=None):
    pictures, _ = train_recipe.pictures_of(request)
    return train_recipe.plan_of(request, train_recipe.lengths(request, pictures), folder, None)


@pytest.mark.parametrize(
    ("name", "per_call", "calls", "target", "peak", "stages"),
    [("S10", 4, 20, 78, 8.0, 4), ("S12", 104, 33, 3336, 0.375, 2), ("S14", 400, 33, 12811, 0.01220703125, 4)],
)
def test_the_documents_lengths_and_rates(train_set, name, per_call, calls, target, peak, stages):
    plan = plan_of(document(name, train_set))
    call_plan = plan.lengths.call_plan
    assert (per_call, calls, target) == (call_plan.updates_per_call, call_plan.calls, plan.lengths.target)
    assert calls == call_plan.lines(plan.lengths.log_interval)
    assert (peak, stages, 0.0) == (plan.rate.peak, plan.stages, plan.rate.of_call(0))


def test_the_documents_updates(train_set):
    resnet = train_recipe.update_of(document("S10", train_set))
    assert ("momentum", 1e-4, 128, 1024) == (
        resnet.optimiser,
        resnet.weight_decay,
        resnet.loss_scaling,
        resnet.micro_batches,
    )
    resnext = train_recipe.update_of(document("S12", train_set))
    assert (0.1, 128) == (resnext.label_smoothing, resnext.micro_batches)
    efficientnet = train_recipe.update_of(document("S14", train_set))
    assert ("rmsprop", 0.1, 40) == (efficientnet.optimiser, efficientnet.label_smoothing, efficientnet.micro_batches)
    assert 0.98779 == pytest.approx(efficientnet.rmsprop_decay, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("", Stepped(0.1, (0.5, 0.75))),
        ("--lr-schedule cosine", Cosine()),
        ("--lr-schedule exponential --lr-decay-rate 0.9 --lr-drops 7", Exponential(0.9, 7)),
        ("--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.5", Polynomial(2.0, 1e-5, 0.5)),
    ],
)
def test_schedules(words, schedule):
    assert schedule == plan_of(read(f"{TINY} {words}")).rate.schedule


def test_lars_has_the_decay_inside():
    update = train_recipe.update_of(read(f"{TINY} --optimiser LARS --base-learning-rate -6 --lars-weight-decay 0.01"))
    assert ("lars", 0.01, 0.0) == (update.optimiser, update.weight_decay, update.gradient_decay)


@pytest.mark.parametrize(
    ("words", "interval"), [("", 12500), ("--ckpts-per-epoch 4", 3125), ("--epochs-per-ckpt 2", 25000)]
)
def test_how_often_checkpoints_are_saved(words, interval, tmp_path):
    request = read(f"{TINY} --batch-size 4 {words}")
    assert interval == plan_of(request, tmp_path).interval and 0 == plan_of(request).interval


def test_a_smaller_set_is_repeated_and_a_line_says_so(train_set):
    pictures, note = train_recipe.pictures_of(document("S10", train_set))
    assert 1_281_167 == pictures and "an epoch of 1281167 pictures is 2.135e+05 passes over 6" in note
    request = read(f"--data-dir {train_set} --dataset imagenet --epoch-size found --image-size 32")
    assert (6, "") == train_recipe.pictures_of(request)


def test_what_is_not_carried_out_is_named_or_refused(train_set):
    told = " ".join(train_recipe.gaps(document("S14", train_set)))
    assert not told
    spec = train_recipe.spec_of(document("S11", train_set))
    assert (4, 4, 4, 16) == (spec.plan.instances, spec.plan.replicas, spec.plan.stages, spec.ranks)
    assert spec.connected and spec.splits == ("b1/2/relu", "b2/3/relu", "b3/3/relu")
    with pytest.raises(UserError, match="--BN-span 2: every replica has statistics of its own"):
        train_recipe.check(read(f"{SMALL} --batch-norm --BN-span 2"))
    train_recipe.check(read(f"{SMALL} --batch-norm --BN-span 1"))


def test_a_part_of_a_set_is_an_epoch_and_all_that_is_fed(train_set):
    words = f"--data-dir {train_set} --dataset imagenet --image-size 32 --epoch-size found --seed 3 --batch-size 3"
    whole, part = (read(f"{words} --dataset-percentage-to-use {share}") for share in (100, 50))
    assert (6, "") == train_recipe.pictures_of(whole) and (3, "") == train_recipe.pictures_of(part)
    spec = train_recipe.spec_of(part)
    assert spec.key != train_recipe.spec_of(whole).key and 50 == spec.loading.data_percentage
    assert "data_percentage" not in train_recipe.spec_of(whole).to_json()["loading"]  # keys stay as they were
    assert spec == Spec.from_json(spec.to_json())
    assert 3 == fed_task(spec).stream.position.samples
    assert 100 == validation_spec(spec).loading.data_percentage


@pytest.mark.parametrize(
    ("ran", "asked", "runs"),
    [
        ("compile", "auto", "compile"),
        ("compile", "eager", "eager"),
        ("xla", "auto", "auto"),
        ("", "auto", "auto"),
    ],
)
def test_a_run_goes_on_as_its_checkpoint_was_made(tmp_path, ran, asked, runs):
    """Without a trial, which might choose another execution than that of the first part; one that is typed wins."""
    spec = read(TINY).spec.replace(backend="torch", execution=asked)
    path = checkpoint.save(tmp_path, Checkpoint(update=2, epoch=0.5, weights={}, execution=ran))
    assert runs == train_recipe.going_on(spec, path).execution
    assert asked == train_recipe.going_on(spec, None).execution


STAGES = f"{TINY} --shards 4 --pipeline --pipeline-splits b1/0/relu b2/0/relu b3/0/relu --stages-as-processes"


@pytest.mark.parametrize(("schedule", "ranks"), [("Sequential", 4), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2)])
def test_every_schedule_of_torch_is_carried_out(schedule, ranks):
    request = read(f"{STAGES} --gradient-accumulation-count 4 --pipeline-schedule {schedule}")
    spec = train_recipe.spec_of(request)
    assert (schedule, 4, ranks) == (spec.pipeline_schedule, spec.plan.stages, spec.ranks)
    words = f"{STAGES} --gradient-accumulation-count 4 --pipeline-schedule {schedule}".split()
    assert f"1 x {ranks} ranks train together on PyTorch" in " ".join(parse(words, SCRIPT).notes)


AUTO = f"{TINY} --shards 2 --pipeline --pipeline-splits auto --gradient-accumulation-count 4"


@pytest.mark.parametrize(("budget", "how"), [("", "measured"), ("--budget 10s", "estimated")])
def test_stages_are_named_before_a_run(monkeypatch, budget, how):
    """Where pieces cannot be timed in a quarter of the budget, their work stands for their times."""

    def timed(spec, timeout, listener):
        if timeout < 3:
            raise WorkerFailed("hung", code="hung")
        return balance._named(spec, [("", 1.0), ("layer2/0/conv1", 1.0)], "measured", listener)

    monkeypatch.setattr(balance, "_balanced", timed)
    request = parse(f"{AUTO} --stages-as-processes {budget}".split(), SCRIPT)
    assert "auto" == train_recipe.spec_of(request).pipeline_splits
    found = evenly_cut(request, Deadline(request.budget_s))
    (name,) = found.pipeline_splits
    assert name == train_recipe.spec_of(found).pipeline_splits and name in task(found.spec).graph.splits
    assert (name,) == arguments(found)["pipeline_splits"] and ("auto",) == found.recorded["pipeline_splits"]
    assert f"stages begin at {name}, by the {how} times of" in found.notes[-1]
    assert evenly_cut(found, Deadline(None)) is found


def test_stages_that_fail_while_they_are_timed_are_no_estimate(monkeypatch):
    def dead(*_):
        raise DEAD

    monkeypatch.setattr(balance, "_balanced", dead)
    with pytest.raises(WorkerFailed):
        evenly_cut(parse(f"{AUTO} --stages-as-processes".split(), SCRIPT), Deadline(None))


def test_stages_in_turn_need_no_names():
    request = read(AUTO)
    assert evenly_cut(request, Deadline(None)) is request
    assert any("--pipeline-splits" in note for note in request.notes if note.startswith("no effect"))


def test_statistics_of_a_pipeline_move_once_an_update(train_set):
    assert "update" == train_recipe.update_of(document("S10", train_set)).statistics_per
    assert "micro-batch" == train_recipe.update_of(document("S12", train_set)).statistics_per  # has group norms
    assert "micro-batch" == train_recipe.update_of(read(f"{SMALL} --batch-norm")).statistics_per


def test_the_place_of_a_launcher():
    given = {"rank": 1, "size": 2, "local_rank": 1, "local_size": 2, "master_address": "a", "master_port": 1}
    place = JobPlace(**given, local_replicas=3, total_replicas=6, devices_per_replica=4, launcher="poprun")
    found = instance_of(place)
    assert (2, 1, 3, 4) == (found.count, found.index, found.local_replicas, found.shards)


TWO_HOSTS = '{"cluster": {"worker": ["a:1", "a:2", "b:3"]}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize(
    ("words", "saved", "launched", "launcher"),
    [
        ("--distributed", False, False, "TF_CONFIG"),
        ("--distrib --restore-path {}", False, False, "TF_CONFIG"),
        ("--restore-path {}", True, False, "TF_CONFIG"),
        ("--restore-path {}", True, True, "mpirun"),
        ("--restore-path {} --distr", True, True, "TF_CONFIG"),
        ("", False, True, "mpirun"),
        ("", False, False, None),
    ],
)
def test_who_says_where_an_instance_stands(monkeypatch, tmp_path, words, saved, launched, launcher):
    (tmp_path / "arguments.json").write_text(json.dumps({"distributed": saved}))
    monkeypatch.setenv("TF_CONFIG", TWO_HOSTS)
    if launched:
        for name, value in {"RANK": "0", "SIZE": "2"}.items():
            monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    found = place_of(SCRIPT, words.format(tmp_path).split())
    assert launcher == (found and found.launcher)


def test_instances_of_tf_config_share_the_threads_of_their_host(monkeypatch):
    monkeypatch.setattr(cpu, "host_cpus", lambda: 8)
    monkeypatch.setattr(cpu, "thread_budget", lambda: 8)
    monkeypatch.setenv("TF_CONFIG", TWO_HOSTS)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    instance = instance_of(place_of(SCRIPT, ["--distributed"]))
    assert (3, 1, 2, None) == (instance.count, instance.index, instance.on_host, instance.local_replicas)
    assert 4 == read(TINY, instance=instance).spec.threads
    notes = read(f"{TINY} --threads 5", instance=instance).notes
    assert "2 instances of 5 threads each share the 8 CPUs of this host" in notes


def test_validation_infers_with_the_pictures_for_it(train_set):
    spec = validation_spec(document("S10", train_set).spec)
    assert ("infer", "validation", False, False) == (
        spec.mode, spec.loading.split, spec.loading.augment, spec.loading.shuffle
    )  # fmt: skip


@pytest.fixture
def ran(tmp_path):
    """The folder of a run with four checkpoints of the smallest ResNet; every weight is the number of the update."""
    graph = task(read(TINY).spec).graph
    for update in (0, 2, 4, 6):
        arrays = {name: np.full(each.shape, update, "float32") for name, each in graph.parameters.items()}
        taken = Checkpoint(
            update=update, epoch=update / 2, weights=arrays, optimiser={"fc/bias/momentum": arrays["fc/bias"]}
        )
        checkpoint.save(tmp_path / "ckpt", taken)
    return tmp_path


def test_averages_after_training(ran):
    request = read(f"{TINY} --weight-avg-N 1 --weight-avg-exp 0.5")
    mean, exponential = (each() for each in averages_of(request, ran / "ckpt"))
    assert ("weight_avg_N_1", 4) == (mean.name, mean.update)
    assert 3.0 == safetensors.read(mean.path)["fc/bias"][0]
    assert 4.5 == safetensors.read(exponential.path)["fc/bias"][0]
    assert ["ckpt-0", "ckpt-2", "ckpt-6", mean.name, exponential.name] == [
        each.name for each in candidates(ran / "ckpt", [mean, exponential], [("ckpt-4", 4)])
    ]


def test_an_average_is_validated_again_where_the_run_has_gone_on(ran):
    (average,) = (each() for each in averages_of(read(f"{TINY} --weight-avg-exp 0.5"), ran / "ckpt"))
    saved = [(f"ckpt-{update}", update) for update in (0, 2, 4, 6)]
    assert [average] == candidates(ran / "ckpt", [average], [*saved, (average.name, 4)])
    assert [] == candidates(ran / "ckpt", [average], [*saved, (average.name, 6)])


class Notes:
    def __init__(self):
        self.notes, self.names = [], []

    def note(self, text):
        self.notes.append(text)

    def validated(self, found):
        self.names.append(found)


def after_training(ran, monkeypatch, words, validating):
    """What follows a training run, where validating says or raises this."""
    monkeypatch.setattr("layermark.seeds.cnns.train_validation.validate", validating)
    heard = Notes()
    after = AfterTraining(read(f"{TINY} {words}"), ran, heard, Deadline(None))
    after.make(ran / "ckpt", None)
    return after, heard


def test_an_average_that_fails_leaves_the_others_and_the_validation(ran, monkeypatch):
    for marker in (ran / "ckpt").glob("ckpt-[46].json"):
        marker.unlink()  # one checkpoint after the start is left: enough for an exponential average, not for a mean
    words = "--weight-avg-N 1 --weight-avg-exp 0.5"
    after, heard = after_training(ran, monkeypatch, words, lambda request, wanted, *_: [each.name for each in wanted])
    assert after.failed and ["ckpt-0", "ckpt-2", "weight_avg_exp_0.5"] == heard.names == after.found
    assert 1 == len(heard.notes) and heard.notes[0].startswith("no average: no checkpoints to average")
    assert {"averages", "validation"} == after.seconds.keys()


@pytest.mark.parametrize(("words", "latency"), [("--latency", 125.0), ("", None)])
def test_the_latency_of_a_validation_is_that_of_a_batch(ran, words, latency):
    request = read(f"{TINY} {words}")
    wanted = candidates(ran / "ckpt", [])[:1]
    shared = resources({"validate": {"right": 16, "seconds": 0.25}})
    (found,) = validate(request, wanted, shared, Deadline(None))
    assert latency == found.latency_ms and 2 * 32 == found.pictures and 25.0 == found.accuracy


def test_a_worker_that_dies_while_it_validates_says_why(ran):
    with pytest.raises(UserError, match="killed by signal SIGKILL"):
        list(validate(read(TINY), candidates(ran / "ckpt", []), resources({"validate": DEAD}), Deadline(None)))


def test_a_worker_that_dies_while_its_budget_is_shared_says_why(ran):
    """The first batch is tried to see how many there is time for; there is nobody to ask for the rest."""
    with pytest.raises(UserError, match="killed by signal SIGKILL"):
        list(validate(read(TINY), candidates(ran / "ckpt", []), resources({"validate": DEAD}), Deadline(60.0)))


@pytest.mark.parametrize("error", [UserError, PeerLost])
def test_a_validation_that_fails_leaves_the_averages(ran, monkeypatch, error):
    def broken(*_):
        raise error("no validation pictures")

    after, heard = after_training(ran, monkeypatch, "--weight-avg-exp 0.5", broken)
    assert after.failed and (ran / "ckpt" / "weight_avg_exp_0.5.safetensors").is_file()
    assert ["not all of 5 checkpoints were validated: no validation pictures"] == heard.notes
    after, heard = after_training(ran, monkeypatch, "--no-validation", broken)
    assert not after.failed and not heard.notes and not after.seconds


def test_weight_avg_writes_beside_the_checkpoints_or_where_a_path_says(ran, capsys):
    given = ["--restore-path", str(ran), "--filename", "all", "--mode", "mean"]
    assert 0 == averages.average("weight_avg.py", given)
    assert 4.0 == safetensors.read(ran / "ckpt" / "all.safetensors")["fc/bias"][0]
    assert f"to {ran / 'ckpt' / 'all.safetensors'}" in capsys.readouterr().out
    given = ["--restore-path", str(ran), "--filename", str(ran / "a/b"), "--mode", "exponential", "--discard-last", "2"]
    assert 0 == averages.average("weight_avg.py", given)
    assert 2.0 == safetensors.read(ran / "a" / "b.safetensors")["fc/bias"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mode mean --decay 0.9", "--decay has no meaning with --mode mean"),
        ("--mode exponential -N 3", "-N has no meaning with --mode exponential"),
        ("--mode median", "--mode"),
    ],
)
def test_weight_avg_refuses_in_one_line(ran, words, said):
    with pytest.raises(UserError, match=said):
        averages.average("weight_avg.py", ["--restore-path", str(ran), "--filename", "x", *words.split()])
    with pytest.raises(UserError, match="no whole checkpoint in it"):
        averages.average("weight_avg.py", ["--restore-path", str(ran.parent), "--filename", "x", "--mode", "mean"])


def test_validation_reads_the_checkpoints_of_a_run(ran):
    found = checkpoints(str(ran))
    assert ["ckpt-0", "ckpt-2", "ckpt-4", "ckpt-6"] == [each.stem for each in found]
    spec = validation_spec(read(TINY).spec).replace(weights=str(found[2]))
    assert {4.0} == {float(each.flat[0]) for each in task(spec).weights().values()}


def test_rows_of_updates_that_come_again_are_taken_out(tmp_path):
    log = Log(tmp_path)
    for update in (2, 4, 6):
        log.row("training.csv", {"iteration": update, "loss": 1.5})
    assert [{"iteration": "2", "loss": "1.5"}, {"iteration": "4", "loss": "1.5"}] == log.keep_rows(
        "training.csv", "iteration", 4
    )
    log.row("training.csv", {"iteration": 6, "loss": 2.5})
    assert ["iteration,loss", "2,1.5", "4,1.5", "6,2.5"] == (tmp_path / "training.csv").read_text().splitlines()
    assert [] == log.keep_rows("other.csv", "iteration", 4) == Log(None).keep_rows("training.csv", "iteration", 4)


def test_a_kill_while_files_are_rewritten_loses_nothing(tmp_path, monkeypatch):
    log, table = Log(tmp_path), tmp_path / "training.csv"
    for update in (2, 4, 6):
        log.row("training.csv", {"iteration": update, "loss": 1.5})
    log.options("arguments.json", {"momentum": 0.9})
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        log.keep_rows("training.csv", "iteration", 4)
    with pytest.raises(KeyboardInterrupt):
        log.options("arguments.json", {"momentum": 0.8})
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    log.keep_rows("training.csv", "iteration", 6)  # equal files are not written at all
    log.options("arguments.json", {"momentum": 0.9})
    monkeypatch.undo()
    log.keep_rows("training.csv", "iteration", 4)
    assert ["iteration,loss", "2,1.5", "4,1.5"] == table.read_text().splitlines()
    table.write_bytes(table.read_bytes() + b"6,1.")  # as a kill may leave it
    log.keep_rows("training.csv", "iteration", 6)
    log.row("training.csv", {"iteration": 6, "loss": 2.5})
    assert ["iteration,loss", "2,1.5", "4,1.5", "6,2.5"] == table.read_text().splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_one_line(tmp_path):
    log = Log(tmp_path)
    for name in ("log.txt", "training.csv", "arguments.json.part"):
        (tmp_path / name).symlink_to("/dev/full")
    writes = (
        lambda: log.say("a line"),
        lambda: log.row("training.csv", {"iteration": 2}),
        lambda: log.options("arguments.json", {"momentum": 0.9}),
    )
    for write in writes:
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device; free some space"):
            write()


def test_what_was_validated_before(tmp_path):
    assert [] == validated_before(None) == validated_before(tmp_path)
    Log(tmp_path).row("validation.csv", {"name": "ckpt-2", "iteration": 2, "val_acc": 3.0})
    assert [("ckpt-2", 2)] == validated_before(tmp_path)


def test_a_first_checkpoint_gives_the_weights(ran):
    path = ran / "ckpt" / "ckpt-2.safetensors"
    request = read(f"{TINY} --init-path {path}")
    assert str(path) == train_recipe.spec_of(request).weights
    assert "" == train_recipe.spec_of(read(SMALL)).weights
