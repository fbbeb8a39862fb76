"""The life of a torch program: ring, outputs, weights, one update, types, subnormals."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from layermark import reference
from layermark.backends.base import backend
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.workloads.base import Task
from layermark.workloads.base import task as task_of

torch = pytest.importorskip("torch")

SMALL: dict[str, dict[str, Any]] = {
    "dense": {"size": 24},
    "conv": {"input_height": 9, "input_width": 11, "filter_number": 4},
    "grouped_conv": {"input_size": (8, 8), "filter_in": 8, "filter_out": 8, "block_repeats": 2, "group_dim": 2},
    "rnn": {"hidden_size": 12},
    "gru": {"hidden_size": 12},
    "lstm": {"hidden_size": 12},
    "lstm_multi": {"hidden_size": 12, "timesteps": 6},
}
LAYERS = list(SMALL)


def spec_of(workload: str, **changes: Any) -> Spec:
    """A small measurement of a layer, eager unless told otherwise."""
    params = SMALL[workload] | changes.pop("params", {})
    facts = {"batch_size": 3, "execution": "eager", "threads": 2, "learning_rate": 0.5} | changes
    return Spec(workload=workload, backend="torch", params=params, **facts)


def prepared(spec: Spec) -> tuple[Any, Task]:
    """The program and its task."""
    task = task_of(spec)
    return backend("torch").prepare(spec, task), task


def oracle(task: Task, index: int, weights: Any = None) -> dict[str, Any]:
    """The reference's outputs for one input of the ring."""
    return reference.evaluate(
        task.graph, reference.doubles(weights or task.weights()), reference.doubles(task.batch(index))
    )


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Every array equal up to a share of its spread."""
    assert set(actual) == set(expected)
    for name, wanted in expected.items():
        assert actual[name].shape == np.shape(wanted), name
        assert np.abs(actual[name] - wanted).max() <= tolerance * np.abs(wanted).max() + 1e-12, name


@pytest.mark.parametrize("mode", ["infer", "eval"])
@pytest.mark.parametrize("workload", LAYERS)
def test_ring_is_walked_in_order(workload: str, mode: str) -> None:
    program, task = prepared(spec_of(workload, mode=mode, ring=3))
    for index in (0, 1, 2, 0):
        program.run(1)
        close(program.outputs(), oracle(task, index))
    program.run(5)
    close(program.outputs(), oracle(task, 2))


@pytest.mark.parametrize("workload", LAYERS)
def test_weights_come_back_as_they_went_in(workload: str) -> None:
    program, task = prepared(spec_of(workload))
    other = {name: values * 0.5 + 0.25 for name, values in task.weights().items()}
    program.run(2)
    program.load(other)
    close(program.weights(), other)
    program.run(1)
    close(program.outputs(), oracle(task, 0, other))


RECURRENT = ("rnn", "gru", "lstm", "lstm_multi")
FORMS = [(name, {}) for name in LAYERS] + [(name, {"cell": "loop"}) for name in RECURRENT]


@pytest.mark.parametrize(
    ("workload", "params"), FORMS, ids=lambda each: each if isinstance(each, str) else "-".join(each)
)
def test_one_update_follows_the_reference_gradients(workload: str, params: dict[str, Any]) -> None:
    program, task = prepared(spec_of(workload, mode="train", params=params))
    start = task.weights()
    loss, gradients = reference.gradients(task.graph, start, task.batch(0), torch)
    close(program.weights(), start)
    for rate in (32.0, 8.0):  # large, so that differences of fp32 weights show them well
        program.load(start)
        program.learning_rate = rate
        program.run(1)
        assert next(iter(program.outputs().values())) == pytest.approx(loss, rel=1e-5)
        moved = {name: (start[name] - values) / rate for name, values in program.weights().items()}
        close(moved, gradients, 2e-5)


def test_what_is_not_trained_stays() -> None:
    """The constant parts of torch's second bias take no part in the update."""
    program, _ = prepared(spec_of("gru", mode="train"))
    program.run(3)
    cell = program._network.slots["gru/recurrent_bias"].owner
    assert torch.count_nonzero(cell.recurrent_bias[:24]) == 0
    assert torch.count_nonzero(cell.recurrent_bias[24:]) == 12


