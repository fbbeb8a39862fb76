"""The options of the PyTorch inference program: both vocabularies, defaults, named sets, and what each changes."""

import json
from pathlib import Path

import pytest

from layermark.errors import UserError
from layermark.seeds.cnns.batch_sizes import rungs
from layermark.seeds.cnns.entry import _inference_folder
from layermark.seeds.cnns.inference import inference_request
from layermark.seeds.cnns.inference_options import SCRIPT
from layermark.seeds.cnns.modes import MODES as DATA_MODES
from layermark.seeds.cnns.modes import batches
from layermark.seeds.configs import named_sets
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.parsing import parse
from layermark.workloads.base import task

from .samples import measured, other

pytestmark = pytest.mark.usefixtures("cnn_folder", "plain_cpu")

PYTORCH = Path(__file__).parents[2] / "benchmarks" / "pytorch_cnns" / "configs.yml"
NOTHING = EngineOptions()


def inference(*argv, engine=NOTHING):
    """What `run_benchmark.py` would measure."""
    null = () if "--backend" in argv else ("--backend", "null")
    typed = parse(SCRIPT, "run_benchmark.py", [*argv, *null], PYTORCH)
    return inference_request(typed, engine, Path("logs"))


def small(*argv, **more):
    return inference("--image-size", "32", *argv, **more)


# What an option needs beside it before it can have an effect.
NEEDS = {
    "norm-num-groups": "--norm-type group --norm-num-groups 8",
    "efficientnet-group-dim": "--model efficientnet-b0",
    "efficientnet-expand-ratio": "--model efficientnet-b0",
    "dataloader-worker": "--data real",
    "dataloader-rebatch-size": "--data real",
    "webdataset-memory-cache-ratio": "--data real",
    "full-precision-norm": "--backend torch --precision 16.16 --emulate-half",
    "random-weights": "--model resnet8-cifar --weights pytorch-7.safetensors",
}
GIVEN = {
    "config": "--config common",
    "model": "--model resnet34",
    "precision": "--precision bf16.32",
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
    assert (3, 3, 9) == (found.spec.plan.replicas, found.spec.plan.stages, found.spec.ranks)
    assert ("layer2/0", "layer4") == found.spec.splits
    cached = parse(SCRIPT, "x", ["--data", "synthetic", "--model-cache-path", "kept", "--backend", "torch"], PYTORCH)
    request = inference_request(cached, NOTHING, Path("logs"))
    assert {"TORCHINDUCTOR_CACHE_DIR": str(Path("kept").resolve())} == request.variables


@pytest.mark.parametrize(
    "argv",
    [
        "--half-partial",
        "--norm-num-groups 16",
        "--enable-fast-groupnorm",
        "--batchnorm-momentum 0.5",
        "--full-precision-norm",
        "--num-io-tiles 64",
        "--efficientnet-group-dim 4",
    ],
)
def test_options_without_an_effect_are_named_and_equal_work_has_one_key(argv):
    found = small("--data", "generated", *argv.split())
    assert small("--data", "generated").spec.key == found.spec.key
    assert any(note.startswith("no effect") and argv.split()[0] in note for note in found.notes)


@pytest.mark.parametrize("argv", ["--norm-eps 0.1", "--full-precision-norm"])
def test_options_of_norms_are_named_where_there_are_none(argv):
    halves = ["--backend", "torch", "--precision", "half", "--emulate-half"]
    without = ["--data", "generated", *halves, "--norm-type", "none"]
    found = small(*without, *argv.split())
    assert small(*without).spec.key == found.spec.key
    assert any(note.startswith("no effect") and argv.split()[0] in note for note in found.notes)


def test_the_environment_asks_for_a_profile_beside_all_calls(tmp_path):
    found = small("--data", "synthetic", engine=EngineOptions(report=True, folder=tmp_path))
    assert (100, tmp_path, "resnet18") == (found.steps.steps, found.steps.profile.folder, found.steps.profile.name)


def test_a_profile_stops_after_the_first_call():
    found = small("--data", "synthetic", "--profile", "--device-iterations", "3")
    assert (1, 3, Path("logs")) == (found.steps.steps, found.steps.batches, found.steps.profile.folder)


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
    insisted = inference("--config", "common", "--data", "synthetic", "--precision", "half", "--emulate-half").spec
    assert ("16.16", "half") == (insisted.precision, insisted.partials)


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
        ("--model resnet18 --pipeline-splits auto", "layermark run resnet18 --pipeline-splits auto --stages 2"),
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
    engine = EngineOptions(others={"exchange.enablePrefetch": "false"})
    found = small("--data", "real", engine=engine)
    assert 0 == found.spec.loading.loader_workers
    assert any("pictures are loaded between batches" in note for note in found.notes)
    assert not any("no effect" in note for note in found.notes)


@pytest.mark.parametrize("data", ["generated", "synthetic"])
def test_data_that_nobody_loads_has_nothing_to_load_ahead(data):
    found = small("--data", data, engine=EngineOptions(others={"exchange.enablePrefetch": "false"}))
    named = [note for note in found.notes if "exchange.enablePrefetch" in note]
    assert ["no effect on this device: exchange.enablePrefetch (POPLAR_ENGINE_OPTIONS)"] == named
    assert small("--data", data).spec == found.spec


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
        (INFERENCE_COMMANDS["S9"], ("resnext101", "32.32", 16, 128, 20)),
        (INFERENCE_COMMANDS["S25"], ("resnet18", "32.32", 1, 1, 100)),
        (INFERENCE_COMMANDS["S26"], ("resnet18", "32.32", 16, 1000, 100)),
        (INFERENCE_COMMANDS["S27"], ("resnet18", "32.32", 24, 64, 100)),
        (INFERENCE_COMMANDS["S28"], ("resnet34", "32.32", 19, 64, 100)),
        (INFERENCE_COMMANDS["S29"], ("resnet50", "32.32", 8, 64, 100)),
        (INFERENCE_COMMANDS["S30"], ("efficientnet-b0", "32.32", 11, 1000, 100)),
    ],
    ids=INFERENCE_COMMANDS,
)
def test_the_seeds_inference_commands(line, expected):
    found = inference(*line.split())
    spec, steps = found.spec, found.steps
    assert expected == (spec.workload, spec.precision, spec.batch_size, steps.batches, steps.steps)
    assert 2 == steps.dropped
    assert "16.16" == json.loads(json.dumps(dict(found.recorded)))["asked"]
    assert "16.16" == inference(*line.split(), "--emulate-half").spec.precision


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
    notes = small("--data", "synthetic", "--precision", "half", "--emulate-half").notes
    assert native != any("they are emulated" in note for note in notes)
    assert native != any("fp32 instead of 16.16" in note for note in small("--data", "synthetic").notes)


