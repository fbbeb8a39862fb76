"""The options of the CNN programs: names of all releases, defaults, named sets, and what each of them changes."""

import json
from pathlib import Path

import numpy as np
import pytest

from layermark.data.decode import encode
from layermark.errors import UserError
from layermark.seeds.cnns.entry import model_of
from layermark.seeds.cnns.folders import run_name
from layermark.seeds.cnns.inference import request
from layermark.seeds.cnns.inference_options import SCRIPT
from layermark.seeds.cnns.modes import MODES as DATA_MODES
from layermark.seeds.cnns.modes import batches
from layermark.seeds.cnns.tensorflow_options import TRAIN_ONLY_KEYS, validation_script
from layermark.seeds.cnns.validation import requests
from layermark.seeds.configs import named_sets
from layermark.seeds.engine import Engine
from layermark.seeds.parsing import parse
from layermark.spec import Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PYTORCH, TENSORFLOW = (BENCHMARKS / name / "configs.yml" for name in ("pytorch_cnns", "tensorflow_cnns"))
MODELS = ("resnet", "resnext", "efficientnet", "squeezenet")
NOTHING = Engine()


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A working directory with pictures in `images`, and checkpoints of small models."""
    made = tmp_path_factory.mktemp("cnns")
    (made / "images").mkdir()
    for number in range(5):
        picture = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype="uint8")
        (made / "images" / f"{number}.jpg").write_bytes(encode(picture, 90))
    for convention in ("pytorch", "tensorflow"):
        graph = task(Spec(workload="resnet8-cifar", backend="null", batch_size=1, params={"convention": convention}))
        arrays = {name.replace("/", "."): np.zeros(each.shape) for name, each in graph.graph.parameters.items()}
        checkpoint.write(made / f"{convention}-7.safetensors", arrays.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        yield made


def inference(*argv, engine=NOTHING):
    """What `run_benchmark.py` would measure."""
    typed = parse(SCRIPT, "run_benchmark.py", [*argv, "--backend", "null"], PYTORCH)
    return request(typed, engine, Path("logs"))


def small(*argv, **more):
    return inference("--image-size", "32", *argv, **more)


def validated(*argv, engine=NOTHING):
    """What `validation.py` would measure, and its values."""
    words = [*argv, "--backend", "null"]
    script = validation_script(model_of(TENSORFLOW.with_name("validation.py"), words))
    typed = parse(script, "validation.py", words, TENSORFLOW, TRAIN_ONLY_KEYS)
    return requests(script, typed, engine), typed.values


def validation(*argv, **more):
    return validated(*argv, **more)[0][0]


def measured(asked):
    return asked.spec, asked.course


def other(option):
    """A command line that gives an option another value than its default."""
    if option.parse is None:
        return [option.flag]
    if option.choices:
        return [option.flag, next(each for each in reversed(option.choices) if each != option.default)]
    return [option.flag, str((option.default or 1) + 1)]


# What an option needs beside it before it can have an effect.
NEEDS = {
    "norm-num-groups": "--norm-type group --norm-num-groups 8",
    "efficientnet-group-dim": "--model efficientnet-b0",
    "efficientnet-expand-ratio": "--model efficientnet-b0",
    "dataloader-worker": "--data real",
    "dataloader-rebatch-size": "--data real",
    "webdataset-memory-cache-ratio": "--data real",
    "random-weights": "--model resnet8-cifar --weights pytorch-7.safetensors",
}
GIVEN = {
    "config": "--config common",
    "model": "--model resnet34",
    "precision": "--precision half",
    "norm-num-groups": "--norm-num-groups 16",
    "batchnorm-momentum": "--batchnorm-momentum 0.2",
    "norm-eps": "--norm-eps 0.001",
    "webdataset-memory-cache-ratio": "--webdataset-memory-cache-ratio 0.5",
}


@pytest.mark.parametrize("option", [each for each in SCRIPT.options if each.mark == "="], ids=lambda each: each.flag)
def test_every_option_of_inference_marked_equal_changes_what_is_measured(option):
    needs = NEEDS.get(option.name, "--data synthetic" if option.name != "data" else "").split()
    given = GIVEN[option.name].split() if option.name in GIVEN else other(option)
    assert measured(small(*needs)) != measured(small(*needs, *given))


@pytest.mark.parametrize("option", [each for each in SCRIPT.options if each.mark == "sim"], ids=lambda each: each.flag)
def test_every_simulated_option_of_inference_is_recorded_and_named_and_changes_nothing(option):
    argv = ["--data", "generated", *([option.flag, "0.3"] if option.many else other(option))]
    before, after = small("--data", "generated"), small(*argv)
    assert measured(before) == measured(after)
    assert option.dest in after.recorded
    assert any(note.startswith("no effect on this device") and option.flag in note for note in after.notes)


@pytest.mark.parametrize(
    ("argv", "param", "expected"),
    [
        ("--eight-bit-io", "pictures", "8-bit"),
        ("--normalization-location ipu", "pictures", "raw"),
        ("--normalization-location host", "pictures", "normalised"),
        ("--normalization-location none --eight-bit-io", "normalise_inside", "none"),
        ("--enable-fast-groupnorm --norm-type group --norm-num-groups 8", "norm_strided", True),
        ("--normlayer none", "norm_type", "none"),
        ("--normlayer group --groupnorm-group-num 4", "norm_num_groups", 4),
    ],
)
def test_options_of_the_model(argv, param, expected):
    assert expected == small("--data", "synthetic", *argv.split()).spec.params[param]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", {"data_dir": "images", "source": "images", "normalise": "full", "loader_workers": -1, "prefetch": 0}),
        ("--normalization-location none", {"normalise": "none"}),
        ("--num-io-tiles 64", {"prefetch": 3}),
        ("--dataloader-worker 0 --skip-bad on", {"loader_workers": 0, "skip_bad": True}),
        ("--data-dir images", {"source": "auto"}),
    ],
)
def test_how_real_pictures_are_loaded(argv, expected):
    found = small("--data", "real", *argv.split()).spec.to_json()["loading"]
    assert expected == {name: found[name] for name in expected}


def test_replicas_splits_and_a_compile_cache():
    found = small("--data", "synthetic", "--replicas", "3", "--pipeline-splits", "layer2/0", "layer4")
    assert 3 == found.spec.plan.replicas
    assert any("--pipeline-splits" in note for note in found.notes)
    cached = parse(SCRIPT, "x", ["--data", "synthetic", "--model-cache-path", "kept", "--backend", "torch"], PYTORCH)
    asked = request(cached, NOTHING, Path("logs"))
    assert {"TORCHINDUCTOR_CACHE_DIR": str(Path("kept").resolve())} == asked.variables


def test_a_profile_stops_after_the_first_call():
    found = small("--data", "synthetic", "--profile", "--device-iterations", "3")
    assert (1, 3, Path("logs")) == (found.course.steps, found.course.batches, found.course.profile.folder)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--device-iteration 64", {"device_iterations": 64}),
        ("--precision half", {"precision": "16.16"}),
        ("--precision full", {"precision": "32.32"}),
        ("--available-memory-proportion 0.2 0.3 --iterations 3", {"available_memory_proportion": (0.2, 0.3)}),
        ("--normla none --groupnorm 2", {"norm_type": "none", "norm_num_groups": 2}),
        ("--iter 3 --rep 2 --data generated", {"iterations": 3, "replicas": 2, "data": "generated"}),
    ],
)
def test_both_vocabularies_and_abbreviations(argv, expected):
    found = parse(SCRIPT, "run_benchmark.py", argv.split(), PYTORCH).values
    assert expected == {name: found[name] for name in expected}


def test_what_is_typed_wins_over_a_named_set_which_wins_over_defaults():
    found = inference("--config", "resnet50-mk2", "--data", "generated", "--batch-size", "2", "--device-iteration", "1")
    assert ("resnet50", 2, 1) == (found.spec.workload, found.spec.batch_size, found.spec.batches_per_step)
    assert "8-bit" == found.spec.params["pictures"]
    assert "32.32" == found.spec.precision
    assert any("fp32" in note for note in found.notes)
    assert "16.16" == inference("--config", "common", "--data", "synthetic", "--precision", "half").spec.precision


@pytest.mark.parametrize("name", named_sets(PYTORCH))
def test_every_named_set_of_the_pytorch_program(name):
    found = inference("--config", name, "--data", "synthetic", "--batch-size", "1")
    assert found.spec.batches_per_step == (64 if "v3-small" in name else 128)
    assert task(found.spec).graph.parameter_count > 0


def test_the_group_norm_sets_are_strided_groups_of_sixteen():
    params = inference("--config", "efficientnet-b4-g16-gn-mk2", "--data", "synthetic").spec.params
    wanted = {"group_dim": 16, "expand_ratio": 4, "norm_type": "group", "norm_eps": 0.001, "norm_strided": True}
    assert wanted == {name: params[name] for name in wanted}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {modle: resnet18}", "unknown option in sets.yml, a: 'modle'; did you mean model"),
        ("a: {batch_size: 0}", "sets.yml, a: --batch-size 0: expected a whole number of at least 1"),
        ("a: {eight_bit_io: 3}", "sets.yml, a: eight_bit_io: expected true or false, received 3"),
        ("a: [", "sets.yml: broken YAML"),
        ("- a", "sets.yml: expected names"),
        ("b: {}", "unknown config in sets.yml 'a'"),
    ],
)
def test_named_sets_that_cannot_be(tmp_path, text, message):
    (tmp_path / "sets.yml").write_text(text)
    with pytest.raises(UserError) as caught:
        parse(SCRIPT, "run_benchmark.py", ["--config", "a"], tmp_path / "sets.yml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--model resnet51", "unknown model 'resnet51'; did you mean resnet50"),
        ("--model lstm", "unknown model 'lstm'"),
        ("--num-io-tiles 31", "--num-io-tiles 31: expected 0, or a whole number of at least 32"),
        ("--pipeline-splits layer3/9", "unknown split 'layer3/9'; did you mean layer3"),
        ("--available-memory-proportion 0.1 0.2 0.3", "3 values for 1 stages; give 1 or 1"),
        ("--data-dir nowhere", "nowhere: no such folder"),
        ("--norm-type group --norm-num-groups 7", "groups that do not divide channels"),
        ("--data made", "--data made: expected one of real, synthetic, generated"),
        ("--weights none.safetensors", "no such file"),
        ("--iterations 0", "expected a whole number of at least 1"),
        ("--norm batch", "ambiguous option: --norm could match"),
    ],
)
def test_wrong_input_of_inference_is_one_line(argv, message):
    with pytest.raises(UserError) as caught:
        small(*argv.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pictures_get_images_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no folder images here; \./get_images\.sh fills one"):
        small("--data", "real")


def test_the_environment_can_forbid_to_load_ahead():
    engine = Engine(others={"exchange.enablePrefetch": "false"})
    found = small("--data", "real", engine=engine)
    assert 0 == found.spec.loading.loader_workers
    assert any("pictures are loaded between batches" in note for note in found.notes)
    idle = small("--data", "synthetic", engine=engine)
    assert any("no effect on this device: exchange.enablePrefetch" in note for note in idle.notes)


# --- validation.py

MADE_UP = "--synthetic-data --dataset imagenet --image-size 32"
LOADED = "--data-dir images --dataset imagenet --image-size 32 --batch-size 2"
TINY = "--synthetic-data --dataset cifar-10 --model-size 8"
VALIDATION_NEEDS = {
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
VALIDATION_GIVEN = {
    "model": "--model squeezenet",
    "config": "--config mk1_resnet50_16ipus",
    "restore-path": "--restore-path tensorflow-7.safetensors",
    "dataset": "--dataset cifar-10",
    "data-dir": "--data-dir ./images",
    "precision": "--precision 16.16",
    "BN-decay": "--BN-decay 0.9",
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


def shown(asked, values):
    """All that a command line decides about a validation."""
    written = None if values["no_logs"] else (values["log_dir"], values["logs_path"], run_name(values, asked[0].spec))
    return [(*measured(each), each.latency) for each in asked], written, values["dataset_benchmark"]


@pytest.mark.parametrize(("model", "option"), EQUAL, ids=[f"{model} {option.flag}" for model, option in EQUAL])
def test_every_option_of_validation_marked_equal_changes_what_is_done(model, option):
    needs = f"--model {model} {VALIDATION_NEEDS.get(option.name, MADE_UP)}"
    given = VALIDATION_GIVEN.get(option.name) or SIZES.get((model, option.name)) or " ".join(other(option))
    assert shown(*validated(*needs.split())) != shown(*validated(*needs.split(), *given.split()))


IDLE = [
    (model, option)
    for model in MODELS
    for option in validation_script(model).options
    if option.mark in ("sim", "training") and (model == "resnet" or option.group == "EfficientNet")
]
IDLE_GIVEN = {
    "scheduling-algorithm": "shortest",
    "available-memory-proportion": "0.2",
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
    assert before.course == after.course
    assert task(before.spec).graph == task(after.spec).graph
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
    course = validation(*MADE_UP.split(), "--batch-size", str(batch), "--replicas", str(replicas)).course
    assert expected == (course.calls, course.batches)
    assert (1, 1, 0) == (course.steps, course.dropped, course.scored)


def test_a_total_batch_is_shared_by_the_replicas():
    assert 3 == validation(*MADE_UP.split(), "--total-batch-size", "6", "--replicas", "2").spec.batch_size


def test_real_pictures_are_validated_once_each_and_scored():
    course = validation(*LOADED.split(), "--repeat", "3").course
    assert (3, 1, 2, 2) == (course.steps, course.calls, course.batches, course.scored)


def test_a_folder_of_checkpoints_is_validated_in_order(tmp_path):
    for number in (20, 3):
        (tmp_path / f"ckpt-{number}.safetensors").write_bytes(Path("tensorflow-7.safetensors").read_bytes())
    every, _ = validated(*TINY.split(), "--restore-path", str(tmp_path))
    assert [("ckpt-3", 3), ("ckpt-20", 20)] == [(each.name, each.point) for each in every]


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
        ("--select-ipu 99", "--select-ipu 99: no such device; expected AUTO, 0 (cpu)"),
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
        (SEED_COMMANDS["S20"], ("efficientnet-b0", "synthetic", "16.16", 1, 50_000, "raw")),
        (SEED_COMMANDS["S21"], ("resnet50", "generated", "32.32", 1, 50_000, "8-bit")),
        (SEED_COMMANDS["S22"], ("resnext101-32x4d", "generated", "32.32", 2, 25_000, "8-bit")),
        (SEED_COMMANDS["S23"], ("efficientnet-b0", "generated", "16.16", 8, 6246, "8-bit")),
    ],
    ids=SEED_COMMANDS,
)
def test_the_seeds_validation_commands(line, expected):
    found = validation(*line.split())
    spec, course = found.spec, found.course
    pictures = spec.params["pictures"]
    assert expected == (spec.workload, spec.data, spec.precision, spec.batch_size, course.step_batches, pictures)
    assert 10 == course.steps


INFERENCE_COMMANDS = {
    "S6": "--config resnet50-mk2 --data generated --batch-size 80 --iterations 20 --num-io-tiles 64",
    "S7": "--config efficientnet-b0-mk2 --data generated --batch-size 48 --iterations 20 --num-io-tiles 64",
    "S8": "--config efficientnet-b4-mk2 --data generated --batch-size 10 --iterations 20 --num-io-tiles 0",
    "S9": "--data generated --batch-size 16 --model resnext101 --device-iterations 128 --norm-type batch "
    "--precision 16.16 --half-partial --eight-bit-io --normalization-location ipu --iterations 20 --num-io-tiles 32",
    "S25": "--data real --replicas 1 --batch-size 1 --model resnet18 --device-iteration 1",
    "S26": "--data synthetic --replicas 1 --batch-size 16 --model resnet18 --device-iteration 1000 --normlayer none "
    "--precision half",
    "S27": "--data real --replicas 1 --batch-size 24 --model resnet18 --device-iteration 64 --normlayer batch "
    "--precision half",
    "S28": "--data real --replicas 1 --batch-size 19 --model resnet34 --device-iteration 64 --normlayer batch "
    "--precision half",
    "S29": "--data real --replicas 1 --batch-size 8 --model resnet50 --device-iteration 64 --normlayer batch "
    "--precision half",
    "S30": "--data real --replicas 1 --batch-size 11 --model efficientnet-b0 --device-iteration 1000 "
    "--normlayer batch --precision half",
}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (INFERENCE_COMMANDS["S6"], ("resnet50", "32.32", 80, 128, 20)),
        (INFERENCE_COMMANDS["S7"], ("efficientnet-b0", "32.32", 48, 128, 20)),
        (INFERENCE_COMMANDS["S8"], ("efficientnet-b4", "32.32", 10, 128, 20)),
        (INFERENCE_COMMANDS["S9"], ("resnext101", "16.16", 16, 128, 20)),
        (INFERENCE_COMMANDS["S25"], ("resnet18", "32.32", 1, 1, 100)),
        (INFERENCE_COMMANDS["S26"], ("resnet18", "16.16", 16, 1000, 100)),
        (INFERENCE_COMMANDS["S27"], ("resnet18", "16.16", 24, 64, 100)),
        (INFERENCE_COMMANDS["S28"], ("resnet34", "16.16", 19, 64, 100)),
        (INFERENCE_COMMANDS["S29"], ("resnet50", "16.16", 8, 64, 100)),
        (INFERENCE_COMMANDS["S30"], ("efficientnet-b0", "16.16", 11, 1000, 100)),
    ],
    ids=INFERENCE_COMMANDS,
)
def test_the_seeds_inference_commands(line, expected):
    found = inference(*line.split())
    spec, course = found.spec, found.course
    assert expected == (spec.workload, spec.precision, spec.batch_size, course.batches, course.steps)
    assert 2 == course.dropped
    json.dumps(dict(found.recorded))


VARIANTS = [
    "--data synthetic --replicas 2",
    "--data synthetic --model resnet50 --pipeline-splits layer3/2 --batch-size 2 --device-iterations 8",
    "--data real --model resnext101 --pipeline-splits layer3/6 layer3/20 layer4",
    *(f"--data real --model {name}" for name in ("resnet34", "resnext50", "mobilenet", "efficientnet-b1")),
    *(f"--data real --model efficientnet-b{size}" for size in (0, 2, 3, 4)),
    *(f"--data real --precision {word}" for word in ("half", "full", "16.16", "32.32")),
    *(f"--data real --norm-type {word} --norm-num-groups 32" for word in ("group", "none")),
    *(f"--data real --model efficientnet-b0 --normlayer {word} --groupnorm-group-num 4" for word in ("group", "none")),
    "--data real --pipeline-splits layer3/0",
    "--data generated --config resnet50-mk2 --batch-size 1 --num-io-tiles 32",
    "--data real --model mobilenet-v3-small --random-weights --input-image-padding",
]


@pytest.mark.parametrize("line", VARIANTS)
def test_the_variants_of_the_seeds_own_tests(line):
    assert task(inference(*line.split()).spec).graph.parameter_count > 0


def test_the_data_modes_can_be_called():
    with pytest.raises(UserError, match="unknown data mode 'reel'; did you mean real"), batches("reel", 2):
        pass
    with batches("real", 2, workers=0) as stream:
        loaded = next(stream)
    assert ((2, *DATA_MODES["real"].shape), [0, 1]) == (loaded.pictures.shape, list(loaded.labels))
    with batches("synthetic", 2) as stream:
        assert next(stream) is next(stream)


@pytest.mark.parametrize("native", [True, False])
def test_emulated_halves_are_announced(monkeypatch, native):
    monkeypatch.setattr("layermark.devices.cpu.native_half", lambda: native)
    notes = small("--data", "synthetic", "--precision", "half").notes
    assert native != any("16-bit floats" in note for note in notes)
    assert not any("16-bit floats" in note for note in small("--data", "synthetic").notes)


@pytest.mark.parametrize(("budget", "execution"), [("3m", "eager"), ("4m", "auto")])
def test_a_short_budget_leaves_no_time_to_compile(budget, execution):
    typed = parse(SCRIPT, "x", ["--data", "synthetic", "--backend", "torch", "--budget", budget], PYTORCH)
    assert execution == request(typed, NOTHING, Path("logs")).spec.execution
