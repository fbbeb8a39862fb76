"""Options of the training program: each that acts changes what is done, each that does not is named."""

import dataclasses
from datetime import datetime
from pathlib import Path

import pytest

from layermark.devices import cpu
from layermark.seeds.cnns import train_names, train_recipe
from layermark.seeds.cnns.train_opening import labels, variable_lines
from layermark.seeds.cnns.train_options import SCHEDULES, train_script
from layermark.seeds.cnns.train_parsing import parse
from layermark.workloads.base import task

from .samples import other
from .train_commands import LOADED, MADE_UP, MODELS, SCRIPT, SMALL, TINY, read

FACTS = {"values": {}, "recorded": {}, "notes": ()}
NEEDS = {
    "image-size": MADE_UP,
    "dataset": "--synthetic-data --dataset imagenet --model-size 14",
    "model-size": MADE_UP,
    "widenet": "--synthetic-data --dataset cifar-10",
    "group-norm": "--synthetic-data --dataset cifar-10",
    "proxy-epsilon": f"{SMALL} --proxy-norm",
    "groups": f"{SMALL} --group-norm",
    "BN-decay": f"{SMALL} --batch-norm",
    "pipeline": f"{SMALL} --model-size 14 --shards 2 --pipeline-splits b2/0/relu --gradient-accumulation-count 4",
    "pipeline-splits": f"{SMALL} --model-size 14 --shards 2 --gradient-accumulation-count 4 --pipeline "
    "--pipeline-splits b3/0/relu --stages-as-processes",
    "lars-weight-decay": f"{SMALL} --optimiser LARS --base-learning-rate -8",
    "rmsprop-decay": f"{SMALL} --optimiser RMSprop --base-learning-rate -8 --rmsprop-decay 0.5",
    "rmsprop-base-decay-exp": f"{SMALL} --optimiser RMSprop --base-learning-rate -8 --rmsprop-base-decay-exp -9",
    "optimiser": f"{SMALL} --base-learning-rate -8",
    "hostside-norm": LOADED,
    **dict.fromkeys(("mixup-alpha", "cutmix-lambda", "hostside-image-mixing", "cutmix-version"), LOADED),
    **dict.fromkeys(("pipeline-num-parallel", "no-dataset-cache", "standard-imagenet", "prefetch-depth"), LOADED),
    **dict.fromkeys(("data-dir", "train-with-valid-preprocessing", "generated-data", "synthetic-data"), LOADED),
}
GIVEN = {
    "model": "--model squeezenet --base-learning-rate -8",
    "config": "--config mk2_resnet50_base",
    "lr-schedule": "--lr-schedule cosine",
    "init-path": "--init-path {data}",
    "dataset": "--dataset cifar-10",
    "data-dir": "--data-dir {data}/imagenet-data",
    "precision": "--precision 32.32",
    "select-ipu": "--select-ipu 1",
    "gc-profile": "--gc-profile",
    "pipeline-splits": "--pipeline-splits b2/0/relu",
    "optimiser": "--optimiser LARS",
    "BN-decay": "--BN-decay 0.9",
    "momentum": "--momentum 0.8",
    "learning-rate-schedule": "--learning-rate-schedule 0.5",
    "rmsprop-decay": "--rmsprop-decay 0.6",
    "rmsprop-base-decay-exp": "--rmsprop-base-decay-exp -10",
    "norm-epsilon": "--norm-epsilon 0.01",
    "proxy-epsilon": "--proxy-epsilon 0.1",
    "block-survival-prob": "--block-survival-prob 0.5",
    "dropout-rate": "--dropout-rate 0.5",
    "cutmix-lambda": "--cutmix-lambda 0.5",
    "label-smoothing": "--label-smoothing 0.2",
    "groups": "--groups 8",
    "group-dim": "--group-dim 8",
    "depth-divisor": "--depth-divisor 16",
    "width-coefficient": "--width-coefficient 1.1",
    "convolution-groups": "--convolution-groups 16",
    "dataset-percentage-to-use": "--dataset-percentage-to-use 50",
    "variable-filter": "--variable-filter fc",
    "weight-avg-exp": "--weight-avg-exp 0.5",
    "weight-avg-N": "--weight-avg-N 2",
    "lars-skip-list": "--lars-skip-list bias",
    "log-dir": "--log-dir elsewhere",
    "name-suffix": "--name-suffix penguin",
    "logs-path": "--logs-path elsewhere",
    "log-all-instances": "--log-all-instances yes",
    "ckpt-all-instances": "--ckpt-all-instances yes",
    "ckpts-per-epoch": "--ckpts-per-epoch 2",
}
SIZES = {(model, "model-size"): "--model-size 26" for model in MODELS} | {
    ("efficientnet", "model-size"): "--model-size 1"
}
GROUPS = ("ResNet", "ResNeXt", "EfficientNet", "Learning rate")
SEPARATE = {
    "restore-path": "tested below",
    "distributed": "says where the other processes are told from; tested with ranks",
    **dict.fromkeys(("weight-avg-N", "weight-avg-exp"), "act after training; test_cnn_train_recipe makes averages"),
    **dict.fromkeys(("dataset-benchmark", "compile-only"), "other work than training; test_train_script types them"),
    "mlperf-logging": "acts on lines; tested with the printer",
    "latency": "acts on the lines of a validation; tested in test_cnn_train_recipe",
    "max-cross-replica-buffer-size": "acts between processes; in one it is named as without effect",
}
ACTING = [
    (model, schedule, option)
    for model in MODELS
    for schedule in (SCHEDULES if model == "resnet" else ("stepped",))
    for option in train_script(model, schedule).options
    if option.mark != "sim"
    if option.group in GROUPS or (model, schedule) == ("resnet", "stepped")
    if schedule == "stepped" or option.group == "Learning rate"
    if option.name not in SEPARATE
    # Group norms are what an EfficientNet has anyway, and batch norms win over them.
    if (model, option.name) != ("efficientnet", "group-norm")
]


