"""The options of the TensorFlow training program: the documents' commands, spellings, named sets, defaults."""

import json

import pytest

from layermark.devices import cpu
from layermark.errors import UserError
from layermark.seeds.cnns.train_opening import arguments
from layermark.seeds.configs import named_sets
from layermark.seeds.engine_options import EngineOptions

from .train_commands import MODELS, SCRIPT, SMALL, TINY, document, read


@pytest.mark.parametrize(
    ("name", "batch", "peak", "epochs", "schedule", "exponent"),
    [
        ("S10", 16384, 8.0, 1, "stepped", -11),
        ("S11", 16384, 8.0, 1, "stepped", -11),
        ("S12", 768, 0.375, 2, "cosine", -11),
        ("S13", 768, 0.375, 2, "cosine", -11),
        ("S14", 200, 0.01220703125, 2, "exponential", -14),
        ("S15", 800, 0.048828125, 1, "exponential", -14),
        ("S16", 200, 0.01220703125, 2, "exponential", -14),
        ("S17", 800, 0.048828125, 1, "exponential", -14),
    ],
)
def test_the_documents_commands_are_read_as_typed(train_set, name, batch, peak, epochs, schedule, exponent):
    request = document(name, train_set)
    assert (request.global_batch, request.peak_rate) == (batch, peak)
    assert (request.epochs, request.schedule, request.base_exponent) == (epochs, schedule, exponent)
    assert request.epoch_pictures == 1_281_167
    assert request.warmup_epochs == 5
    assert request.recompute
    assert request.stable_norm
    assert not request.validation
    assert request.spec.mode == "train"
    assert request.spec.loading.split == "train"


def test_the_documents_resnet(train_set):
    request = document("S10", train_set)
    assert request.spec.workload == "resnet50"
    assert (request.norm, request.norm_decay) == ("batch", 0.97)
    assert request.pipeline_splits == ("b1/2/relu", "b2/3/relu", "b3/3/relu")
    assert (request.stages, request.accumulation, request.total_replicas, request.steps_per_call) == (4, 1024, 1, 1)
    assert (request.optimiser, request.momentum, request.weight_decay) == ("momentum", 0.9, 1e-4)
    assert (request.loss_scaling, request.label_smoothing, request.ckpts_per_epoch) == (128, 0, 0)
    assert request.step_fractions == (0.3, 0.6, 0.8, 0.9)
    assert request.spec.loading.data_cache == 0
    assert request.spec.params["pictures"] == "8-bit"
    assert request.spec.params["normalise_inside"] == "full"


def test_the_documents_resnext(train_set):
    request = document("S12", train_set)
    assert request.spec.workload == "resnext101-32x4d"
    assert (request.norm, request.norm_groups) == ("group", 32)
    assert (request.replicas, request.stages, request.accumulation) == (2, 2, 64)
    assert request.label_smoothing == 0.1
    assert request.precision == "16.16"


def test_the_documents_efficientnet(train_set):
    request = document("S14", train_set)
    assert request.spec.workload == "efficientnet-b4"
    assert request.image_size == (380, 380)
    assert (request.norm, request.norm_groups) == ("group", 4)
    assert request.rmsprop_decay == pytest.approx(0.98779296875, abs=0)
    assert document("S15", train_set).rmsprop_decay == pytest.approx(0.951171875, abs=0)
    assert (request.decay_rate, request.drops, request.rmsprop_epsilon) == (0.97, 146, 0.001)
    assert (request.mixup_alpha, request.cutmix_lambda, request.cutmix_version) == (0.2, 0.85, 1)
    assert (request.weight_avg_exp, request.ckpts_per_epoch) == ((0.97,), 1)
    assert (request.weight_decay, request.label_smoothing) == (1e-5, 0.1)
    assert request.spec.params["normalise_inside"] == "mean"
    assert request.spec.params["pictures"] == "raw"


def test_the_documents_efficientnet_as_its_heading_says(train_set):
    request = document("S14 corrected", train_set)
    changed = "--replicas 1 --gradient-accumulation-count 256"
    named = read(f"--config mk2_efficientnet_b4_g1_16ipus --data-dir {train_set} {changed}")
    assert (request.micro_batch, request.accumulation, request.global_batch) == (3, 256, 768)
    assert request.pipeline_splits == named.pipeline_splits == ("block2b", "block4b", "block6c")
    assert request.spec.params == named.spec.params and request.peak_rate == named.peak_rate == 2**-14 * 768
    assert request.spec.params != document("S16", train_set).spec.params
    spread = document("S15 corrected", train_set)
    assert (spread.micro_batch, spread.accumulation, spread.total_replicas, spread.global_batch) == (3, 64, 4, 768)
    assert spread.pipeline_splits == request.pipeline_splits and spread.spec.params == request.spec.params


