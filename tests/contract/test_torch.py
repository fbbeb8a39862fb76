"""What only torch does: compiling, folding and recomputing, packed weights, mixed types, names in the fx module."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contract.cases import SEQUENCES, case
from contract.covering import product
from contract.programs import SMALL, TORCH, close, fresh, oracle, slopes
from contract.runtimes import double_module
from layermark import ops, reference
from layermark.axes import complete
from layermark.backends.base import backend
from layermark.errors import Unsupported
from layermark.graph import Builder, Graph
from layermark.laws import Integers
from layermark.spec import Spec
from layermark.workloads import base as workloads
from layermark.workloads.base import Task

torch = pytest.importorskip("torch")
lowering = pytest.importorskip("layermark.backends.torch.lowering")
prepared = TORCH.prepared
TUNED = {"mode": "train", "formulation": "tuned", "execution": "compile"}


@pytest.mark.parametrize("execution", ["eager", "compile"])
def test_what_is_not_trained_stays(execution: str) -> None:
    """The constant parts of torch's second bias take no part in the update."""
    program, _ = prepared("gru", mode="train", execution=execution)
    program.run(3)
    cell = program._network.places["gru/recurrent_bias"].owner
    assert torch.count_nonzero(cell.recurrent_bias[:24]) == 0
    assert torch.count_nonzero(cell.recurrent_bias[24:]) == 12


@pytest.mark.parametrize("formulation", ["library", "tuned"])
def test_learning_rate_is_an_argument_of_the_compiled_step(formulation: str) -> None:
    program, task = prepared("dense", mode="train", execution="compile", formulation=formulation)
    assert program.settings["execution"] == "compile"
    _, gradients = slopes(task)
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
    program, task = prepared("grouped_conv", execution="compile")
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    zero = {name: np.zeros_like(values) for name, values in task.weights().items()}
    program.load(zero)
    program.run(1)
    assert not program.outputs()["conv2"].any()
    close(program.weights(), zero)


def test_long_loops_compile_their_step_only() -> None:
    program, task = prepared("lstm", execution="compile", params={"cell": "loop", "timesteps": 20})
    program.run(1)
    assert program.settings["execution"] == "compile"
    close(program.outputs(), oracle(task, 0))


def test_recompute_is_what_runs_when_asked_for() -> None:
    program, task = prepared("lstm_multi", mode="train", execution="recompute")
    program.run(1)
    assert program.settings["execution"] == "recompute"
    close(program.outputs(), oracle(task, 0))


def test_auto_records_its_trial() -> None:
    settings = prepared("dense", execution="auto")[0].settings
    assert settings["execution"] in ("eager", "eager-direct", "compile")
    assert "eager" in settings["execution_trial"]
    assert "compile" in settings["execution_trial"]


def test_auto_compiles_no_fused_cells() -> None:
    settings = prepared("lstm", execution="auto")[0].settings
    assert settings["execution"] in ("eager", "eager-direct")
    assert settings["execution_trial"].startswith("no compile: the work is in fused")
    assert settings["execution_trial"].count("/s") == 2


@pytest.mark.parametrize("workload", ["dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi"])
def test_tuned_formulation_computes_the_same(workload: str) -> None:
    program, task = prepared(workload, formulation="tuned")
    program.run(1)
    assert program.settings["formulation"] == "tuned"
    close(program.outputs(), oracle(task, 0))
    other = {name: values * 0.5 for name, values in task.weights().items()}
    program.load(other)
    program.run(1)
    close(program.outputs(), oracle(task, 0, other))


def test_a_torch_without_the_private_operators_of_onednn_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from layermark.backends.torch import probe, process

    assert process.prepacks()
    monkeypatch.setattr(process, "_PREPACKING", ("_renamed_in_some_release",))
    process.prepacks.cache_clear()
    try:
        with pytest.raises(Unsupported, match="prepacked weights"):
            prepared("dense", formulation="tuned")
        assert 1 == len(probe.products(64, torch.float32))
    finally:
        process.prepacks.cache_clear()


def test_tuned_loops_of_two_programs_are_not_mixed_up() -> None:
    """They are the same code, and are called without a question about what was compiled."""
    sizes: list[dict[str, Any]] = [{"timesteps": 3}, {"timesteps": 5}, {"timesteps": 5}, {"bias": False}]
    programs = [prepared("gru", formulation="tuned", params=params) for params in sizes]
    for program, task in [*programs, *programs]:
        program.load(task.weights())
        program.run(1)
        assert program.settings["cell"] == "compiled loop"
        close(program.outputs(), oracle(task, 0))


