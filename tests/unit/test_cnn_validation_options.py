"""The options of the TensorFlow validation program: names of all releases, defaults, and what each changes."""

from math import inf
from pathlib import Path

import pytest

from layermark.errors import UserError
from layermark.seeds import run as seed_run
from layermark.seeds.cnns.entry import model_of
from layermark.seeds.cnns.entry import validation as validation_of
from layermark.seeds.cnns.folders import run_name
from layermark.seeds.cnns.tensorflow_options import TRAIN_ONLY_KEYS, validation_script
from layermark.seeds.cnns.validation import epoch_of, requests
from layermark.seeds.configs import named_sets
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.parsing import parse
from layermark.session import deadline
from layermark.session.deadline import Deadline

from .crew import Clock
from .samples import measured, other

pytestmark = pytest.mark.usefixtures("cnn_folder", "plain_cpu")

TENSORFLOW = Path(__file__).parents[2] / "benchmarks" / "tensorflow_cnns" / "configs.yml"
MODELS = ("resnet", "resnext", "efficientnet", "squeezenet")
NOTHING = EngineOptions()


def validated(*argv, engine=NOTHING):
    """What `validation.py` would measure, and its values."""
    words = [*argv, "--backend", "null"]
    script = validation_script(model_of(TENSORFLOW.with_name("validation.py"), words))
    typed = parse(script, "validation.py", words, TENSORFLOW, TRAIN_ONLY_KEYS)
    return requests(script, typed, engine), typed.values


def validation(*argv, **more):
    return validated(*argv, **more)[0][0]


MADE_UP = "--synthetic-data --dataset imagenet --image-size 32"
LOADED = "--data-dir images --dataset imagenet --image-size 32 --batch-size 2"
TINY = "--synthetic-data --dataset cifar-10 --model-size 8"
NEEDS = {
    "pipeline-num-parallel": LOADED,
    "no-dataset-cache": LOADED,
    "standard-imagenet": LOADED,
    "prefetch-depth": LOADED,
    "data-dir": LOADED,
    "image-size": "--synthetic-data --dataset imagenet",
    "generated-data": LOADED,
    "dataset": "--synthetic-data --model-size 14 --dataset imagenet",
    "restore-path": TINY,
    "widenet": "--synthetic-data --dataset cifar-10",
    "batch-norm": MADE_UP,
    "group-norm": "--synthetic-data --dataset cifar-10",
    "model-size": "--synthetic-data --dataset imagenet",
    "proxy-epsilon": f"{MADE_UP} --proxy-norm",
    "config": "--synthetic-data --dataset imagenet",
    "groups": f"{MADE_UP} --group-norm",
}
GIVEN = {
    "model": "--model squeezenet",
    "config": "--config mk1_resnet50_16ipus",
    "restore-path": "--restore-path tensorflow-7.safetensors",
    "dataset": "--dataset cifar-10",
    "data-dir": "--data-dir ./images",
    "precision": "--precision bf16.32",
    "norm-epsilon": "--norm-epsilon 0.01",
    "proxy-epsilon": "--proxy-epsilon 0.1",
    "groups": "--groups 8",
    "group-dim": "--group-dim 8",
    "depth-divisor": "--depth-divisor 16",
    "width-coefficient": "--width-coefficient 1.1",
    "convolution-groups": "--convolution-groups 16",
    "generated-data": "--generated-data",
    "log-dir": "--log-dir elsewhere",
    "name-suffix": "--name-suffix penguin",
    "logs-path": "--logs-path elsewhere",
}
SIZES = {(model, "model-size"): "--model-size 26" for model in MODELS} | {
    ("efficientnet", "model-size"): "--model-size 1"
}
SHARED = ("Main", "Dataset", "Training", "IPU", "Logging", "Later releases")
EQUAL = [
    (model, option)
    for model in MODELS
    for option in validation_script(model).options
    if option.mark == "=" and (model == "resnet" or option.group not in SHARED)
    # Group norms are what an EfficientNet has anyway, and batch norms win over them.
    if (model, option.name) != ("efficientnet", "group-norm")
]