def decided(text):
    """All that a command line decides, apart from the record of what was typed."""
    return dataclasses.replace(read(text), **FACTS)


def done(request):
    """What is really done: spec, plan of the run, folder, and the lines before training but those of the options."""
    train_recipe.check(request)
    length = train_recipe.lengths(request, train_recipe.pictures_of(request)[0])
    spec, folder = train_recipe.spec_of(request), train_names.run_folder(request)
    opening = labels(request, None, "here", datetime(2026, 1, 1)), variable_lines(task(request.spec).graph)
    return spec.to_json(), train_recipe.plan_of(request, length, Path("ckpt"), None), folder, opening


@pytest.mark.parametrize(
    ("model", "schedule", "option"),
    ACTING,
    ids=[f"{model} {schedule} {option.flag}" for model, schedule, option in ACTING],
)
def test_every_option_that_acts_changes_what_is_done(train_set, monkeypatch, tmp_path, model, schedule, option):
    monkeypatch.setattr(cpu, "native_half", lambda: True)
    monkeypatch.setattr("layermark.seeds.device.gpus", lambda: ["0", "1"])
    monkeypatch.chdir(tmp_path)
    decay = "--lr-decay-rate 0.5 --lr-drops 3" if schedule == "exponential" else ""
    base = f"--model {model} --lr-schedule {schedule} {decay} {NEEDS.get(option.name, SMALL)}"
    if model == "squeezenet":
        base += " --base-learning-rate -8"
    given = SIZES.get((model, option.name)) or GIVEN.get(option.name) or " ".join(other(option))
    if option.name == "config":
        base = base.replace("--model resnet", "")
    before, after = (text.format(data=train_set) for text in (base, f"{base} {given}"))
    monkeypatch.setattr(train_names, "ending", lambda: "abc")
    was, now = read(before), read(after)
    assert done(was) != done(now) or any(option.flag in note for note in set(now.notes) - set(was.notes))


def test_stable_norm_is_a_choice_of_resnet():
    assert not read(SMALL).stable_norm
    assert read(f"{SMALL} --stable-norm").stable_norm


@pytest.mark.parametrize("flag", ["--stable-norm", "--fp-exceptions"])
def test_what_holds_without_the_option_is_named_once(flag):
    (note,) = [each for each in read(f"{SMALL} {flag}").notes if flag in each]
    assert note.startswith(f"{flag} has no further effect: ")
    assert train_recipe.spec_of(read(SMALL)).key == train_recipe.spec_of(read(f"{SMALL} {flag}")).key


@pytest.mark.parametrize(
    ("words", "cpus", "used", "said"),
    [
        ("32", 4, 4, ["--pipeline-num-parallel 32: 4 processes load, there are no more CPUs"]),
        ("32 --seed 3", 4, 1, ["--pipeline-num-parallel 32: 1 process loads, --seed takes one"]),
        ("32", 64, 32, []),
    ],
)
def test_no_more_processes_load_than_there_are_cpus(monkeypatch, train_set, words, cpus, used, said):
    monkeypatch.setattr(cpu, "thread_budget", lambda: cpus)
    request = read(f"{LOADED.format(data=train_set)} --pipeline-num-parallel {words}")
    assert said == [note for note in request.notes if "pipeline-num-parallel" in note]
    assert (used, 32) == (request.spec.loading.loader_workers, request.recorded["pipeline_num_parallel"])
    assert " Pipeline Num Parallel: 32" in labels(request, None, "here", datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("words", "runs", "said"),
    [
        ("", "auto", []),
        ("--seed 3", "eager", ["--seed: no trial of executions, which may end differently in every run; eager runs"]),
        ("--seed 3 --execution compile", "compile", []),
        ("--seed 3 --xla-recompute", "recompute", []),
    ],
)
def test_a_run_that_must_be_equal_to_another_tries_no_executions(words, runs, said):
    request = parse(f"{TINY} --backend torch {words}".split(), SCRIPT)
    assert runs == request.spec.execution
    assert said == [note for note in request.notes if "trial" in note]


