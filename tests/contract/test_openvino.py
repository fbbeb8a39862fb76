"""What only OpenVINO does: its executions and their trial, bfloat16, names in the compiled model."""

from __future__ import annotations

from typing import Any

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


def test_auto_needs_no_streams_for_single_batches() -> None:
    settings = prepared(execution="auto")[0].settings
    assert settings["execution"] in ("latency", "latency-binding")
    assert settings["execution_trial"].startswith("no throughput: one batch per call")
    assert settings["execution_trial"].count("/s") == 2


def test_auto_tries_all_for_several_batches() -> None:
    settings = prepared(execution="auto", batches_per_step=4, batch_size=64, params={"size": 256})[0].settings
    assert settings["execution"] in ("latency", "latency-binding", "throughput")
    assert "latency " in settings["execution_trial"]
    assert "throughput" in settings["execution_trial"]


@pytest.mark.parametrize("data", ["synthetic", "generated"])
def test_latency_is_the_documented_call_of_a_request(monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    from layermark.backends.openvino import execution

    genuine, called = openvino.InferRequest.infer, []

    def counted(request: Any, *args: Any, **options: Any) -> Any:
        called.append(options)
        return genuine(request, *args, **options)

    def poisoned(request: Any) -> None:
        raise AssertionError("the documented execution took the private entry")

    monkeypatch.setattr(openvino.InferRequest, "infer", counted)
    monkeypatch.setattr(execution, "_bound_infer", poisoned)
    program, task = prepared(execution="latency", data=data, ring=2)
    called.clear()
    program.run(4)
    assert [{"share_outputs": True}] * 4 == called
    close(program.outputs(), oracle(task, 1))
    assert (program.settings["execution"], program.settings["call"]) == ("latency", "InferRequest.infer")


@pytest.mark.parametrize("data", ["synthetic", "generated"])
def test_the_binding_is_taken_under_its_own_name(monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    program, task = prepared(execution="latency-binding", data=data, ring=2)
    monkeypatch.setattr(openvino.InferRequest, "infer", None)  # the documented call has no part in it
    for index in (0, 1, 0):
        program.run(1)
        close(program.outputs(), oracle(task, index))
    assert program.settings["execution"] == "latency-binding"
    assert program.settings["call"] == "the C++ binding of infer"
    assert "fallback" not in program.settings


def changed(request: Any) -> None:
    """A binding as another release may have it, without the arguments of today."""


@pytest.mark.parametrize("binding", [None, changed], ids=["gone", "changed"])
def test_a_missing_binding_falls_back(monkeypatch: pytest.MonkeyPatch, binding: Any) -> None:
    documented = standing_alone(monkeypatch, binding)
    program, task = prepared(execution="latency-binding", ring=2)
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    assert documented
    assert (program.settings["execution"], program.settings["call"]) == ("latency", "InferRequest.infer")
    assert program.settings["fallback"].startswith("latency-binding -> latency: openvino ")


def test_auto_does_without_a_missing_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_alone(monkeypatch, None)
    settings = prepared(execution="auto")[0].settings
    assert settings["execution"] == "latency"
    assert settings["execution_trial"].startswith("no latency-binding: openvino ")


def standing_alone(monkeypatch: pytest.MonkeyPatch, binding: Any) -> list[int]:
    """Hide the binding from all but the documented call; return the list that counts those calls."""
    called: list[int] = []
    below = next(each for each in openvino.InferRequest.__mro__[1:] if "infer" in vars(each))
    genuine, real = openvino.InferRequest.infer, below.infer

    def infer(request: Any, *args: Any, **options: Any) -> Any:
        called.append(1)
        below.infer = real
        try:
            return genuine(request, *args, **options)
        finally:
            hide()

    def hide() -> None:
        below.infer = binding
        if binding is None:
            del below.infer

    monkeypatch.setattr(openvino.InferRequest, "infer", infer)
    monkeypatch.setattr(below, "infer", binding)
    hide()
    return called


def test_types_and_kernels_are_read_from_the_compiled_model() -> None:
    settings = prepared("conv", threads=2)[0].settings
    assert settings["compute_type"] == "float32"
    assert settings["kernels"].endswith("f32")
    assert settings["runtime_threads"] == "2"


def test_recurrent_layers_keep_their_names() -> None:
    program, _ = prepared("lstm")
    names = [each.get_friendly_name() for each in program._chosen.compiled.get_runtime_model().get_ops()]
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
