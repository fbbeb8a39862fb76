"""TensorFlow on a device of its own: inputs that lie there, and nothing that is quietly placed elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contract.programs import TENSORFLOW, TENSORFLOW_SESSION, TENSORFLOW_XLA, Variant, close, each_of, oracle, slopes
from layermark.backends.base import backend
from layermark.errors import Unsupported

tf = pytest.importorskip("tensorflow")
from layermark.backends.tensorflow import process  # noqa: E402 - where tensorflow is installed

EITHER = each_of((TENSORFLOW, TENSORFLOW_XLA, TENSORFLOW_SESSION))
without_gpu = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="TensorFlow sees a GPU here")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU under the name of another device, with all that is done for a device."""
    monkeypatch.setitem(process.DEVICES, "cuda", "/device:CPU:0")
    monkeypatch.setattr(process, "require", lambda device: None)


@EITHER
@pytest.mark.parametrize("workload", ["dense", "lstm", "resnet8-cifar"])
@pytest.mark.usefixtures("stand_in")
def test_every_input_of_the_ring_lies_on_the_device(variant: Variant, workload: str) -> None:
    program, task = variant.prepared(workload, device="cuda", ring=3)
    calls = program._chosen.execution.calls(1)
    assert not any(isinstance(each, np.ndarray) for call in calls for each in call.args)
    for index in (0, 1, 2, 0):
        program.run(1)
        close(program.outputs(), oracle(task, index), tolerance=1e-4)
    assert (program.settings["device"], program.settings["subnormals"]) == ("cuda", "as the device does")


@EITHER
@pytest.mark.parametrize("workload", ["dense", "resnet8-cifar"])
@pytest.mark.usefixtures("stand_in")
def test_steps_move_the_weights_on_the_device(variant: Variant, workload: str) -> None:
    program, task = variant.prepared(workload, device="cuda", mode="train", ring=2)
    loss, gradients = slopes(task)
    program.run(1)
    np.testing.assert_allclose(float(next(iter(program.outputs().values()))), loss, rtol=1e-4)
    moved, before = program.weights(), task.weights()
    taken = {name: (before[name] - moved[name]) / program.learning_rate for name in gradients}
    close(taken, gradients, tolerance=1e-3, floor=1e-5)


@pytest.mark.usefixtures("stand_in")
def test_generated_inputs_are_fed_to_the_device() -> None:
    program, task = TENSORFLOW.prepared(device="cuda", data="generated", ring=2)
    for index in (0, 1):
        program.run(1)
        close(program.outputs(), oracle(task, index))


@without_gpu
def test_an_operation_that_the_device_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "require", lambda device: None)
    with pytest.raises(tf.errors.InvalidArgumentError, match="GPU"):
        TENSORFLOW.prepared(device="cuda")


@without_gpu
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda"}, "tensorflow has no device cuda here: (this build has no CUDA|it sees no GPU)"),
        ({"device": "xpu"}, "tensorflow runs on cpu and cuda here, not on xpu"),
    ],
    ids=str,
)
def test_a_device_that_is_missing_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        TENSORFLOW.prepared(**changes)


@pytest.mark.usefixtures("stand_in")
def test_cold_caches_are_those_of_the_cpu() -> None:
    with pytest.raises(Unsupported, match="has --cache cold on cpu only here, not on cuda"):
        TENSORFLOW.prepared(device="cuda", cache="cold")


def test_a_worker_on_the_cpu_sees_no_gpu() -> None:
    on_cpu, on_gpu = (backend("tensorflow").environment(TENSORFLOW.spec(device=each)) for each in ("cpu", "cuda"))
    assert on_cpu["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "CUDA_VISIBLE_DEVICES" not in on_gpu
