"""Every operation of the vocabulary on OpenVINO, against the float64 reference."""

from __future__ import annotations

import pytest

from contract.onnx_shared import OpContract

pytest.importorskip("openvino")
pytest.importorskip("onnx")


class TestOpenVinoOps(OpContract):
    backend = "openvino"
