"""The options of the seed scripts: names, defaults, abbreviations, and what each of them changes."""

import json

import numpy as np
import pytest

from layermark.errors import UserError
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.parsing import parse
from layermark.seeds.request import layer_request
from layermark.seeds.scripts import SCRIPTS, script
from layermark.workloads.base import task

pytestmark = pytest.mark.usefixtures("plain_cpu")

LAYERS = [name for name in SCRIPTS if name != "tensorflow/hmc"]
DEFAULTS = {
    "popart/lstm": {"batch_size": 1, "timesteps": 1, "hidden_size": 32, "batches_per_step": 1000, "steps": 5},
    "popart/conv": {
        "batch_size": 1,
        "input_width": 1920,
        "input_height": 1080,
        "channel_size": 4,
        "filter_number": 64,
        "kernel_size": (4, 4),
        "padding": (3, 3),
        "stride": (2, 2),
        "batches_per_step": 1000,
        "steps": 5,
        "mode": "infer",
        "auto_sharding": True,
    },
    "tensorflow/grouped_conv": {
        "batch_size": 1,
        "filter_in": 64,
        "filter_out": 64,
        "kernel_size": (3, 3),
        "stride": (1, 1),
        "input_size": (56, 56),
        "block_repeats": 10,
        "group_dim": 1,
        "train": False,
    },
    "tensorflow/gru": {"timesteps": 5, "hidden_size": 128, "input_size": 128, "train": False, "popnn": False},
    "tensorflow/lstm": {"timesteps": 5, "hidden_size": 128, "batches_per_step": 1000, "steps": 5, "device_id": -1},
    "tensorflow/lstm_multi": {"timesteps": 200, "input_size": 16, "hidden_size": 256, "num_layers": 2},
    "tensorflow/rnn": {"timesteps": 5, "hidden_size": 128, "shards": 1, "replicas": 1},
    "tensorflow/dense": {"batch_size": 32, "size": 1024, "batches_per_step": 5000, "include_activation": False},
    "tensorflow/hmc": {"steps": 100, "hmc_steps": 10000, "leapfrog_steps": 5, "save_graph": False},
}


def values(name, *argv):
    return parse(script(name), "script.py", argv).values


def requested(name, *argv, engine=EngineOptions()):  # noqa: B008
    return layer_request(script(name), parse(script(name), "script.py", [*argv, "--backend", "torch"]), engine)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    found = values(name)
    assert DEFAULTS[name] == {each: found[each] for each in DEFAULTS[name]}


def other(option):
    """A command line that gives an option another value than its default."""
    if option.parse is None:
        return [option.flag]
    if option.choices:
        return [option.flag, option.choices[-1]]
    larger = {"filter_out": "32", "group_dim": "2", "filter_in": "128"}
    default = option.default[0] if isinstance(option.default, tuple) else option.default
    return [option.flag, larger.get(option.dest, str(default + 1))]


EQUAL = [(name, each) for name in SCRIPTS for each in script(name).options if each.mark == "="]


@pytest.mark.parametrize(("name", "option"), EQUAL, ids=[f"{name} {option.flag}" for name, option in EQUAL])
def test_every_option_marked_equal_changes_what_is_measured(name, option):
    before = requested(name, "--train") if option.name == "no-train" else requested(name)
    if (name.split("/")[0], option.name) == ("tensorflow", "shards"):
        with pytest.raises(UserError, match="not implemented"):
            requested(name, *other(option))
        return
    extra = ["--train"] if option.name == "no-train" else []
    after = requested(name, *extra, *other(option))
    changed = {
        "steps": lambda: before.steps.steps != after.steps.steps,
        "save-graph": lambda: before.save_graph != after.save_graph,
        "batches-per-step": lambda: before.spec != after.spec and before.steps.batches != after.steps.batches,
        "use-zero-values": lambda: not equal_data(before.spec, after.spec),
        "hmc-steps": lambda: task(before.spec).items != task(after.spec).items,
        "leapfrog-steps": lambda: task(before.spec).flops("infer") != task(after.spec).flops("infer"),
    }.get(option.name, lambda: task(before.spec).graph != task(after.spec).graph)
    assert changed()


def equal_data(one, other):
    first, second = ({**task(each).weights(), **task(each).batch(1)} for each in (one, other))
    return all(np.array_equal(first[name], second[name]) for name in first)


SIM = [(name, each) for name in LAYERS for each in script(name).options if each.mark == "sim"]


