"""A device that is not there is skipped with the reason, on every runtime, and never replaced by the CPU."""

import pytest

from conftest import QUICKLY
from layermark import registry
from layermark.backends.base import backend

RUNTIMES = [name for name in registry.modules("backends") if backend(name).by_default and backend(name).installed]


@pytest.mark.parametrize("device", ["cuda", "xpu", "mps"])
def test_a_missing_device_is_skipped_with_the_reason(layermark, device):
    names = ",".join(RUNTIMES if device == "cuda" else [name for name in RUNTIMES if name == "torch"])
    quickly = [*QUICKLY[:-1], "auto"]
    finished = layermark("run", "dense", "--size", "16", "--backend", names, "--device", device, "--json", *quickly)
    assert 0 == finished.status, finished.stderr
    if "ok" in {doc["status"] for doc in finished.documents}:
        pytest.skip(f"this machine has {device}")
    assert {"skipped"} == {doc["status"] for doc in finished.documents}
    assert all(device in doc["reason"] for doc in finished.documents), finished.stdout


def test_every_device_is_listed(layermark):
    shown = layermark("list", "devices").stdout
    assert all(name in shown for name in ("cpu", "cuda", "xpu", "mps"))