@pytest.mark.parametrize("workload", ["dense", "grouped_conv", "rnn", "gru", "lstm"])
def test_tuned_training_is_one_compiled_step(workload: str) -> None:
    program, task = prepared(workload, **TUNED)
    program.learning_rate = 0.5
    program.run(1)
    loss, gradients = slopes(task)
    close(program.outputs(), {"loss": np.array(loss)})
    close(program.weights(), {name: values - 0.5 * gradients[name] for name, values in task.weights().items()})
    assert program.settings["execution"] == "compile"
    assert program.settings.get("cell", "loop") == "loop"


def test_tuned_steps_of_two_programs_are_not_mixed_up() -> None:
    """They are the same code, and are called without a question about what was compiled."""
    programs = [prepared("gru", **TUNED) for _ in range(2)]
    programs.append(prepared("lstm", **TUNED))
    for program, task in programs:
        program.learning_rate = 0.5
        program.run(1)
        _, gradients = slopes(task)
        close(program.weights(), {name: values - 0.5 * gradients[name] for name, values in task.weights().items()})


@pytest.mark.parametrize("formulation", ["library", "tuned"])
@pytest.mark.parametrize("changes", [{"precision": "bf16.32"}, {"precision": "bf16.bf16"}, {"data": "generated"}])
def test_a_step_compiled_whole_moves_as_an_eager_one(changes: dict[str, Any], formulation: str) -> None:
    ends = []
    for how in ({"execution": "eager"}, {"execution": "compile", "formulation": formulation}):
        program, task = prepared("dense", mode="train", ring=2, **how, **changes)
        program.learning_rate = 0.5
        program.run(2)
        program.load({name: values * 0.5 for name, values in task.weights().items()})
        program.run(5)
        ends.append(program.weights())
    close(*ends, 2e-2 if "precision" in changes else 1e-5)


def test_a_compiled_step_outlives_another_program() -> None:
    """Which may reset all that was compiled, as folded weights need."""
    program, task = prepared("dense", **TUNED)
    prepared("dense", execution="compile")
    program.learning_rate = 0.5
    program.run(1)
    _, gradients = slopes(task)
    close(program.weights(), {name: values - 0.5 * gradients[name] for name, values in task.weights().items()})


TOLERANCES = {"32.32": 1e-5, "16.32": 1e-2, "16.16": 1e-2, "bf16.32": 6e-2, "bf16.bf16": 6e-2}
TYPES = {"32": "float32", "16": "float16", "bf16": "bfloat16"}


@pytest.mark.parametrize(("workload", "precision", "mode"), product(SMALL, TOLERANCES, ["infer", "train"]))
def test_precisions(workload: str, precision: str, mode: str) -> None:
    program, task = prepared(workload, precision=precision, mode=mode)
    program.run(1)
    compute, weight = precision.split(".")
    assert program.settings["compute_type"] == TYPES[compute]
    assert program.settings["weight_type"] == TYPES[weight]
    assert program.settings["output_type"] == (TYPES[compute] if mode == "infer" else "float32")
    close(program.outputs(), oracle(task, 0), TOLERANCES[precision])
    stored = program._network.places[next(iter(task.graph.parameters))].leaf.dtype
    assert str(stored) == f"torch.{TYPES[compute if mode == 'infer' else weight]}"


@pytest.mark.parametrize("precision", ["16.32", "bf16.32"])
def test_mixed_training_moves_by_fresh_casts(precision: str) -> None:
    """Autocast must not keep the casts of the weights as they were before the update."""
    program, task = prepared("dense", precision=precision, mode="train", ring=2)
    program.run(2)
    once = float(program.outputs()["loss"])
    moved = program.weights()
    program.load(task.weights())
    program.run(1)
    _, gradients = slopes(task)
    expected = {name: values - 0.5 * gradients[name] for name, values in task.weights().items()}
    close(program.weights(), expected, 2e-2)
    assert once == pytest.approx(float(oracle(task, 1, expected)["loss"]), rel=2e-2)
    assert any(np.abs(moved[name] - values).max() > 0 for name, values in program.weights().items())


