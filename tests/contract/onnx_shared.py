"""What the tests of the ONNX writer and its two runtimes share: every operation, and the life of a program."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from layermark import ops, reference
from layermark.backends.base import backend
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError
from layermark.graph import Builder, Graph
from layermark.laws import Integers, Normal, Uniform
from layermark.spec import Spec
from layermark.workloads.base import Task
from layermark.workloads.base import task as task_of

PICTURES = (2, 6, 7, 9)
SEQUENCES = (4, 3, 5)
ROWS = (3, 8)
BITS = Integers(0, 2)
CELLS = ("rnn", "gru", "lstm")


@dataclass(frozen=True)
class Case:
    """One operation, the shapes it reads, and the facts of its inputs that are not the usual ones."""

    op: ops.Op
    shapes: tuple[tuple[int, ...], ...]
    facts: Mapping[int, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """What pytest shows."""
        fields = ",".join(f"{name}={value}" for name, value in vars(self.op).items() if "law" not in name)
        return f"{type(self.op).__name__}({fields})"

    @property
    def graph(self) -> Graph:
        """The operation by itself."""
        build = Builder()
        inputs = [build.input(f"in/{n}", shape, **self.facts.get(n, {})) for n, shape in enumerate(self.shapes)]
        return build.graph(build.add("b0/the-op", self.op, *inputs))


def case(op: ops.Op, *shapes: tuple[int, ...], **facts: Mapping[str, Any]) -> Case:
    """A case; a keyword such as `in1` gives the facts of input number 1."""
    return Case(op, shapes, {int(key[2:]): each for key, each in facts.items()})


def labels(classes: int) -> dict[str, Any]:
    """The facts of an input of whole-number labels."""
    return {"law": Integers(0, classes), "role": "target", "item_bytes": 4}


TARGET = {"role": "target"}
MASK = {"law": BITS, "role": "mask"}

CASES = [
    case(ops.Dense(5), ROWS),
    case(ops.Dense(5), (8,)),
    case(ops.Dense(5), SEQUENCES),
    case(ops.Dense(5, bias=False), (2, 3, 8)),
    case(ops.Conv2d(4, (3, 3)), PICTURES),
    case(ops.Conv2d(6, (3, 2), (2, 1), (1, 1, 2, 2), (1, 2), groups=3, bias=True), PICTURES),
    case(ops.Conv2d(4, (3, 3), (2, 2), (0, 1, 0, 1), groups=2, bias=True), PICTURES),
    case(ops.Conv2d(6, (5, 5), (1, 1), (2, 2, 2, 2), groups=6), PICTURES),
    case(ops.Norm("batch"), PICTURES),
    case(ops.Norm("batch"), ROWS),
    case(ops.Norm("batch", training=True, epsilon=1e-3), PICTURES),
    case(ops.Norm("batch", training=True), ROWS),
    case(ops.Norm("group", groups=3), PICTURES),
    case(ops.Norm("group", groups=2), ROWS),
    case(ops.Norm("group", groups=3, strided=True), PICTURES),
    case(ops.Norm("group", groups=2, strided=True), ROWS),
    case(ops.Norm("none"), PICTURES),
    *(case(ops.Norm("proxy", groups=2, activation=kind), PICTURES) for kind in ("", *ops.ACTIVATIONS)),
    case(ops.Norm("proxy", groups=2, strided=True, activation="relu"), PICTURES),
    *(case(ops.Activation(kind), PICTURES, in0={"law": Normal(4.0)}) for kind in ops.ACTIVATIONS),
    case(ops.Pool("max", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("max", (3, 3), (2, 2), (0, 1, 0, 1)), PICTURES),
    case(ops.Pool("max", (3, 2), (1, 2), (2, 2, 1, 1)), PICTURES),
    case(ops.Pool("average", (3, 3), (2, 2), (1, 1, 1, 1)), PICTURES),
    case(ops.Pool("average", (3, 2), (2, 1), (0, 1, 1, 0)), PICTURES),
    case(ops.GlobalPool(), PICTURES),
    case(ops.Add(), PICTURES, PICTURES, PICTURES),
    case(ops.Add(), ROWS, ROWS),
    case(ops.Multiply(), PICTURES, PICTURES),
    case(ops.Multiply(), PICTURES, PICTURES[:2]),
    case(ops.Multiply(), PICTURES[:2], PICTURES),
    case(ops.Concat(1), PICTURES, (2, 3, 7, 9)),
    case(ops.Concat(0), ROWS, ROWS),
    case(ops.Pad((1, 0, 2, 3), (0, 2)), PICTURES),
    case(ops.Subsample((2, 3)), PICTURES),
    case(
        ops.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), (2, 3, 4, 5), in0={"law": Integers(0, 256), "item_bytes": 1}
    ),
    case(ops.Dropout(0.25), ROWS),
    case(ops.Dropout(0.25), ROWS, ROWS, in1=MASK),
    case(ops.StochasticDepth(0.8), PICTURES),
    case(ops.StochasticDepth(0.8), PICTURES, (2,), in1=MASK),
    *(case(ops.Recurrent(cell, 6, form), SEQUENCES) for cell in CELLS for form in ("fused", "loop")),
    *(case(ops.Recurrent(cell, 6, form, bias=False), SEQUENCES) for cell in CELLS for form in ("fused", "loop")),
    *(case(ops.Recurrent(cell, 6, "loop"), (17, 3, 5)) for cell in CELLS),
    *(case(ops.Recurrent("gru", 6, form, reset="before"), SEQUENCES) for form in ("fused", "loop")),
    case(ops.Recurrent("gru", 6, "loop", reset="before"), (17, 2, 5)),
    case(ops.Recurrent("lstm", 6, "loop"), (1, 3, 5)),
    *(case(ops.Recurrent("lstm", 6, form, forget_bias=1.0), SEQUENCES) for form in ("fused", "loop")),
    *(case(ops.Recurrent("lstm", 6, form, bias=False, forget_bias=1.0), SEQUENCES) for form in ("fused", "loop")),
    case(ops.TakeLast(), SEQUENCES),
    case(ops.Softmax(1), ROWS),
    case(ops.Softmax(1), PICTURES),
    case(ops.Flatten(), PICTURES),
    case(ops.MeanSquaredError(), ROWS, ROWS, in1=TARGET),
    case(ops.MeanSquaredError(), (5,), (5,), in1=TARGET),
    case(ops.SumSquaredError(), SEQUENCES, SEQUENCES, in1=TARGET),
    case(ops.CrossEntropy(), ROWS, ROWS[:1], in1=labels(8)),
    case(ops.CrossEntropy(0.1), SEQUENCES, SEQUENCES[:-1], in1=labels(5)),
    case(ops.CrossEntropy(), SEQUENCES, SEQUENCES, in1=TARGET | {"law": Uniform(0, 1)}),
    case(ops.Mean(), PICTURES),
    case(ops.NegativeLogLikelihood(), SEQUENCES, SEQUENCES[:-1], in0={"law": Uniform(0.01, 1)}, in1=labels(5)),
]
EVERY_CASE = pytest.mark.parametrize("each", CASES, ids=[each.name for each in CASES])


def expected(task: Task, index: int, weights: Any = None) -> dict[str, Any]:
    """The reference's outputs for one input of the ring."""
    held, fed = reference.doubles(weights or task.weights()), reference.doubles(task.batch(index))
    return reference.evaluate(task.graph, held, fed)


