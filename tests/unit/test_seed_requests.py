"""What the seed scripts ask for: the seeds' mathematics, data and devices."""

from pathlib import Path

import pytest

from layermark import ops
from layermark.errors import UserError
from layermark.outcome import Skipped
from layermark.seeds.engine_options import RUNTIME_VARIABLE, VARIABLE, EngineOptions, engine_options
from layermark.seeds.parsing import parse
from layermark.seeds.request import layer_request
from layermark.seeds.run import alternative
from layermark.seeds.scripts import script
from layermark.worker.verify import output_tolerance
from layermark.workloads.base import task

from .samples import a_spec

pytestmark = pytest.mark.usefixtures("plain_cpu")


def requested(name, *argv, engine=None):
    return layer_request(script(name), parse(script(name), "script.py", argv), engine or EngineOptions())


def spec(name, *argv):
    return requested(name, *argv, "--backend", "torch").spec


def layer(name, *argv):
    (op,) = (node.op for node in task(spec(name, *argv)).graph if isinstance(node.op, ops.Recurrent))
    return op


def test_popart_lstm_has_no_bias_and_its_own_loss():
    assert layer("popart/lstm") == ops.Recurrent("lstm", 32, "fused", bias=False)
    names = [type(node.op).__name__ for node in task(spec("popart/lstm", "--mode", "train")).graph]
    assert ["Input", "Recurrent", "Softmax", "Input", "NegativeLogLikelihood"] == names


def test_popnn_is_the_fused_layer():
    assert layer("tensorflow/lstm") == ops.Recurrent("lstm", 128, "loop", forget_bias=1.0)
    assert layer("tensorflow/lstm", "--popnn") == ops.Recurrent("lstm", 128, "fused")
    assert layer("tensorflow/gru") == ops.Recurrent("gru", 128, "loop", reset="before")
    assert layer("tensorflow/gru", "--popnn") == ops.Recurrent("gru", 128, "fused", reset="before")
    assert layer("tensorflow/rnn") == ops.Recurrent("rnn", 128, "loop")


@pytest.mark.parametrize(
    ("name", "rate", "loss"),
    [
        ("popart/lstm", 0.01, ops.NegativeLogLikelihood),
        ("popart/conv", 0.01, ops.SumSquaredError),
        ("tensorflow/grouped_conv", 1e-30, ops.Mean),
        ("tensorflow/gru", 0.01, ops.CrossEntropy),
        ("tensorflow/lstm_multi", 0.01, ops.MeanSquaredError),
        ("tensorflow/dense", 0.01, ops.Mean),
    ],
)
def test_losses_and_rates_are_the_seeds(name, rate, loss):
    found = spec(name, *(["--mode", "train"] if "popart" in name else ["--train"]))
    assert rate == found.learning_rate
    assert loss is type(task(found).graph.nodes[-1].op)


@pytest.mark.parametrize(
    ("name", "argv", "values", "data"),
    [
        ("popart/lstm", "", "zero-inputs", "synthetic"),
        ("popart/lstm", "--use-generated-data", "random", "generated"),
        ("popart/lstm", "--use-zero-values", "zeros", "synthetic"),
        ("popart/lstm", "--use-zero-values --use-generated-data", "zeros", "generated"),
        ("tensorflow/lstm", "", "random", "synthetic"),
        ("tensorflow/lstm", "--use-zero-values", "zero-inputs", "synthetic"),
        ("tensorflow/lstm", "--use-generated-data", "counting", "generated"),
        ("tensorflow/lstm", "--use-generated-data --use-zero-values", "counting", "generated"),
    ],
)
def test_data_modes(name, argv, values, data):
    found = spec(name, *argv.split())
    assert (values, data) == (found.values, found.data)


def test_values_fill_inputs_targets_and_weights():
    filled = {
        values: task(spec("popart/conv", "--mode", "train", "--input-w", "8", "--input-h", "8").replace(values=values))
        for values in ("random", "zero-inputs", "zeros", "counting")
    }
    assert filled["random"].batch(0)["x"].any()
    assert not filled["zero-inputs"].batch(1)["x"].any()
    assert filled["zero-inputs"].batch(1)["target"].any()
    assert filled["zero-inputs"].weights()["conv/weight"].any()
    assert not filled["zeros"].batch(1)["target"].any()
    assert not filled["zeros"].weights()["conv/weight"].any()
    assert {3.0} == set(filled["counting"].batch(3)["x"].flat)