def test_learning_rate_is_an_argument_of_the_compiled_step() -> None:
    program, task = prepared(spec_of("dense", mode="train", execution="compile"))
    assert program.settings["execution"] == "compile"
    _, gradients = reference.gradients(task.graph, task.weights(), task.batch(0), torch)
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rate in (1.0, 0.25, 1e-3):
        program.load(task.weights())
        program.learning_rate = rate
        program.run(1)
        moved = {name: (task.weights()[name] - values) / rate for name, values in program.weights().items()}
        close(moved, gradients, 1e-3 if rate < 0.01 else 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled


def test_compiled_inference_sees_new_weights() -> None:
    """Inductor folds the weights into the program, so loading others must not leave it as it is."""
    program, task = prepared(spec_of("grouped_conv", execution="compile"))
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    zero = {name: np.zeros_like(values) for name, values in task.weights().items()}
    program.load(zero)
    program.run(1)
    assert not program.outputs()["conv2"].any()
    close(program.weights(), zero)


def test_long_loops_compile_their_step_only() -> None:
    spec = spec_of("lstm", execution="compile", params={"cell": "loop", "timesteps": 20})
    program, task = prepared(spec)
    program.run(1)
    assert program.settings["execution"] == "compile"
    close(program.outputs(), oracle(task, 0))


def test_recompute_is_what_runs_when_asked_for() -> None:
    program, task = prepared(spec_of("lstm_multi", mode="train", execution="recompute"))
    program.run(1)
    assert program.settings["execution"] == "recompute"
    close(program.outputs(), oracle(task, 0))


def test_auto_records_its_trial() -> None:
    settings = prepared(spec_of("dense", execution="auto"))[0].settings
    assert settings["execution"] in ("eager", "compile")
    assert "eager" in settings["execution_trial"]
    assert "compile" in settings["execution_trial"]


def test_auto_skips_the_trial_for_fused_cells() -> None:
    settings = prepared(spec_of("lstm", execution="auto"))[0].settings
    assert settings["execution"] == "eager"
    assert "fused" in settings["execution_trial"]


def test_generated_data_is_copied_for_every_batch() -> None:
    program, task = prepared(spec_of("conv", data="generated", ring=2))
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    with torch.inference_mode():
        program.host[1][0].zero_()
    program.run(1)
    changed = reference.evaluate(
        task.graph,
        reference.doubles(task.weights()),
        {name: np.zeros(values.shape) for name, values in task.batch(1).items()},
    )
    assert np.abs(next(iter(program.outputs().values())) - next(iter(changed.values()))).max() < 1e-6


@pytest.mark.parametrize("workload", ["dense", "conv", "grouped_conv", "rnn", "lstm", "lstm_multi"])
def test_tuned_formulation_computes_the_same(workload: str) -> None:
    program, task = prepared(spec_of(workload, formulation="tuned"))
    program.run(1)
    assert program.settings["formulation"] == "tuned"
    close(program.outputs(), oracle(task, 0))
    other = {name: values * 0.5 for name, values in task.weights().items()}
    program.load(other)
    program.run(1)
    close(program.outputs(), oracle(task, 0, other))


TOLERANCES = {"32.32": 1e-5, "16.32": 1e-2, "16.16": 1e-2, "bf16.32": 6e-2, "bf16.bf16": 6e-2}
TYPES = {"32": "float32", "16": "float16", "bf16": "bfloat16"}


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("workload", LAYERS)
def test_precisions(workload: str, precision: str, mode: str) -> None:
    program, task = prepared(spec_of(workload, precision=precision, mode=mode))
    program.run(1)
    compute, weight = precision.split(".")
    assert program.settings["compute_type"] == TYPES[compute]
    assert program.settings["weight_type"] == TYPES[weight]
    assert program.settings["output_type"] == (TYPES[compute] if mode == "infer" else "float32")
    close(program.outputs(), oracle(task, 0), TOLERANCES[precision])
    stored = program._network.slots[next(iter(task.graph.parameters))].leaf.dtype
    assert str(stored) == f"torch.{TYPES[compute if mode == 'infer' else weight]}"


@pytest.mark.parametrize("precision", ["16.32", "bf16.32"])
def test_mixed_training_moves_by_fresh_casts(precision: str) -> None:
    """Autocast must not keep the casts of the weights as they were before the update."""
    program, task = prepared(spec_of("dense", precision=precision, mode="train", ring=2))
    program.run(2)
    once = float(program.outputs()["loss"])
    moved = program.weights()
    program.load(task.weights())
    program.run(1)
    _, gradients = reference.gradients(task.graph, task.weights(), task.batch(0), torch)
    expected = {name: values - 0.5 * gradients[name] for name, values in task.weights().items()}
    close(program.weights(), expected, 2e-2)
    assert once == pytest.approx(float(oracle(task, 1, expected)["loss"]), rel=2e-2)
    assert any(np.abs(moved[name] - values).max() > 0 for name, values in program.weights().items())


def test_cold_cache_keeps_the_eviction_out_of_the_batches() -> None:
    program, task = prepared(spec_of("dense", cache="cold"))
    timeline = program.run(2)
    assert timeline.handed_over[1] > timeline.done[0]
    assert program.settings["cache"].startswith("cold")
    close(program.outputs(), oracle(task, 1))


def test_timeline_has_one_entry_per_batch() -> None:
    timeline = prepared(spec_of("dense"))[0].run(7)
    assert len(timeline.handed_over) == len(timeline.done) == 7
    assert list(timeline.done) == sorted(timeline.done)
    assert list(timeline.handed_over[1:]) == list(timeline.done[:-1])


def test_settings_say_what_was_built() -> None:
    settings = prepared(spec_of("conv"))[0].settings
    assert settings["layout"] == "channels_last"
    assert settings["execution"] == "eager"
    assert settings["formulation"] == "library"
    assert settings["allocator"] == "retain"
    assert settings["isa"]
    assert prepared(spec_of("dense"))[0].settings["layout"] == "contiguous"


@pytest.mark.parametrize(
    ("workload", "changes", "error", "reason"),
    [
        ("gru", {"params": {"reset": "before"}}, Unsupported, "use --cell loop"),
        ("lstm", {"device": "ipu"}, Unsupported, "ipu"),
        ("gru", {"formulation": "tuned"}, Unsupported, "no tuned formulation"),
        ("dense", {"formulation": "tuned", "mode": "train"}, Unsupported, "no tuned formulation"),
        ("dense", {"formulation": "tuned", "execution": "compile"}, Unsupported, "opaque"),
        ("dense", {"execution": "xla"}, UserError, "torch knows eager, compile"),
    ],
)
def test_refusals(workload: str, changes: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        prepared(spec_of(workload, **changes))


@pytest.mark.parametrize("choice", ["flush", "keep"])
def test_subnormals_hold_in_every_thread(choice: str) -> None:
    program, _ = prepared(spec_of("dense", subnormals=choice))
    assert program.settings["subnormals"] == choice
    tiny = torch.full((1 << 20,), 1e-30) * 1e-10
    kept = int(torch.count_nonzero(tiny.view(torch.int32)))
    assert kept == (0 if choice == "flush" else tiny.numel())


def test_subnormals_are_flushed_in_a_fresh_process_with_two_threads() -> None:
    script = """
from layermark.backends.base import backend
found = backend("torch"); found.load()
from layermark.backends.torch.process import set_subnormals, subnormals_now
import torch
assert torch.get_num_threads() == 2
assert set_subnormals("flush") == "flush"
tiny = torch.full((1 << 22,), 1e-30) * 1e-10
print(int(torch.count_nonzero(tiny.view(torch.int32))), set_subnormals("keep"), set_subnormals("flush"))
"""
    environment = {**os.environ, **backend("torch").environment(spec_of("dense"))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "keep", "flush"]


def test_asking_about_the_backend_imports_no_torch() -> None:
    script = "import sys; from layermark.backends.base import backend; b = backend('torch'); b.installed, b.version"
    script += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_load_answers_versions() -> None:
    facts = backend("torch").load()
    assert facts["torch"] == torch.__version__
    assert facts["isa"]


def test_probe_measures_something() -> None:
    probe = backend("torch").probe(spec_of("dense"))
    assert probe.peak(0.05) > 1e8
    assert probe.bandwidth(1 << 20, 0.02) > 1e8
