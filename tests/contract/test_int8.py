"""Quantised programs: really int8, proven, honest about what they lost, and made once."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from contract.programs import ONNXRUNTIME, OPENVINO, Variant, each_of
from layermark.axes import complete
from layermark.backends.base import backend
from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.worker import oracle
from layermark.worker.service import Service
from layermark.worker.verify import output_tolerance, verify
from layermark.workloads.base import task as task_of
from layermark.workloads.folding import folded, products

BOTH = each_of((ONNXRUNTIME, OPENVINO))


def proven(variant: Variant, folder: Any) -> tuple[Any, Spec, Any, Any]:
    """A small quantised model, what it was made from, and the oracle's answer."""
    if not backend(variant.backend).installed:
        pytest.skip(f"{variant.backend} is not installed")
    if variant is OPENVINO:
        pytest.importorskip("nncf")
    asked = Spec(
        workload="resnet8-cifar", backend=variant.backend, execution=variant.execution, precision="int8", threads=1
    )
    spec = complete(asked.replace(batch_size=2))
    task, path = task_of(spec), folder / "answer.npz"
    oracle.compute(spec, path)
    return backend(variant.backend).prepare(spec, task), spec, task, path


class Tampered:
    """A program that is given zeros for one parameter; what it stores may be passed off as the honest weights."""

    def __init__(self, program: Any, name: str, shown: Any = None):
        self.__dict__.update(program=program, name=name, shown=shown)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.program, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self.program, attribute, value)

    def load(self, weights: Any) -> None:
        """As the program does, but for one parameter."""
        self.program.load({**weights, self.name: weights[self.name] * 0})

    def products(self) -> Any:
        """What is stored, or what was stored before."""
        return self.shown or self.program.products()


@BOTH
def test_a_quantised_model_is_proven_and_says_what_it_lost(variant: Variant, tmp_path: Any) -> None:
    program, spec, task, path = proven(variant, tmp_path)
    found = verify(program, spec, task, path)
    assert found.ok, found.reason
    assert found.tolerance <= 0.25
    settings = program.settings
    assert ("int8", "8 of 8 convolutions and products") == (settings["compute_type"], settings["quantised"])
    lost = program.accuracy()
    assert (64, f"float32 outputs of {variant.backend}") == (lost["items"], lost["against"])
    assert 1e-4 < lost["relative_error"] < output_tolerance("int8", task.graph)
    assert 0.9 <= lost["top1_agreement"] <= 1
    assert len(program.run(3).done) == 3


@BOTH
def test_one_node_of_zeros_fails(variant: Variant, tmp_path: Any) -> None:
    program, spec, task, path = proven(variant, tmp_path)
    found = verify(Tampered(program, "layer3/0/conv1/weight"), spec, task, path)
    assert (False, "layer3/0/conv1/weight") == (found.ok, found.worst)


def test_outputs_alone_tell_that_a_node_is_zeros(tmp_path: Any) -> None:
    program, spec, task, path = proven(ONNXRUNTIME, tmp_path)
    honest = program.products()
    unnoticed = [name for name in products(task.graph) if verify(Tampered(program, name, honest), spec, task, path).ok]
    assert [] == unnoticed


@BOTH
def test_the_weights_read_back_are_those_that_were_quantised(variant: Variant, tmp_path: Any) -> None:
    program, _, task, _ = proven(variant, tmp_path)
    graph, weights = folded(task.graph, task.weights())
    found = program.products()
    assert sorted(products(graph)) == sorted(found)
    for name, each in found.items():
        off = np.abs(each - weights[name])
        assert 0 < off.max() < 0.01 * np.abs(weights[name]).max(), name


@BOTH
def test_a_model_is_quantised_once(variant: Variant, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _, task, _ = proven(variant, tmp_path)
    program.run(1)
    first = program.outputs()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no such program"))
    again = proven(variant, tmp_path)[0]
    again.run(1)
    assert all(np.array_equal(each, again.outputs()[name]) for name, each in first.items())
    with pytest.raises(FileNotFoundError):
        again.load({name: each * 2 for name, each in task.weights().items()})


@BOTH
def test_copied_batches_give_the_same(variant: Variant, tmp_path: Any) -> None:
    program, spec, task, _ = proven(variant, tmp_path)
    copied = backend(variant.backend).prepare(spec.replace(data="generated"), task)
    for each in (program, copied):
        each.run(2)
    assert all(np.array_equal(each, copied.outputs()[name]) for name, each in program.outputs().items())


@BOTH
@pytest.mark.parametrize(
    ("workload", "changes", "reason"),
    [("lstm", {}, "no int8 recurrent layers"), ("dense", {"mode": "eval"}, "int8 is for inference")],
)
def test_what_cannot_be_quantised_is_named(
    variant: Variant, workload: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        variant.prepared(workload, precision="int8", **changes)


def test_other_runtimes_quantise_nothing() -> None:
    spec = Spec(workload="dense", backend="null", precision="int8", batch_size=1)
    with pytest.raises(Unsupported, match="null quantises nothing here; onnxruntime and openvino do"):
        Service().prepare(complete(spec).to_json())


def test_the_ceiling_is_that_of_whole_numbers() -> None:
    pytest.importorskip("onnxruntime")
    spec = ONNXRUNTIME.spec(threads=1, precision="int8")
    assert 1e9 < backend("onnxruntime").probe(spec).peak(0.05) < 1e14  # type: ignore[union-attr]