def test_options_of_ipus_are_named_once_and_recorded(train_set):
    request = document("S14", train_set)
    named = [note for note in request.notes if note.startswith("no effect on this device: ")]
    assert len(named) == 1
    for flag in ("--enable-conv-dithering", "--available-memory-proportion", "--disable-variable-offloading"):
        assert named[0].count(flag) == 1
        assert flag[2:].replace("-", "_") in request.recorded
    assert "--mixup-alpha" not in named[0]


def test_engine_options_are_named(train_set):
    request = document("S14", train_set, engine=EngineOptions(others={"target.syncReplicas": "x"}))
    assert "target.syncReplicas (POPLAR_ENGINE_OPTIONS)" in request.notes[-1]


@pytest.mark.parametrize(
    ("typed", "field", "value"),
    [
        ("--epoch 2", "epochs", 2),
        ("--epochs 0.5", "epochs", 0.5),
        ("--base-learning-rate -11", "base_exponent", -11),
        ("--base-learning-rate=-11", "base_exponent", -11),
        ("--base-learning-rate-exponent -7.5", "base_exponent", -7.5),
        ("--base-l -9", "base_exponent", -9),
        ("--xla-recompute", "recompute", True),
        ("--enable-recomputation", "recompute", True),
        ("--batch-size 3", "micro_batch", 3),
        ("--micro-batch-size 3", "micro_batch", 3),
        ("--gradient 4", "accumulation", 4),
        ("--gradient-accumulation-count=4", "steps_per_call", 4),
        ("--shards=4", "shards", 4),
        ("--shards 4", "shards", 4),
        ("--lr-s cosine", "schedule", "cosine"),
        ("--lr-schedule=polynomial_decay_lr", "poly_power", 2.0),
        ("--iterations 10", "iterations", 10),
        ("--weight-avg-N 2 5", "weight_avg_n", (2, 5)),
        ("--weight-avg-exp 0.9 0.99", "weight_avg_exp", (0.9, 0.99)),
        ("--log-all-instances False", "log_all_instances", True),
        ("--learning-rate-schedule 0.5,0.9", "step_fractions", (0.5, 0.9)),
        ("--epoch-size 100", "epoch_pictures", 100),
        ("--dataset-percentage-to-use 10", "epoch_pictures", 5000),
        ("--epochs-per-ckpt 4", "ckpts_per_epoch", 0.25),
        ("--abs-learning-rate 0.25", "peak_rate", 0.25),
        ("--seed 1234", "seeded", True),
    ],
)
def test_spellings_and_abbreviations(typed, field, value):
    assert getattr(read(f"{TINY} {typed}"), field) == value


@pytest.mark.parametrize("word", ["4", "B4", "b4"])
def test_sizes_of_efficientnet_in_every_spelling(word):
    request = read(f"--model EfficientNet --model-size {word} --synthetic-data --dataset imagenet --image-size 32")
    assert request.spec.workload == "efficientnet-b4"


def test_a_prefix_of_pipeline_splits():
    options = "--model resnet --model-size 14 --shards 2 --pipeline --gradient-accumulation-count 4"
    assert read(f"{SMALL} {options} --pipeline-split b2/0/relu").pipeline_splits == ("b2/0/relu",)


@pytest.mark.parametrize("name", sorted(named_sets(SCRIPT.with_name("configs.yml"))))
def test_every_named_set_trains(train_set, name):
    whole = named_sets(SCRIPT.with_name("configs.yml"))[name]
    request = read(f"--config {name} --data-dir {train_set}")
    factors = [whole.get(key, 1) for key in ("gradient_accumulation_count", "replicas")]
    assert request.global_batch == whole.get("batch_size", 4) * factors[0] * factors[1]
    assert request.schedule == whole.get("lr_schedule", "stepped")
    assert request.optimiser == whole.get("optimiser", "SGD")
    assert request.epochs == whole.get("epochs", 350 if "efficientnet" in name else 100)
    assert read(f"--config {name} --data-dir {train_set} --epochs 3").epochs == 3


def test_what_is_typed_wins_over_a_named_set(train_set):
    request = read(f"--config mk2_resnet50_bn_16ipus --data-dir {train_set} --lr-schedule stepped --iterations 7")
    assert (request.schedule, request.iterations, request.base_exponent) == ("stepped", 7, -13)


