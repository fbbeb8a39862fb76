"""What only OpenVINO does: several batches in flight, bfloat16, names in the compiled model."""

from __future__ import annotations

import pytest

from contract.programs import OPENVINO, close, oracle
from layermark.backends.base import backend
from layermark.errors import Unsupported

openvino = pytest.importorskip("openvino")
pytest.importorskip("onnx")
prepared = OPENVINO.prepared


@pytest.fixture
def bf16() -> None:
    """Skip where the CPU has no bfloat16."""
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("no bfloat16 on this CPU")


def test_auto_needs_no_trial_for_single_batches() -> None:
    settings = prepared(execution="auto")[0].settings
    assert settings["execution"] == "latency"
    assert settings["execution_trial"].startswith("none: one batch per call")


def test_auto_tries_both_ways_for_several_batches() -> None:
    settings = prepared(execution="auto", batches_per_step=4, batch_size=64, params={"size": 256})[0].settings
    assert settings["execution"] in ("latency", "throughput")
    assert "latency" in settings["execution_trial"] or "none" in settings["execution_trial"]


def test_types_and_kernels_are_read_from_the_compiled_model() -> None:
    settings = prepared("conv", threads=2)[0].settings
    assert settings["compute_type"] == "float32"
    assert settings["kernels"].endswith("f32")
    assert settings["runtime_threads"] == "2"


def test_recurrent_layers_keep_their_names() -> None:
    program, _ = prepared("lstm")
    names = [each.get_friendly_name() for each in program._way.compiled.get_runtime_model().get_ops()]
    assert "lstm/lstm" in names


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("precision", ["bf16.32", "bf16.bf16"])
@pytest.mark.parametrize("workload", ["dense", "conv", "gru", "lstm_multi"])
def test_bfloat16_is_really_computed(workload: str, precision: str) -> None:
    program, task = prepared(workload, precision=precision)
    program.run(1)
    wanted = oracle(task, 0)
    close(program.outputs(), wanted, 0.05)
    with pytest.raises(AssertionError):
        close(program.outputs(), wanted, 1e-5)
    stored = "bfloat16" if precision == "bf16.bf16" else "float32"
    assert (program.settings["compute_type"], program.settings["weight_type"]) == ("bfloat16", stored)
    close(program.weights(), task.weights(), 0.004 if precision == "bf16.bf16" else 0)


@pytest.mark.usefixtures("bf16")
def test_long_loops_stay_in_float32_and_say_so() -> None:
    with pytest.raises(Unsupported, match="TensorIterator of gru in float32"):
        prepared("gru", precision="bf16.32", params={"cell": "loop", "timesteps": 17})


def test_it_has_no_ceilings_to_offer() -> None:
    assert not backend("openvino").probes
