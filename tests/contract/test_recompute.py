"""Activations that are computed again: the same updates, and blocks that hand on one tensor each."""

import itertools
import re
from pathlib import Path

import pytest

from contract.covering import FULL
from contract.programs import Variant, each_of
from contract.test_updates import same
from layermark import ops
from layermark.axes import complete
from layermark.backends.base import backend
from layermark.errors import Unsupported
from layermark.launch.process import Crew, worker_environment
from layermark.spec import Spec
from layermark.training.update import Update
from layermark.workloads.base import task

AGAIN = tuple(Variant(name, "recompute") for name in ("torch", "tensorflow", "jax"))
PLAIN = {"torch": "eager", "tensorflow": "function", "jax": "jit"}
NETWORKS = {
    "resnet8-cifar": {"image_size": (16, 16)},
    "efficientnet-cifar": {"image_size": (16, 16), "depth_coefficient": 0.3},
}


def spec_of(name, execution, workload, **more):
    update = Update(optimiser="momentum", accumulation=2, weight_decay=1e-2)
    facts = {"precision": "64.64", "batch_size": 4, "threads": 1, "mode": "train", "update": update, **more}
    return complete(Spec(workload=workload, backend=name, execution=execution, params=NETWORKS[workload], **facts))


def walked(name, execution, workload):
    """Weights, statistics and state after two updates of two micro-batches."""
    if not backend(name).installed:
        pytest.skip(f"{name} is not installed")
    spec = spec_of(name, execution, workload)
    made, runtime = task(spec), backend(name)
    runtime.load()
    program = runtime.prepare(spec, made)
    program.load(made.weights())
    program.learning_rate = 1e-3
    program.run(4)
    assert execution == program.settings["execution"]
    return {**program.weights(), **program.state()}


CASES = list(itertools.product(AGAIN, NETWORKS)) if FULL else list(zip(AGAIN, itertools.cycle(NETWORKS), strict=False))


@pytest.mark.parametrize(("variant", "workload"), CASES, ids=str)
def test_computing_again_changes_nothing(variant, workload):
    same(
        walked(variant.backend, "recompute", workload), walked(variant.backend, PLAIN[variant.backend], workload), 1e-10
    )


@each_of(AGAIN)
def test_there_is_nothing_to_compute_again_without_a_backward_pass(variant):
    if not backend(variant.backend).installed:
        pytest.skip(f"{variant.backend} is not installed")
    spec = spec_of(variant.backend, "recompute", "resnet8-cifar", mode="infer", precision="32.32", update=Update())
    backend(variant.backend).load()
    with pytest.raises(Unsupported, match="recompute needs a backward pass"):
        backend(variant.backend).prepare(spec, task(spec))


def test_blocks_hand_on_one_tensor_each():
    graph = task(complete(Spec(workload="resnet50", backend="torch", mode="train", batch_size=2))).graph
    blocks = graph.blocks()
    work = [node for node in graph if not isinstance(node.op, ops.Input)]
    assert work == [node for block in blocks for node in block] and len(blocks) >= 16
    for number, block in enumerate(blocks[:-1]):
        later = {name for after in blocks[number + 1 :] for node in after for name in node.inputs}
        assert {block[-1].name} == later & {node.name for node in block}


def program_of(name, execution, pictures=16, side=96):
    """ResNet-50 in training on small pictures."""
    if not backend(name).installed:
        pytest.skip(f"{name} is not installed")
    facts = {"mode": "train", "batch_size": pictures, "threads": 2, "ring": 1, "params": {"image_size": (side, side)}}
    spec = complete(Spec(workload="resnet50", backend=name, execution=execution, **facts))
    backend(name).load()
    return backend(name).prepare(spec, task(spec))


@pytest.mark.skipif(not FULL, reason="profiles ResNet-50 twice; LAYERMARK_TEST_FULL=1 runs it")
def test_computing_again_takes_a_third_less_memory_on_torch(tmp_path):
    """What a step of ResNet-50 holds at its worst moment, as torch's profiler counts it, without weights and inputs."""
    peaks = {}
    for execution in ("eager", "recompute"):
        folder = tmp_path / execution
        folder.mkdir()
        peaks[execution] = program_of("torch", execution).profile(folder, 1).memory["peak_bytes"]
    assert peaks["recompute"] < 2 / 3 * peaks["eager"]


def test_a_block_has_all_its_gradients_before_the_next_one_is_computed_again_on_tensorflow():
    """Else what they need is kept, and on one thread for operations that of all blocks at once."""
    written = pytest.importorskip("layermark.backends.tensorflow.recompute")
    spec = spec_of("tensorflow", "recompute", "resnet8-cifar", precision="32.32", update=Update())
    backend("tensorflow").load()
    step = backend("tensorflow").prepare(spec, task(spec))._chosen.execution._functions[0]
    operations = step.get_concrete_function().graph.get_operations()
    handed = [place for place, each in enumerate(operations) if re.search(rf"/{written.AGAIN}(_\d+)?$", each.name)]
    weights = [each.name for each in operations[handed[0] : handed[-1]] if each.type == "Conv2DBackpropFilter"]
    assert weights and set(weights) <= awaited(operations[handed[-1]])


def awaited(operation):
    """The names of all operations that must be done before this one."""
    found, left = set(), [operation]
    while left:
        each = left.pop()
        new = [*(tensor.op for tensor in each.inputs), *each.control_inputs]
        left += [parent for parent in new if parent.name not in found]
        found |= {parent.name for parent in new}
    return found


@pytest.mark.skipif(not FULL, reason="builds ResNet-50 four times; LAYERMARK_TEST_FULL=1 runs it")
def test_computing_again_takes_a_third_less_memory_on_tensorflow():
    """By what 32 pictures more add to the most memory of a worker: activations, and nothing else."""
    if not backend("tensorflow").installed:
        pytest.skip("tensorflow is not installed")
    grown = {each: most_memory(each, 48) - most_memory(each, 16) for each in ("function", "recompute")}
    assert grown["recompute"] < 2 / 3 * grown["function"]


def most_memory(execution, pictures, side=96):
    """Bytes that a worker of TensorFlow has held at most after a few updates of ResNet-50."""
    facts = {"mode": "train", "batch_size": pictures, "threads": 2, "ring": 1, "params": {"image_size": (side, side)}}
    spec = complete(Spec(workload="resnet50", backend="tensorflow", execution=execution, **facts))
    with Crew() as crew:
        worker = crew.hire(worker_environment(spec))
        worker.call("prepare", 300, spec=spec.to_json())
        worker.call("warm_up", 300, sample_ns=1)
        worker.call("measure", 300, seconds=0.1, min_steps=3)
        status = Path(f"/proc/{worker.pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


@pytest.mark.skipif(not FULL, reason="compiles ResNet-50 twice; LAYERMARK_TEST_FULL=1 runs it")
def test_computing_again_takes_a_third_less_memory_on_jax():
    """XLA's own plan of a compiled step."""
    sizes = {}
    for execution in ("jit", "recompute"):
        program = program_of("jax", execution)
        compiled = program._step.lower(*program._arguments()).compile()
        sizes[execution] = compiled.memory_analysis().temp_size_in_bytes
    assert sizes["recompute"] < 2 / 3 * sizes["jit"]