def close(actual: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    """Every array equal up to a share of its size."""
    assert list(actual) == list(wanted)
    for name, values in wanted.items():
        assert actual[name].shape == np.shape(values), name
        assert np.abs(actual[name] - values).max() <= tolerance * np.abs(values).max() + 1e-12, name


SMALL: dict[str, dict[str, Any]] = {
    "dense": {"size": 24},
    "conv": {"input_height": 9, "input_width": 11, "filter_number": 4},
    "grouped_conv": {"input_size": (8, 8), "filter_in": 8, "filter_out": 8, "block_repeats": 2, "group_dim": 2},
    "rnn": {"hidden_size": 12},
    "gru": {"hidden_size": 12},
    "lstm": {"hidden_size": 12},
    "lstm_multi": {"hidden_size": 12, "timesteps": 6},
}
SUBNORMALS = """
import sys
import numpy as np
from layermark import ops
from layermark.backends.base import backend
from layermark.graph import Builder
from layermark.laws import Constant
from layermark.spec import Spec
from layermark.workloads.base import Task

build = Builder()
x, scale = (build.input(name, (512, 512), law=Constant(value)) for name, value in (("x", 1e-30), ("scale", 1e-10)))
task = Task(build.graph(build.add("y", ops.Multiply(), x, scale)), 0, 1)
spec = Spec(workload="any", backend=sys.argv[1], subnormals=sys.argv[2], threads=2)
program = backend(sys.argv[1]).prepare(spec, task)
program.run(1)
print(np.count_nonzero(program.outputs()["y"].view("int32")), program.settings["subnormals"])
"""
EVERY_LAYER = pytest.mark.parametrize("workload", SMALL)


class OpContract:
    """Every operation alone, through a program of the backend, against the float64 reference."""

    backend: ClassVar[str]

    @EVERY_CASE
    def test_op_matches_the_reference(self, each: Case) -> None:
        task = Task(each.graph, 5, 1)
        program = backend(self.backend).prepare(Spec(workload="any", backend=self.backend, threads=2, ring=2), task)
        program.run(1)
        close(program.outputs(), expected(task, 0))

    @EVERY_LAYER
    @pytest.mark.parametrize("loss", ["target", "seed"])
    def test_layers_and_their_losses_match_the_reference(self, workload: str, loss: str) -> None:
        spec = Spec(
            workload=workload, backend=self.backend, params=SMALL[workload], batch_size=3, mode="eval", loss=loss
        )
        task = task_of(spec)
        program = backend(self.backend).prepare(spec, task)
        program.run(1)
        close(program.outputs(), expected(task, 0))


class ProgramContract:
    """The life of a program: ring, outputs, weights, refusals."""

    backend: ClassVar[str]

    def spec(self, workload: str = "dense", **changes: Any) -> Spec:
        """A small measurement of a layer."""
        params = SMALL[workload] | changes.pop("params", {})
        return Spec(
            workload=workload, backend=self.backend, params=params, **({"batch_size": 3, "threads": 2} | changes)
        )

    def prepared(self, workload: str = "dense", **changes: Any) -> tuple[Any, Task]:
        """The program and its task."""
        spec = self.spec(workload, **changes)
        task = task_of(spec)
        return backend(self.backend).prepare(spec, task), task

    @EVERY_LAYER
    @pytest.mark.parametrize("data", ["synthetic", "generated"])
    def test_ring_is_walked_in_order(self, workload: str, data: str) -> None:
        program, task = self.prepared(workload, data=data, ring=3)
        for index in (0, 1, 2, 0):
            program.run(1)
            close(program.outputs(), expected(task, index))
        program.run(5)
        close(program.outputs(), expected(task, 2))

    @EVERY_LAYER
    def test_weights_come_back_as_they_went_in(self, workload: str) -> None:
        program, task = self.prepared(workload)
        other = {name: values * 0.5 + 0.25 for name, values in task.weights().items()}
        program.run(2)
        program.load(other)
        close(program.weights(), other, 0)
        program.run(1)
        close(program.outputs(), expected(task, 0, other))

    def test_loading_goes_back_to_the_first_input(self) -> None:
        program, task = self.prepared()
        program.run(2)
        program.load(task.weights())
        with pytest.raises(RuntimeError, match="no batch has run"):
            program.outputs()
        program.run(1)
        close(program.outputs(), expected(task, 0))

    def test_later_changes_of_loaded_arrays_do_not_reach_the_program(self) -> None:
        program, task = self.prepared()
        given = {name: values * 2 for name, values in task.weights().items()}
        program.load(given)
        given["dense/bias"][:] = 0
        assert program.weights()["dense/bias"].any()

    def test_outputs_are_copies(self) -> None:
        program, task = self.prepared()
        program.run(1)
        first = program.outputs()
        program.run(1)
        close(first, expected(task, 0))

    def test_generated_data_is_copied_for_every_batch(self) -> None:
        program, task = self.prepared(data="generated", ring=2)
        program.run(1)
        program._host[1][0][:] = 0
        program.run(1)
        close(program.outputs(), {"dense": np.tile(task.weights()["dense/bias"], (3, 1))})

    def test_synthetic_data_is_resident(self) -> None:
        program, task = self.prepared(ring=2)
        program._host[0][0][:] = 0
        program.run(1)
        close(program.outputs(), expected(task, 0))

    def test_timeline_has_every_batch_in_order(self) -> None:
        program, _ = self.prepared(batches_per_step=1)
        before = time.perf_counter_ns()
        handed_over, done = program.run(5)
        pairs = [stamp for pair in zip(handed_over, done, strict=True) for stamp in pair]
        stamps = [before, *pairs, time.perf_counter_ns()]
        assert len(done) == 5
        assert stamps == sorted(stamps)

    def test_run_returns_when_the_work_is_finished(self) -> None:
        program, _ = self.prepared(params={"size": 1024}, batch_size=256, ring=2)
        program.run(4)
        spent = time.process_time_ns()
        program.run(40)
        returned = time.process_time_ns()
        time.sleep(0.3)
        late = time.process_time_ns() - returned
        assert late < 0.5 * (returned - spent) + 200_000_000

    def test_cold_cache_evicts_outside_of_the_timed_work(self) -> None:
        program, task = self.prepared(cache="cold")
        handed_over, done = program.run(3)
        assert all(after > before for before, after in zip(done, handed_over[1:], strict=False))
        close(program.outputs(), expected(task, 2))
        assert program.settings["cache"].startswith("cold")

    @pytest.mark.parametrize("choice", ["keep", "flush"])
    def test_subnormals_are_kept_or_flushed(self, choice: str) -> None:
        # In a process of its own: thread pools keep what they were first started with.
        done = subprocess.run([sys.executable, "-c", SUBNORMALS, self.backend, choice], capture_output=True, text=True)
        assert done.stdout.split() == [str(512 * 512 if choice == "keep" else 0), choice], done.stderr

    def test_busy_threads_stay_within_the_budget(self) -> None:
        program, _ = self.prepared(params={"size": 512}, batch_size=64, threads=1)
        before, began = cpu.thread_times_ns(), time.perf_counter()
        while time.perf_counter() - began < 0.3:
            program.run(8)
        gained = [now - before.get(name, 0) for name, now in cpu.thread_times_ns().items()]
        assert sum(each > 0.1 * 0.3e9 for each in gained) <= 1

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"mode": "train"}, "runs inference only"),
            ({"device": "cuda"}, "runs on cpu only"),
            ({"formulation": "tuned"}, "no tuned formulation of dense"),
            ({"precision": "16.16"}, "float16 models in|cannot compute in float16"),
            ({"precision": "16.32"}, "float16 models in|cannot compute in float16"),
        ],
    )
    def test_what_it_cannot_do_is_named(self, changes: dict[str, Any], reason: str) -> None:
        if "avx512_fp16" in Path("/proc/cpuinfo").read_text() and "precision" in changes:
            pytest.skip("this CPU has native float16")
        with pytest.raises(Unsupported, match=reason):
            self.prepared(**changes)

    def test_unknown_execution_is_the_users_error(self) -> None:
        with pytest.raises(UserError, match="--execution eager"):
            self.prepared(execution="eager")

    def test_settings_say_what_ran(self) -> None:
        program, _ = self.prepared("lstm")
        found = program.settings
        assert found["compute_type"] == found["weight_type"] == found["output_type"] == "float32"
        assert found["execution"] in backend(self.backend).executions
        assert found["cell"] == "fused"

    def test_close_lets_go(self) -> None:
        program, _ = self.prepared()
        program.run(1)
        program.close()
        with pytest.raises(RuntimeError):
            program.outputs()