NAMED_IDLE = (
    *("--enable-half-partials", "--momentum 0.5", "--rmsprop-epsilon 0.5", "--lars-eeta 0.5", "--lars-epsilon 0.5"),
    *("--lars-skip-list conv", "--lars-weight-decay 0.5", "--groups 8", "--cutmix-version 2"),
    *("--pipeline-schedule Grouped", "--max-cross-replica-buffer-size 5", "--hostside-image-mixing"),
    *("--normalise-input", "--hostside-norm"),
)


@pytest.mark.parametrize("words", NAMED_IDLE)
def test_an_option_that_is_named_without_effect_leaves_the_key_alone(monkeypatch, words):
    monkeypatch.setattr(cpu, "native_half", lambda: False)
    request = read(f"{TINY} {words}")
    assert any(each.startswith("no effect on this device") and words.split()[0] in each for each in request.notes)
    assert train_recipe.spec_of(read(TINY)).key == train_recipe.spec_of(request).key
    assert words.split()[0][2:].replace("-", "_") in request.recorded


@pytest.mark.parametrize(("runtime", "idles"), [("torch", False), ("jax", True), ("tensorflow", True)])
def test_a_runtime_without_buckets_says_so_once(runtime, idles):
    replicas = f"{TINY} --replicas 2 --stages-as-processes --backend {runtime}"
    plain, given = (parse(f"{replicas} {words}".split(), SCRIPT) for words in ("", "--max-cross-replica-buffer-size 5"))
    named = [note for note in given.notes if "--max-cross-replica-buffer-size" in note]
    assert idles == (1 == len(named)) and idles == any(note.startswith("no effect on this device") for note in named)
    assert idles == (train_recipe.spec_of(plain).key == train_recipe.spec_of(given).key)


PROXY = "--model efficientnet --model-size 0 --synthetic-data --dataset imagenet"
POLYNOMIAL, LARS = f"{TINY} --lr-schedule polynomial_decay_lr", f"{TINY} --optimiser LARS --base-learning-rate -8"


@pytest.mark.parametrize(
    ("acts", "idles", "words"),
    [
        (f"{PROXY} --proxy-norm", PROXY, "--proxy-epsilon 0.5"),
        (POLYNOMIAL, f"{POLYNOMIAL} --abs-end-learning-rate 0.5", "--poly-lr-end-ratio 0.5"),
        (LARS, f"{LARS} --lars-weight-decay 0.5", "--weight-decay 0.25"),
    ],
)
def test_an_option_that_another_one_decides_about_is_named_only_where_it_is_idle(acts, idles, words):
    named = [any(words.split()[0] in note for note in read(f"{base} {words}").notes) for base in (acts, idles)]
    assert [False, True] == named
    assert train_recipe.spec_of(read(idles)).key == train_recipe.spec_of(read(f"{idles} {words}")).key


def test_options_of_a_rule_act_with_that_rule():
    rule = f"{TINY} --optimiser RMSprop --base-learning-rate -8 --rmsprop-decay 0.5"
    update = train_recipe.update_of(read(f"{rule} --rmsprop-epsilon 0.5 --momentum 0.5"))
    assert (0.5, 0.5, 0.5) == (update.rmsprop_epsilon, update.momentum, update.rmsprop_decay)


IDLE = [option for option in train_script("efficientnet", "stepped").options if option.mark == "sim"]
IDLE_GIVEN = {"available-memory-proportion": "0.2", "scheduling-algorithm": "shortest", "wandb-project": "x"}
IDLE_GIVEN |= {"sharding-exclude-filter": "x", "sharding-include-filter": "x"}


@pytest.mark.parametrize("option", IDLE, ids=[option.flag for option in IDLE])
def test_every_option_without_effect_is_recorded_and_named_and_changes_nothing(option):
    base = f"--model efficientnet {SMALL}"
    given = f"{option.flag} {IDLE_GIVEN[option.name]}" if option.name in IDLE_GIVEN else " ".join(other(option))
    after = read(f"{base} {given}")
    # Both are kept by name: the one stands in the name of the run, the other for those who run stages separately.
    if option.name not in ("no-stochastic-rounding", "pipeline-schedule"):
        assert decided(base) == decided(f"{base} {given}")
    assert option.dest in after.recorded
    assert any(note.startswith("no effect on this device") and option.flag in note for note in after.notes)