def test_timeline_has_one_entry_per_batch() -> None:
    timeline = prepared("dense")[0].run(7)
    assert len(timeline.handed_over) == len(timeline.done) == 7
    assert list(timeline.done) == sorted(timeline.done)
    assert all(next_ >= before for before, next_ in zip(timeline.done, timeline.handed_over[1:], strict=False))


def test_settings_say_what_was_built() -> None:
    settings = prepared("conv")[0].settings
    assert settings["layout"] == "channels_last"
    assert settings["execution"] == "eager"
    assert settings["formulation"] == "library"
    assert settings["allocator"] == "retain"
    assert settings["isa"]
    assert prepared("dense")[0].settings["layout"] == "contiguous"


@pytest.mark.parametrize("choice", ["flush", "keep"])
def test_subnormals_hold_in_every_thread(choice: str) -> None:
    program, _ = prepared("dense", subnormals=choice)
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
    assert fresh(script, **backend("torch").environment(TORCH.spec(threads=2))).split() == ["0", "keep", "flush"]


def test_probe_measures_something() -> None:
    probe = backend("torch").probe(TORCH.spec("dense"))
    assert probe.peak(0.05) > 1e8
    assert probe.bandwidth(1 << 20, 0.02) > 1e8


def residual() -> Graph:
    """A small network with most kinds of calls: modules, functions, in-place activations, two outputs."""
    build = Builder()
    x = build.input("x", (2, 3, 8, 8), law=Integers(0, 256), item_bytes=1)
    x = build.add("normalise", ops.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), x)
    x = build.add("b0/conv", ops.Conv2d(8, (3, 3), (2, 2), (0, 1, 0, 1)), x)
    x = build.add("b0/relu", ops.Activation("relu"), build.add("b0/norm", ops.Norm("batch"), x))
    y = build.add("b1/conv", ops.Conv2d(8, (3, 3), (1, 1), (1, 1, 1, 1), groups=2), x)
    x = build.add("b1/relu", ops.Activation("relu"), build.add("b1", ops.Add(), y, x))
    pooled = build.add("pool", ops.GlobalPool(), x)
    return build.graph(build.add("for", ops.Dense(5), pooled), "b1/relu")


def test_names_are_stamped_into_the_module() -> None:
    names = {node.name for node in lowering.lower(residual()).module.graph.nodes}
    assert {"x", "b0_conv", "b0_norm", "b1_relu", "b1", "n_for"} <= names


def test_values_that_others_need_are_not_overwritten() -> None:
    module = lowering.lower(residual()).module
    in_place = {node.name for node in module.graph.nodes if node.kwargs.get("inplace")}
    assert in_place == {"b0_relu", "b1_relu"}


@pytest.fixture
def untouched() -> Iterator[None]:
    """Torch's switches as they are where no program was prepared before: folding is for fp32."""
    import torch._inductor.config as inductor

    held, torch.backends.fp32_precision = torch.backends.fp32_precision, "none"
    with inductor.patch(freezing=False):
        yield
    torch.backends.fp32_precision = held


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("variant", ["export", "compile"])
def test_export_and_compile_accept_the_module(variant: str) -> None:
    graph = residual()
    task = Task(graph, 7, 1)
    lowered = double_module(graph, task.weights())
    inputs = tuple(torch.as_tensor(each).to(torch.uint8) for each in task.batch(0).values())
    with torch.no_grad():
        expected = lowered.module(*inputs)
        if variant == "export":
            made = torch.export.export(lowered.module, inputs).module()
        else:
            made = torch.compile(lowered.module, fullgraph=True, dynamic=False)
        for actual, wanted in zip(made(*inputs), expected, strict=True):
            close({"y": actual.numpy()}, {"y": wanted.numpy()}, 1e-9)


def test_fused_gru_that_resets_before_is_refused() -> None:
    with pytest.raises(Unsupported, match="use --cell loop"):
        lowering.lower(case(ops.Recurrent("gru", 6, reset="before"), SEQUENCES).graph)