@pytest.mark.parametrize(("name", "option"), SIM, ids=[f"{name} {option.flag}" for name, option in SIM])
def test_every_simulated_option_is_recorded_and_named_and_changes_nothing(name, option):
    argv = [option.flag] if option.parse is None else [option.flag, '{"availableMemoryProportion": "0.55"}']
    if option.name == "simulation":
        with pytest.raises(UserError, match="no simulated device"):
            requested(name, *argv)
        return
    before, after = requested(name), requested(name, *argv)
    assert before.spec == after.spec
    assert before.steps == after.steps
    assert option.dest in after.recorded
    assert [note for note in after.notes if f"no effect on this device: {option.flag}" in note]


@pytest.mark.parametrize("text", ["{bad", "[1]", "3", ""])
@pytest.mark.parametrize("flag", ["--convolution-options", "--lstm-options"])
def test_broken_json_is_an_error(flag, text):
    with pytest.raises(UserError, match=f"^{flag} .*expected a JSON object"):
        values("popart/lstm", flag, text)


@pytest.mark.parametrize(
    ("name", "argv", "expected"),
    [
        ("popart/lstm", "--hid 8 --ti 3 --st 2", {"hidden_size": 8, "timesteps": 3, "steps": 2}),
        ("popart/lstm", "--t 7", {"timesteps": 7, "tensor_tile_mapping": False}),
        ("popart/lstm", "--rep yes", {"report_hw_cycle_count": True, "report": False}),
        ("popart/lstm", "--report", {"report": True, "report_hw_cycle_count": False}),
        ("popart/conv", "--input-w=64 --k 3 --pad 0", {"input_width": 64, "kernel_size": (3, 3), "padding": (0, 0)}),
        ("tensorflow/dense", "--st 3", {"steps": 3}),
        ("tensorflow/dense", "--inc --tr", {"include_activation": True, "train": True}),
        ("tensorflow/gru", "--train --no-train", {"train": False}),
        ("tensorflow/gru", "--no-train --train --p", {"train": True, "popnn": True}),
        ("tensorflow/lstm", "--dev -1 --repl 2", {"device_id": -1, "replicas": 2}),
        ("tensorflow/lstm", "--bu 2m", {"budget": 120.0}),
    ],
)
def test_abbreviations(name, argv, expected):
    found = values(name, *argv.split())
    assert expected == {each: found[each] for each in expected}


@pytest.mark.parametrize(
    ("name", "argv", "message"),
    [
        ("popart/lstm", "--batch 2", "ambiguous option: --batch could match --batch-size, --batches-per-step"),
        ("popart/lstm", "--depth 2", "unrecognized arguments: --depth 2"),
        ("popart/lstm", "--mode fly", "--mode fly: expected one of infer, eval, train"),
        ("popart/lstm", "--steps 0", "--steps 0: expected a whole number of at least 1"),
        ("popart/lstm", "--steps five", "--steps five: expected a whole number"),
        ("popart/lstm", "--steps", "--steps: expected one argument"),
        ("tensorflow/rnn", "--popnn", "unrecognized arguments: --popnn"),
        ("tensorflow/lstm_multi", "--popnn", "unrecognized arguments: --popnn"),
        ("tensorflow/hmc", "--replicas 2", "unrecognized arguments: --replicas 2"),
        ("tensorflow/rnn", "--budget soon", "--budget soon: expected a length of time"),
    ],
)
def test_wrong_input_says_what_is_wrong(name, argv, message):
    with pytest.raises(UserError) as caught:
        values(name, *argv.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", LAYERS)
def test_the_recorded_options_can_be_written_down(name):
    record = requested(name, "--steps", "2", "--convolution-options", '{"a": "b"}').recorded
    typed = {"steps": 2, "convolution_options": {"a": "b"}, "backend": "torch"}
    assert {"script": name, **typed, "asked": "16.16"} == json.loads(json.dumps(record))


def test_the_environment_holds_the_default_budget(monkeypatch):
    assert values("tensorflow/rnn")["budget"] is None
    monkeypatch.setenv("LAYERMARK_BUDGET", "30s")
    found = requested("tensorflow/rnn")
    assert 30.0 == found.budget_s and "budget" not in found.recorded
    assert 120.0 == values("tensorflow/rnn", "--budget", "2m")["budget"]
    monkeypatch.setenv("LAYERMARK_BUDGET", "soon")
    with pytest.raises(UserError, match="LAYERMARK_BUDGET: --budget soon: expected a length of time"):
        values("tensorflow/rnn")
