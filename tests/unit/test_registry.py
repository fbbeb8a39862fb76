import importlib.metadata

import pytest

from layermark import registry
from layermark.backends.base import backend
from layermark.errors import UserError
from layermark.workloads.base import workload


def test_a_file_is_a_registration() -> None:
    assert registry.modules("workloads")["dense"] == "layermark.workloads.layers.dense"
    assert {"torch", "null"} <= set(registry.modules("backends"))
    assert "cpu" in registry.modules("devices")


@pytest.mark.parametrize("kind", ["workloads", "backends", "devices"])
def test_base_is_not_a_name(kind: str) -> None:
    assert "base" not in registry.modules(kind)


def test_every_workload_says_what_it_is() -> None:
    for name in registry.modules("workloads"):
        found = workload(name)
        assert found.summary
        assert found.item
        assert found.default_batch_size >= 1


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown device 'cpx'; did you mean cpu"):
        registry.find("devices", "cpx")


def test_plug_ins_use_the_same_door(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("dense2", "layermark.workloads.layers.dense", "layermark.workloads")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == entry.group else [])
    registry.modules.cache_clear()
    try:
        assert workload("dense2") is workload("dense")
    finally:
        registry.modules.cache_clear()


def test_a_plug_in_without_a_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        BACKEND = object()

    monkeypatch.setattr(registry, "find", lambda kind, name: Empty)
    with pytest.raises(UserError, match="the plug-in for backend 'empty' holds no Backend"):
        backend("empty")