def shown(requests, values):
    """All that a command line decides about a validation."""
    written = (
        None if values["no_logs"] else (values["log_dir"], values["logs_path"], run_name(values, requests[0].spec))
    )
    return [(*measured(each), each.latency) for each in requests], written, values["dataset_benchmark"]


@pytest.mark.parametrize(("model", "option"), EQUAL, ids=[f"{model} {option.flag}" for model, option in EQUAL])
def test_every_option_of_validation_marked_equal_changes_what_is_done(model, option):
    needs = f"--model {model} {NEEDS.get(option.name, MADE_UP)}"
    given = GIVEN.get(option.name) or SIZES.get((model, option.name)) or " ".join(other(option))
    assert shown(*validated(*needs.split())) != shown(*validated(*needs.split(), *given.split()))


def test_groups_of_a_network_with_batch_norms_are_named_and_change_nothing():
    needs = ["--generated-data", "--dataset", "cifar-10", "--model-size", "8", "--batch-norm"]
    before, after = validation(*needs), validation(*needs, "--groups", "8")
    assert before.spec.key == after.spec.key
    assert any(note.startswith("no effect") and "--groups" in note for note in after.notes)
    assert validation(*needs[:-1], "--group-norm", "--groups", "8").spec.params["norm_num_groups"] == 8


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (TINY, "--normalise-input"),
        (TINY, "--hostside-norm"),
        (f"{MADE_UP} --model efficientnet", "--proxy-epsilon 0.5"),
    ],
)
def test_what_the_network_or_the_set_has_decided_is_named_and_changes_nothing(needs, words):
    before, after = validation(*needs.split()), validation(*needs.split(), *words.split())
    assert before.spec.key == after.spec.key
    assert any(note.startswith("no effect") and words.split()[0] in note for note in after.notes)


IDLE = [
    (model, option)
    for model in MODELS
    for option in validation_script(model).options
    if option.mark in ("sim", "training") and (model == "resnet" or option.group == "EfficientNet")
]
IDLE_GIVEN = {
    "scheduling-algorithm": "shortest",
    "available-memory-proportion": "0.2",
    "BN-decay": "0.9",
    "dropout-rate": "0.1",
    "block-survival-prob": "0.9",
    "cutmix-lambda": "0.5",
    "label-smoothing": "0.1",
    "dataset-percentage-to-use": "50",
}


@pytest.mark.parametrize(("model", "option"), IDLE, ids=[f"{model} {option.flag}" for model, option in IDLE])
def test_every_idle_option_of_validation_is_recorded_and_named_and_changes_no_result(model, option):
    needs = f"--model {model} {MADE_UP}".split()
    given = [option.flag, IDLE_GIVEN[option.name]] if option.name in IDLE_GIVEN else other_text(option)
    before, after = validation(*needs), validation(*needs, *given)
    assert measured(before) == measured(after)
    assert option.dest in after.recorded
    assert any(note.startswith("no effect here") and option.flag in note for note in after.notes)


def other_text(option):
    if option.parse is not None and not option.choices and not isinstance(option.default, int | float):
        return [option.flag, "2"]
    return other(option)