@pytest.mark.parametrize(("budget", "execution"), [("3m", "eager"), ("4m", "auto")])
def test_a_short_budget_leaves_no_time_to_compile(budget, execution):
    typed = parse(SCRIPT, "x", ["--data", "synthetic", "--backend", "torch", "--budget", budget], PYTORCH)
    assert execution == inference_request(typed, NOTHING, Path("logs")).spec.execution


def test_several_batch_sizes_are_several_requests_that_share_the_budget():
    typed = parse(SCRIPT, "x", ["--data", "synthetic", "--batch-size", "1,4,16", "--budget", "90s"], PYTORCH)
    every = rungs(typed)
    assert [(1, 30.0), (4, 30.0), (16, 30.0)] == [(e.values["batch_size"], e.values["budget"]) for e in every]
    assert [1, 4, 16] == [inference_request(each, NOTHING, Path("logs")).spec.batch_size for each in every]
    (alone,) = rungs(parse(SCRIPT, "x", ["--config", "resnet50-mk2"], PYTORCH))
    assert (90, None) == (alone.values["batch_size"], alone.values["budget"])
    with pytest.raises(UserError, match="--batch-size 1,0: expected a whole number of at least 1"):
        parse(SCRIPT, "x", ["--batch-size", "1,0"], PYTORCH)


def test_several_batch_sizes_keep_files_of_their_own(tmp_path):
    typed = parse(
        SCRIPT, "run_benchmark.py", ["--batch-size", "1,4", "--backend", "null", "--data", "generated"], PYTORCH
    )
    engine = EngineOptions(report=True, folder=tmp_path)
    every = [inference_request(each, engine, tmp_path, several=True) for each in rungs(typed)]
    assert ["resnet18_bs1", "resnet18_bs4"] == [each.steps.profile.name for each in every]
    alone = inference("--data", "generated", engine=engine)
    assert "resnet18" == alone.steps.profile.name
    folders = [_inference_folder(each.values, tmp_path, True, str) for each in rungs(typed)]
    assert [tmp_path / "bs1", tmp_path / "bs4"] == folders
    assert tmp_path == _inference_folder(typed.values, tmp_path, False, str)