@pytest.mark.parametrize(
    ("workload", "changes", "reason"),
    [
        ("gru", {"params": {"reset": "before"}}, "use --cell loop"),
        ("lstm_multi", {**TUNED, "params": {"timesteps": 20}}, "too large for one step"),
        ("dense", {**TUNED, "execution": "eager"}, "use --execution compile"),
        ("dense", {"formulation": "tuned", "execution": "compile"}, "opaque"),
        ("lstm", {"mode": "train", "execution": "compile"}, "cannot train oneDNN's LSTM; use --cell loop"),
    ],
)
def test_refusals(workload: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        prepared(workload, **changes)


def test_load_names_the_instruction_set() -> None:
    assert backend("torch").load()["isa"]


def hooked(program: Any) -> list[str]:
    """Count the calls of a module and of its parts, as a user's hooks see them."""
    called: list[str] = []
    for name, part in program.module.named_modules():
        part.register_forward_hook(lambda *_, name=name: called.append(name))
    return called


def test_eager_calls_modules_and_an_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(*_: Any) -> None:
        raise AssertionError("the documented execution took the private entry")

    monkeypatch.setattr("layermark.backends.torch.execution._direct", poisoned)
    monkeypatch.setattr("layermark.backends.torch.updating.Trainer.eager", poisoned)
    program, task = prepared("dense", execution="eager")
    called = hooked(program)
    program.run(2)
    assert ["dense", ""] * 2 == called
    close(program.outputs(), oracle(task, 1))
    steps, genuine = [], torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *args: steps.append(1) or genuine(self, *args))
    trained, _ = prepared("gru", mode="train", execution="eager")
    steps.clear()
    trained.run(3)
    assert 3 == len(steps)
    assert trained.settings["execution"] == "eager"


@pytest.mark.parametrize("workload", ["dense", "gru", "lstm_multi"])
def test_eager_direct_computes_the_same_below_the_calls(workload: str) -> None:
    program, task = prepared(workload, execution="eager-direct")
    called = hooked(program)
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    assert [] == called
    assert program.settings["execution"] == "eager-direct"
    documented, direct = (prepared(workload, mode="train", execution=each)[0] for each in ("eager", "eager-direct"))
    documented.run(3)
    direct.run(3)
    close(direct.weights(), documented.weights())


def test_eager_direct_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_foreach_add_")
    program, _ = prepared("dense", mode="infer", execution="eager-direct")
    assert program.settings["execution"] == "eager-direct"  # which needs no update
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)  # it stands on the same function
    program, _ = prepared("dense", mode="train", execution="eager-direct")
    assert program.settings["execution"] == "eager"
    assert program.settings["fallback"].startswith("eager-direct -> eager: torch ")


def test_eager_direct_falls_back_where_modules_are_written_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(network: Any) -> Any:
        return lambda *inputs: SimpleNamespace().weight

    monkeypatch.setattr("layermark.backends.torch.execution._direct", unknown)
    program, task = prepared("dense", execution="eager-direct")
    program.run(1)
    close(program.outputs(), oracle(task, 0))
    assert program.settings["execution"] == "eager"
    assert "GraphModule" in program.settings["fallback"]
    automatic = prepared("lstm", execution="auto")[0].settings
    assert automatic["execution"] == "eager"
    assert "eager-direct failed: MissingEntry" in automatic["execution_trial"]


@pytest.mark.parametrize("kind", ["batch", "group", "proxy"])
def test_norms_in_full_precision_are_other_norms_and_as_right(kind: str) -> None:
    """The same 16-bit network, with its norms in float32: they hold float32, and give what the next layer takes."""
    from layermark.backends.torch.modules import WideNorm
    from layermark.backends.torch.network import Network

    params = {"image_size": (32, 32), "norm_type": kind, "classes": 10}
    spec = complete(Spec(workload="resnet18", backend="torch", batch_size=1, precision="16.16", params=params))
    networks = {word: Network(spec.replace(norms=word), workloads.task(spec).graph) for word in ("own", "full")}
    graph, weights, fed = workloads.task(spec).graph, workloads.task(spec).weights(), workloads.task(spec).batch(0)
    (exact,) = reference.evaluate(graph, reference.doubles(weights), reference.doubles(fed)).values()
    wide = [part for part in networks["full"].module.modules() if isinstance(part, WideNorm)]
    assert wide and not any(isinstance(part, WideNorm) for part in networks["own"].module.modules())
    assert {torch.float32} == {each.dtype for part in wide for each in part.parameters()}
    errors = {}
    for word, network in networks.items():
        network.load(weights)
        with network.recording():
            (found,) = network.results(network.module(*network.feed(fed))).values()
        errors[word] = abs(found - exact).max()
    assert errors["full"] != errors["own"] and max(errors.values()) < 3e-2 * exact.std()
    assert spec.key != spec.replace(norms="full").key and spec.group != spec.replace(norms="full").group