@pytest.mark.parametrize(
    ("argv", "workload", "params"),
    [
        ("--model resnet --model-size 50 --batch-norm", "resnet50", {"norm_type": "batch", "norm_eps": 1e-5}),
        ("--model resnet", "resnet18", {"norm_type": "group", "norm_num_groups": 32, "norm_strided": True}),
        ("--model resnet --batch-norm --group-norm", "resnet18", {"norm_type": "group"}),
        ("--model resnext --model-size 101", "resnext101-32x4d", {"convolution_groups": 32, "group_dim": 4}),
        ("--model resnext", "resnext14", {"convention": "tensorflow"}),
        ("--model efficientnet --model-size 4", "efficientnet-b4", {"norm_type": "group", "norm_num_groups": 4}),
        ("--model efficientnet --model-size b4 --batch-norm --group-norm", "efficientnet-b4", {"norm_type": "batch"}),
        ("--model efficientnet --proxy-norm", "efficientnet-b0", {"norm_type": "proxy", "norm_eps": 1e-3}),
        ("--model EfficientNet --group-dim=16 --expand-ratio=4", "efficientnet-b0", {"group_dim": 16}),
        ("--model squeezenet", "squeezenet", {"convention": "tensorflow"}),
        ("--config mk2_resnext101_16ipus --replicas 1", "resnext101-32x4d", {"pictures": "8-bit"}),
    ],
)
def test_models_of_the_tensorflow_program(argv, workload, params):
    spec = validation(*argv.split(), "--synthetic-data", "--dataset", "imagenet").spec
    assert workload == spec.workload
    assert params == {name: spec.params[name] for name in params}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", ("raw", "mean", "mean")),
        ("--normalise-input", ("raw", "full", "full")),
        ("--eight-bit-io", ("8-bit", "mean", "mean")),
        ("--hostside-norm --normalise-input", ("normalised", "full", "full")),
        ("--hostside-norm --eight-bit-io", ("8-bit", "mean", "mean")),
    ],
)
def test_who_normalises_how(argv, expected):
    spec = validation(*LOADED.split(), *argv.split()).spec
    assert expected == (spec.params["pictures"], spec.params["normalise_inside"], spec.loading.normalise)


@pytest.mark.parametrize(
    ("batch", "replicas", "expected"),
    [(1, 1, (50, 1000)), (4, 1, (12, 1041)), (32, 1, (2, 781)), (90, 1, (1, 555)), (80, 4, (1, 156))],
)
def test_a_validation_is_cut_as_the_seeds_cut_it(batch, replicas, expected):
    steps = validation(*MADE_UP.split(), "--batch-size", str(batch), "--replicas", str(replicas)).steps
    assert expected == (steps.calls, steps.batches)
    assert (1, 1, 0) == (steps.steps, steps.dropped, steps.scored)


def test_a_total_batch_is_shared_by_the_replicas():
    assert 3 == validation(*MADE_UP.split(), "--total-batch-size", "6", "--replicas", "2").spec.batch_size


POPRUN = {
    "POPDIST_INSTANCE_INDEX": "0",
    "POPDIST_NUM_INSTANCES": "4",
    "POPDIST_LOCAL_INSTANCE_INDEX": "0",
    "POPDIST_NUM_LOCAL_REPLICAS": "1",
    "POPDIST_NUM_TOTAL_REPLICAS": "4",
    "MASTER_PORT": "1",
}


def test_a_total_batch_is_shared_by_the_replicas_of_the_job(monkeypatch):
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    found = validation(*MADE_UP.split(), "--total-batch-size", "320").spec
    assert (80, 4) == (found.batch_size, found.plan.replicas)
    with pytest.raises(UserError, match="--total-batch-size 9: expected a multiple of the job's 4 replicas"):
        validation(*MADE_UP.split(), "--total-batch-size", "9")


def test_the_epoch_counts_the_replicas_of_the_job(monkeypatch):
    values = {"batch_size": 10, "gradient_accumulation_count": 5, "replicas": 1, "dataset": "cifar-10"}
    assert 1.0 == epoch_of(Path("ckpt-1000"), values)
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    assert 4.0 == epoch_of(Path("ckpt-1000"), values)


def test_real_pictures_are_validated_once_each_and_scored():
    steps = validation(*LOADED.split(), "--repeat", "3").steps
    assert (3, 1, 2, 2) == (steps.steps, steps.calls, steps.batches, steps.scored)