@pytest.mark.parametrize(
    ("argv", "length", "exponent", "decay", "batch"),
    [
        ("--model resnet --dataset imagenet", 100, -8, 1e-4, 4),
        ("--model resnet --dataset imagenet --optimiser momentum", 100, -11, 1e-4, 4),
        ("--model resnext --dataset imagenet", 100, -8, 1e-4, 1),
        ("--model efficientnet --dataset imagenet", 350, -7, 1e-5, 4),
        ("--model efficientnet --dataset imagenet --optimiser momentum", 350, -10, 1e-5, 4),
        ("--model efficientnet --dataset imagenet --optimiser RMSprop", 350, -14, 1e-5, 4),
        ("--model resnet --dataset cifar-10", 160, -6, 1e-6, 32),
        ("--model resnext --dataset cifar-100", 160, -6, 1e-6, 8),
        ("--model efficientnet --dataset cifar-10", 300, -6, 1e-6, 8),
    ],
)
def test_defaults_of_models_and_data_sets(argv, length, exponent, decay, batch):
    request = read(f"--synthetic-data {argv}")
    assert (request.epochs, request.base_exponent, request.weight_decay) == (length, exponent, decay)
    assert request.micro_batch == batch
    assert request.epoch_pictures == (1_281_167 if "imagenet" in argv else 50_000)
    assert request.stable_norm == ("imagenet" in argv and "resnet" not in argv)


def test_lars_has_the_weight_decay_to_itself():
    request = read(f"{TINY} --optimiser LARS --weight-decay 0.01")
    assert (request.weight_decay, request.lars_weight_decay) == (0, 0.01)
    assert read(f"{TINY} --optimiser LARS --lars-weight-decay 0.02").lars_weight_decay == 0.02
    assert read(TINY).lars_weight_decay == 0


def test_mixing_and_warm_up_are_switched_off_with_a_notice():
    request = read(f"{TINY} --mixup-alpha 0.2 --iterations 5")
    assert (request.mixup_alpha, request.warmup_epochs) == (0, 0)
    assert "mixup and cutmix are switched off for generated data" in request.notes
    assert any(note.startswith("no warm-up") for note in request.notes)


@pytest.mark.parametrize(
    ("native", "emulate", "used"), [(False, "", "32.32"), (False, "y", "16.32"), (True, "", "16.32")]
)
def test_half_is_used_where_it_is_native_or_insisted_on(monkeypatch, native, emulate, used):
    monkeypatch.setattr(cpu, "native_half", lambda: native)
    request = read(f"{TINY} --backend torch --precision 16.32 {'--emulate-half' * bool(emulate)}")
    assert (request.precision, request.spec.precision) == ("16.32", used)
    assert any("--emulate-half insists" in note for note in request.notes) == (used == "32.32")


def test_no_data_at_all(monkeypatch):
    for name in ("DATA_DIR", "DATASETS_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="no data: give --data-dir"):
        read("--dataset imagenet")


def test_the_environment_names_the_data(train_set, monkeypatch):
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.setenv("DATASETS_DIR", str(train_set))
    assert read("--dataset imagenet --image-size 32").spec.loading.data_dir == str(train_set)


def test_pictures_that_are_found_make_an_epoch(train_set):
    assert read(f"--data-dir {train_set} --dataset imagenet --epoch-size found").epoch_pictures is None


@pytest.fixture
def a_run(tmp_path):
    """The folder of an earlier run."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    before = read(f"--model resnext {TINY.replace('8', '11')} --lr-schedule cosine --budget 3m --micro-batch-size 6")
    (folder / "arguments.json").write_text(json.dumps(arguments(before), default=str))
    return folder


def test_a_run_goes_on_with_its_own_options(a_run):
    request = read(f"--restore-path {a_run} --epochs 3")
    assert (request.model, request.schedule, request.epochs, request.micro_batch) == ("resnext", "cosine", 3, 6)
    assert request.spec.workload == "resnext11-cifar"
    assert request.restore_path == str(a_run)
    assert request.budget_s is None


def test_a_named_set_and_an_earlier_run_exclude_each_other(a_run):
    with pytest.raises(UserError, match="exclude each other"):
        read(f"--restore-path {a_run} --config mk2_resnet50_base")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_options_of_an_earlier_run(tmp_path, text):
    (tmp_path / "arguments.json").write_text(text)
    with pytest.raises(UserError, match="--restore-path"):
        read(f"--restore-path {tmp_path}")


@pytest.mark.parametrize("model", MODELS)
def test_help_lists_the_options_of_the_model(model, capsys):
    with pytest.raises(SystemExit):
        read(f"--model {model} --help")
    shown = capsys.readouterr().out
    title = {"resnet": "ResNet:", "resnext": "ResNeXt:", "efficientnet": "EfficientNet:", "squeezenet": "usage:"}[model]
    assert shown.startswith("usage: train.py")
    assert title in shown
