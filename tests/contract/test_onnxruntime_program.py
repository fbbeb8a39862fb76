"""The life of an ONNX Runtime program, its types, and its ceilings."""

from __future__ import annotations

import numpy as np
import pytest

from contract.onnx_shared import ProgramContract
from layermark.backends.base import backend
from layermark.errors import Unsupported
from layermark.spec import Spec

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


class TestOnnxRuntimeProgram(ProgramContract):
    backend = "onnxruntime"

    def test_types_without_kernels_are_refused_with_the_runtimes_reason(self) -> None:
        with pytest.raises(Unsupported, match=r"onnxruntime cannot compute in bfloat16 on this CPU: .*Gemm"):
            self.prepared(precision="bf16.bf16")

    def test_casts_inside_of_loops_are_found(self) -> None:
        with pytest.raises(Unsupported, match="computes float16 models in float32 on this CPU: it put"):
            self.prepared("lstm", precision="16.16", params={"cell": "loop", "timesteps": 20})

    def test_provider_is_recorded(self) -> None:
        assert self.prepared()[0].settings["provider"] == "CPUExecutionProvider"


def test_probe_answers_plausible_ceilings() -> None:
    probe = backend("onnxruntime").probe(Spec(workload="dense", backend="onnxruntime", threads=1))
    assert probe is not None
    assert 1e9 < probe.peak(0.05) < 1e14
    assert all(1e8 < probe.bandwidth(size, 0.02) < 1e13 for size in (1 << 10, 1 << 20))


def test_parent_may_ask_without_importing_the_runtime() -> None:
    found = backend("onnxruntime")
    assert found.installed
    assert found.version
    assert np.all([word in found.executions for word in ("auto", "sequential")])
