"""`docs/support.md` has every cell, and a sample of them is still true."""

from pathlib import Path

import pytest

from layermark import registry
from layermark.backends.base import backend
from layermark.cli import support
from layermark.cli.support import SupportEntry

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
WRITE = "write it again: python -m layermark.cli.support"
SAMPLE = [
    SupportEntry("dense", "infer", "32.32", "torch"),
    SupportEntry("conv", "infer", "int8", "torch"),
    SupportEntry("conv", "infer", "int8", "onnxruntime"),
    SupportEntry("conv", "train", "bf16.bf16", "torch"),
    SupportEntry("lstm", "train", "32.32", "tensorflow"),
    SupportEntry("lstm", "infer", "32.32", "jax"),
    SupportEntry("dense", "infer", "bf16.32", "jax"),
    SupportEntry("gru", "infer", "32.32", "onnxruntime"),
    SupportEntry("dense", "infer", "bf16.bf16", "onnxruntime"),
    SupportEntry("dense", "train", "32.32", "openvino"),
    SupportEntry("rnn", "infer", "32.32", "openvino"),
    SupportEntry("hmc", "infer", "32.32", "torch"),
    SupportEntry("hmc", "infer", "32.32", "onnxruntime"),
]


def written():
    return support.parse(PAGE.read_text(encoding="utf-8"))


def test_every_cell_is_on_the_page():
    assert set(support.entries()) == set(written()), WRITE


def test_nothing_fails():
    assert [] == [entry for entry, text in written().items() if text.startswith("fails")]


def test_the_page_is_what_the_command_writes():
    assert PAGE.read_text(encoding="utf-8") == support.page(written()), WRITE


def test_every_layer_and_runtime_has_its_place():
    layers = {name for name, module in registry.modules("workloads").items() if ".models." not in module}
    assert layers <= set(support.ROWS)
    assert {name for name in registry.modules("backends") if backend(name).by_default} <= set(support.EXECUTIONS)


@pytest.mark.parametrize("runtime", support.EXECUTIONS)
def test_a_sample_of_it_is_true(runtime):
    if not backend(runtime).installed:
        pytest.skip(f"{runtime} is not installed")
    sample, said = [entry for entry in SAMPLE if entry.backend == runtime], written()
    found = support.answers(sample)
    for entry in sample:
        assert (said[entry] == support.OK) == (found[entry] == support.OK), (WRITE, entry, found[entry])
        assert not found[entry].startswith("fails"), found[entry]