def test_distributions_stay_distributions():
    zeros = task(spec("tensorflow/gru", "--train").replace(values="zeros"))
    assert zeros.batch(0)["target"].sum(axis=-1) == pytest.approx(1)


def test_replicas_are_planned():
    assert 3 == spec("tensorflow/dense", "--replicas", "3").plan.replicas


def test_recompute_is_an_execution_of_training_only():
    assert "recompute" == spec("popart/lstm", "--recompute", "--mode", "train").execution
    idle = requested("popart/lstm", "--recompute", "--backend", "torch")
    assert "auto" == idle.spec.execution
    assert any("no effect on this device: --recompute" in note for note in idle.notes)


@pytest.mark.parametrize(("budget", "execution"), [("60s", "eager"), ("2m", "auto")])
def test_a_short_budget_leaves_no_time_for_a_trial(budget, execution):
    found = requested("popart/lstm", "--backend", "torch", "--budget", budget)
    assert execution == found.spec.execution
    assert (execution != "auto") == any("short budget" in note for note in found.notes)


def test_large_inputs_have_a_smaller_ring():
    assert 4 == spec("popart/lstm").ring
    assert 2 == spec("popart/lstm", "--batch-size", "1024", "--timesteps", "150", "--hidden-size", "256").ring


def test_what_a_runtime_lacks_gives_way_to_what_it_proposes():
    fused = a_spec(params={"cell": "fused"})
    loop = alternative(Skipped(spec=fused, reason="no fused GRU; use another", instead={"cell": "loop"}))
    assert ("loop", "no fused GRU: one cell per time step instead") == (loop.spec.params["cell"], loop.words)
    assert alternative(Skipped(spec=fused, reason="not installed")) is None
    assert alternative(Skipped(spec=loop.spec, reason="no", instead={"cell": "loop"})) is None
    tuned = alternative(Skipped(spec=fused, reason="no library", instead={"formulation": "tuned"}))
    assert ("tuned", "no library: Layermark's own formulation instead") == (tuned.spec.formulation, tuned.words)


def test_without_a_gpu_the_only_device_is_the_cpu():
    for index in ("-1", "0"):
        found = requested("tensorflow/rnn", "--device-id", index, "--backend", "torch")
        assert ("cpu", {}) == (found.spec.device, found.variables)
    with pytest.raises(UserError, match=r"--device-id 1: no such device; expected -1 \(cpu\), or 0 \(cpu\)"):
        spec("tensorflow/rnn", "--device-id", "1")


def test_with_gpus_an_index_is_one_of_them(monkeypatch):
    monkeypatch.setattr("layermark.seeds.device.gpus", lambda: ["2", "3"])
    found = requested("tensorflow/rnn", "--device-id", "1", "--backend", "torch")
    assert ("cuda", {"CUDA_VISIBLE_DEVICES": "3"}) == (found.spec.device, found.variables)
    assert "cpu" == spec("tensorflow/rnn").device
    with pytest.raises(UserError, match=r"expected -1 \(cpu\), or 0 to 1 \(cuda\)"):
        spec("tensorflow/rnn", "--device-id", "2")


@pytest.mark.parametrize(
    ("argv", "native", "expected"),
    [
        ("", False, "32.32"),
        ("", True, "16.16"),
        ("--precision 16.32", False, "32.32"),
        ("--precision 16.32", True, "16.32"),
        ("--emulate-half", False, "16.16"),
        ("--precision bf16.32", False, "bf16.32"),
        ("--precision 32.32", True, "32.32"),
    ],
)
def test_half_precision_needs_a_device_that_has_it(monkeypatch, argv, native, expected):
    monkeypatch.setattr("layermark.devices.cpu.native_half", lambda: native)
    found = requested("popart/lstm", *argv.split(), "--backend", "torch")
    wanted = found.recorded["asked"]
    assert expected == found.spec.precision
    assert (wanted != expected) == any(f"computing in fp32 instead of {wanted}" in note for note in found.notes)
    assert ("--emulate-half" == argv) == any("emulated" in note for note in found.notes)


@pytest.mark.parametrize("runtime", ["tensorflow", "jax", "onnxruntime"])
def test_a_runtime_that_converts_16_bit_floats_computes_in_fp32_even_where_the_cpu_has_them(monkeypatch, runtime):
    monkeypatch.setattr("layermark.devices.cpu.native_half", lambda: True)
    found = requested("popart/lstm", "--backend", runtime)
    assert found.spec.precision == "32.32"
    start = f"{runtime} does not use this CPU's 16-bit floats: computing in fp32"
    assert [each for each in found.notes if each.startswith(start)]


