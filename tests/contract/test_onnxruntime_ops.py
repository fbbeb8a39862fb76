"""Every operation of the vocabulary on ONNX Runtime, against the float64 reference."""

from __future__ import annotations

import pytest

from contract.onnx_shared import OpContract

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


class TestOnnxRuntimeOps(OpContract):
    backend = "onnxruntime"
