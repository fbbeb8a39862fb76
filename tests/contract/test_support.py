"""`docs/support.md` has every cell, and a sample of them is still true."""

from pathlib import Path

import pytest

from layermark import registry
from layermark.backends.base import backend
from layermark.cli import support
from layermark.cli.support import Cell

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
WRITE = "write it again: python -m layermark.cli.support"
SAMPLE = [
    Cell("dense", "infer", "32.32", "torch"),
    Cell("conv", "infer", "int8", "torch"),
    Cell("conv", "infer", "int8", "onnxruntime"),
    Cell("conv", "train", "bf16.bf16", "torch"),
    Cell("lstm", "train", "32.32", "tensorflow"),
    Cell("lstm", "infer", "32.32", "jax"),
    Cell("dense", "infer", "bf16.32", "jax"),
    Cell("gru", "infer", "32.32", "onnxruntime"),
    Cell("dense", "infer", "bf16.bf16", "onnxruntime"),
    Cell("dense", "train", "32.32", "openvino"),
    Cell("rnn", "infer", "32.32", "openvino"),
    Cell("hmc", "infer", "32.32", "torch"),
    Cell("hmc", "infer", "32.32", "onnxruntime"),
]


def written():
    return support.parse(PAGE.read_text(encoding="utf-8"))


def test_every_cell_is_on_the_page():
    assert set(support.cells()) == set(written()), WRITE


def test_nothing_fails():
    assert [] == [cell for cell, text in written().items() if text.startswith("fails")]


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
    sample, said = [cell for cell in SAMPLE if cell.backend == runtime], written()
    found = support.answers(sample)
    for cell in sample:
        assert (said[cell] == support.OK) == (found[cell] == support.OK), (WRITE, cell, found[cell])
        assert not found[cell].startswith("fails"), found[cell]