def test_hmc_computes_in_fp32_as_the_seed_did():
    found = requested("tensorflow/hmc", "--backend", "torch")
    assert ("32.32", "32.32") == (found.spec.precision, found.recorded["asked"])
    assert not [note for note in found.notes if "fp32" in note]


def test_a_report_is_one_batch_in_one_step():
    found = requested("tensorflow/dense", "--report", "--steps", "9", "--backend", "torch")
    assert (1, 1, 1) == (found.steps.steps, found.steps.batches, found.spec.batches_per_step)
    assert "tensorflow-dense" == found.steps.profile.name


def test_unknown_backends_are_refused_with_near_matches():
    with pytest.raises(UserError, match="unknown backend 'torhc'; did you mean torch"):
        requested("popart/lstm", "--backend", "torhc")


def test_engine_options_ask_for_a_report(tmp_path):
    text = f'{{"autoReport.all":"true", "autoReport.directory":"{tmp_path}/new", "exchange.enablePrefetch":"false"}}'
    engine = engine_options({VARIABLE: text})
    assert EngineOptions(report=True, folder=tmp_path / "new", others={"exchange.enablePrefetch": "false"}) == engine
    found = requested("popart/lstm", "--backend", "torch", engine=engine)
    assert tmp_path / "new" == found.steps.profile.folder
    assert any("exchange.enablePrefetch (POPLAR_ENGINE_OPTIONS)" in note for note in found.notes)


def test_runtime_options_are_named_once_as_without_effect():
    engine = engine_options({RUNTIME_VARIABLE: '{"streamCallbacks.numWorkerThreads": "2"}'})
    found = requested("popart/lstm", "--backend", "torch", engine=engine)
    named = [note for note in found.notes if "streamCallbacks.numWorkerThreads (POPLAR_RUNTIME_OPTIONS)" in note]
    assert 1 == len(named) and {"streamCallbacks.numWorkerThreads": "2"} == found.recorded["runtime"]
    with pytest.raises(UserError, match=f"{RUNTIME_VARIABLE}=yes"):
        engine_options({RUNTIME_VARIABLE: "yes"})


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"autoReport.directory": "elsewhere"}'])
def test_engine_options_may_ask_for_nothing(text):
    assert not engine_options({VARIABLE: text}).report


@pytest.mark.parametrize("text", ["yes", "[]", '{"autoReport.all": "perhaps"}'])
def test_engine_options_that_cannot_be_read_are_an_error(text):
    with pytest.raises(UserError, match=VARIABLE):
        engine_options({VARIABLE: text})


def test_a_report_folder_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    below = EngineOptions(report=True, folder=Path(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match=r"autoReport\.directory"):
        requested("popart/lstm", "--backend", "torch", engine=below)


def test_half_partials_allow_coarser_sums():
    half = requested("tensorflow/dense", "--enable-half-partials", "--emulate-half", "--backend", "torch")
    assert ["torch gets no switch for 16-bit sums on cpu"] == [n.split(":")[0] for n in half.notes if "sums" in n]
    found = half.spec
    assert "half" == found.partials
    graph = task(found).graph
    assert output_tolerance("16.16", graph) < output_tolerance("16.16", graph, "half")
    assert output_tolerance("32.32", graph) == output_tolerance("32.32", graph, "half")


@pytest.mark.parametrize("flag", ["--matmul-options", "--convolution-options"])
def test_half_partials_may_be_a_setting_of_a_planner(flag):
    half, narrow = (flag, '{"partialsType": "half"}'), ("--emulate-half", "--backend", "torch")
    found = requested("tensorflow/dense", *half, *narrow)
    assert "half" == found.spec.partials
    assert not [note for note in found.notes if "no effect" in note]
    wide = requested("tensorflow/dense", *half, "--backend", "torch")
    assert [f"no effect on this device: {flag}"] == [note for note in wide.notes if "no effect" in note]
    assert spec("tensorflow/dense").key == wide.spec.key
    other = requested("tensorflow/dense", flag, '{"partialsType": "float"}', *narrow)
    assert "half" != other.spec.partials
    assert [note for note in other.notes if flag in note]


def test_a_short_budget_compiles_what_is_hopeless_otherwise():
    assert "xla" == requested("tensorflow/hmc", "--budget", "20s", "--backend", "tensorflow").spec.execution
    assert "function" == requested("tensorflow/lstm", "--budget", "20s", "--backend", "tensorflow").spec.execution