def test_a_folder_of_checkpoints_is_validated_in_order(tmp_path):
    for number in (20, 3):
        (tmp_path / f"ckpt-{number}.safetensors").write_bytes(Path("tensorflow-7.safetensors").read_bytes())
    every, _ = validated(*TINY.split(), "--restore-path", str(tmp_path))
    assert [("ckpt-3", 3), ("ckpt-20", 20)] == [(each.name, each.point) for each in every]


@pytest.mark.parametrize(
    ("more", "expected"),
    # Each takes 4 s; the last of a batch size has what the others have left.
    [("--budget 30s", [10, 13, 22]), ("", [inf] * 3), ("--budget 60s --batch-size 1,2", [10, 13, 22] * 2)],
    ids=["one batch size", "no budget", "two batch sizes"],
)
def test_the_checkpoints_of_a_folder_share_the_budget(tmp_path, monkeypatch, more, expected):
    for number in (1, 2, 3):
        (tmp_path / f"ckpt-{number}.safetensors").write_bytes(Path("tensorflow-7.safetensors").read_bytes())
    clock, given = Clock(), []
    monkeypatch.setattr(deadline, "Deadline", lambda seconds, clock=clock: Deadline(seconds, clock=clock))
    monkeypatch.setattr(seed_run, "run", lambda *asked: given.append(asked[3].left()) or int(bool(clock.wait(4)())))
    monkeypatch.setattr("layermark.seeds.cnns.entry._ended", lambda measured: max(status for _, status in measured))
    words = [*TINY.split(), "--no-logs", "--backend", "null", "--restore-path", str(tmp_path), *more.split()]
    assert 0 == validation_of(TENSORFLOW.with_name("validation.py"), words)
    assert expected == given


def test_the_epoch_of_a_checkpoint_is_known(tmp_path):
    path = tmp_path / "ckpt-1600.safetensors"
    path.write_bytes(Path("tensorflow-7.safetensors").read_bytes())
    argv = [*TINY.split(), "--restore-path", str(path), "--batch-size", "10", "--gradient-accumulation-count", "25"]
    assert (1600, 1600 * 250 / 50_000) == (validation(*argv).point, validation(*argv).epoch)
    path.with_suffix(".json").write_text('{"update": 1600, "epoch": 20.46}')
    assert 20.46 == validation(*argv).epoch


def test_finite_numbers_are_watched_in_any_case():
    assert any("--fp-exceptions" in note for note in validation(*MADE_UP.split(), "--fp-exceptions").notes)


def test_defaults_depend_on_model_and_data_set():
    assert 4 == validation(*MADE_UP.split()).spec.batch_size
    small = validation("--synthetic-data", "--dataset", "CIFAR-100", "--model", "resnext")
    assert ("resnext11-cifar", 8, 100) == (small.spec.workload, small.spec.batch_size, small.spec.params["classes"])
    assert "batch" == small.spec.params["norm_type"]


