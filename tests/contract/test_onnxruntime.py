"""What only ONNX Runtime does: its types, its provider, its ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.programs import ONNXRUNTIME, OPENVINO, Variant, each_of
from layermark.backends.base import backend
from layermark.errors import Unsupported

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
prepared = ONNXRUNTIME.prepared


@each_of((ONNXRUNTIME, OPENVINO))
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "train"}, "runs inference only"),
        ({"formulation": "tuned"}, "no tuned formulation of dense"),
        ({"precision": "16.16"}, "float16 models in|cannot compute in float16"),
        ({"precision": "16.32"}, "float16 models in|cannot compute in float16"),
    ],
    ids=str,
)
def test_what_onnx_runtimes_cannot_do_is_named(variant: Variant, changes: dict[str, Any], reason: str) -> None:
    if "avx512_fp16" in Path("/proc/cpuinfo").read_text() and "precision" in changes:
        pytest.skip("this CPU has native float16")
    with pytest.raises(Unsupported, match=reason):
        variant.prepared(**changes)


@each_of((ONNXRUNTIME, OPENVINO))
def test_settings_name_the_cell(variant: Variant) -> None:
    assert variant.prepared("lstm")[0].settings["cell"] == "fused"


def test_types_without_kernels_are_refused_with_the_runtimes_reason() -> None:
    with pytest.raises(Unsupported, match=r"onnxruntime cannot compute in bfloat16 on this CPU: .*Gemm"):
        prepared(precision="bf16.bf16")


def test_casts_inside_of_loops_are_found() -> None:
    with pytest.raises(Unsupported, match="computes float16 models in float32 on this CPU: it put"):
        prepared("lstm", precision="16.16", params={"cell": "loop", "timesteps": 20})


def test_provider_is_recorded() -> None:
    assert prepared()[0].settings["provider"] == "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "no device cuda here: this build has no CUDAExecutionProvider"),
        ({"execution": "throughput"}, "has --execution throughput on cpu only"),
        ({"cache": "cold"}, "has --cache cold on cpu only"),
    ],
    ids=str,
)
def test_another_device_is_used_or_refused(changes: dict[str, Any], reason: str) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and not changes:
        pytest.skip("this build has CUDA")
    with pytest.raises(Unsupported, match=reason):
        prepared(device="cuda", **changes)


def test_a_fallback_to_the_cpu_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from layermark.backends._onnx.subnormals import product
    from layermark.backends.onnxruntime import process

    # A provider that every build has and that takes no node, as CUDA's takes none that it has no kernel for.
    monkeypatch.setitem(process.PROVIDERS, "cuda", ("AzureExecutionProvider", {}))
    with pytest.raises(Exception, match="fall"):
        process.session(product(), process.options(ONNXRUNTIME.spec(device="cuda")))


def test_probe_answers_plausible_ceilings() -> None:
    probe = backend("onnxruntime").probe(ONNXRUNTIME.spec(threads=1))
    assert probe is not None
    assert 1e9 < probe.peak(0.05) < 1e14
    assert all(1e8 < probe.bandwidth(size, 0.02) < 1e13 for size in (1 << 10, 1 << 20))