@pytest.mark.parametrize("name", named_sets(TENSORFLOW))
def test_every_named_set_of_the_tensorflow_programs(name):
    found = validation("--config", name, "--synthetic-data", "--replicas", "1")
    assert found.spec.workload.startswith(("resnet50", "resnext101", "efficientnet-b4"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--model vgg", "unknown model 'vgg'"),
        ("--model resnet --group-dim 4", "unrecognized arguments: --group-dim 4"),
        ("--lr-schedule cosine", "unrecognized arguments: --lr-schedule cosine"),
        ("-h", "unrecognized arguments: -h"),
        ("--model resnet --model-size 51", "--model-size 51: model 'resnet51'; did you mean resnet50"),
        ("--generated-data", "exclude each other"),
        ("--pipeline", "--pipeline needs several shards"),
        ("--pipeline --shards 2", "0 names for 2 shards, expected 1; possible: b1/0/relu"),
        ("--pipeline --shards 2 --pipeline-split b3/9/relu", "unknown split 'b3/9/relu'"),
        ("--available-memory-proportion 0.1 0.2", "give one, or with --pipeline two per shard (2)"),
        ("--batch-size 1 --micro-batch-size 2", "--batch-size and --micro-batch-size say the same"),
        ("--total-batch-size 9 --replicas 2", "--total-batch-size 9: expected a multiple of --replicas 2"),
        ("--select-ipu 99", "--select-ipu 99: no such device; expected AUTO (cpu), or 0 (cpu)"),
        ("--restore-path nowhere.safetensors", "no such file"),
        ("--restore-path images", "no checkpoint"),
        ("--dataset mnist", "--dataset mnist: expected one of imagenet, cifar-10, cifar-100"),
        ("--config mk3", "unknown config in configs.yml 'mk3'; known: mk1_resnet50"),
    ],
)
def test_wrong_input_of_validation_is_one_line(argv, message):
    with pytest.raises(UserError) as caught:
        validation(*MADE_UP.split(), *argv.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--synthetic-data", "--synthetic-data needs --dataset, one of imagenet, cifar-10, cifar-100"),
        ("--dataset imagenet", "no data: give --data-dir FOLDER, --generated-data or --synthetic-data"),
        ("--data-dir images --dataset imagenet --batch-size 9", "5 pictures do not fill one batch of 9"),
    ],
)
def test_data_that_are_missing(monkeypatch, argv, message):
    for name in ("DATA_DIR", "DATASETS_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=message):
        validation(*argv.split())


def test_data_are_found_through_either_variable(monkeypatch):
    monkeypatch.setenv("DATASETS_DIR", "images")
    assert "images" == validation("--image-size", "32").spec.loading.data_dir
    monkeypatch.setenv("DATA_DIR", ".")
    with pytest.raises(UserError, match="no pictures"):
        validation("--image-size", "32", "--dataset", "imagenet")


SEED_COMMANDS = {
    "S18": "--model resnet --model-size 50 --dataset imagenet --batch-size 1 --synthetic-data --repeat 10 --batch-norm "
    "--enable-half-partials",
    "S19": "--model resnext --model-size 101 --dataset imagenet --batch-size 1 --synthetic-data --repeat 10 "
    "--batch-norm --enable-half-partials",
    "S20": "--model efficientnet --model-size 0 --dataset imagenet --precision 16.16 --batch-size 1 --synthetic-data "
    "--repeat 10 --batch-norm --enable-half-partials",
    "S21": "--model resnet --model-size 50 --dataset imagenet --batch-size 1 --generated-data --repeat 10 --batch-norm "
    "--enable-half-partials --eight-bit-io",
    "S22": "--model resnext --model-size 101 --dataset imagenet --batch-size 2 --generated-data --repeat 10 "
    "--batch-norm --enable-half-partials --eight-bit-io",
    "S23": "--model efficientnet --model-size 0 --dataset imagenet --precision 16.16 --batch-size 8 --generated-data "
    "--repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SEED_COMMANDS["S18"], ("resnet50", "synthetic", "32.32", 1, 50_000, "raw")),
        (SEED_COMMANDS["S19"], ("resnext101-32x4d", "synthetic", "32.32", 1, 50_000, "raw")),
        (SEED_COMMANDS["S20"], ("efficientnet-b0", "synthetic", "32.32", 1, 50_000, "raw")),
        (SEED_COMMANDS["S21"], ("resnet50", "generated", "32.32", 1, 50_000, "8-bit")),
        (SEED_COMMANDS["S22"], ("resnext101-32x4d", "generated", "32.32", 2, 25_000, "8-bit")),
        (SEED_COMMANDS["S23"], ("efficientnet-b0", "generated", "32.32", 8, 6246, "8-bit")),
    ],
    ids=SEED_COMMANDS,
)
def test_the_seeds_validation_commands(line, expected):
    found = validation(*line.split())
    spec, steps = found.spec, found.steps
    pictures = spec.params["pictures"]
    assert expected == (spec.workload, spec.data, spec.precision, spec.batch_size, steps.step_batches, pictures)
    assert 10 == steps.steps
