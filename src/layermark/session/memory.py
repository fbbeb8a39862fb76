"""How much memory a measurement needs, and which of them fit in together."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

from layermark import pipelines
from layermark.backends.base import backend
from layermark.devices import cpu
from layermark.graph import Graph
from layermark.outcome import Skipped
from layermark.session.ranks import rank_specs
from layermark.session.readings import largest_working_set
from layermark.session.team import Team
from layermark.session.team_reference import RANDOM
from layermark.spec import Spec
from layermark.worker.oracle import perturbed_runs, rows_kept, updates_proven
from layermark.workloads.base import block_bytes, kept_bytes, task
from layermark.workloads.programs.base import ProgramTask

_WORKER_BYTES = 600 << 20
_RANK_BYTES = 250 << 20
"""Of a rank with PyTorch and a process that loads for it. Sixteen of ResNet-50 at batch 16 took 14.4 GB in all."""
_RANK_COPIES = 3
"""Of weights that are trained by ranks, besides the optimiser's state: held, gradients, and what is sent or drawn."""
_GRADIENT_COPIES = 0.5
"""Of a stage's activations: gradients are computed beside them. Those that are computed again count once with their
gradients: what norms give, a third of a ResNet's, is not kept."""
_WIRE_BUFFERS = 2
"""Of what a stage receives: torch keeps one of it and one of its gradient for every micro-batch of an update."""
_PROBES = 2
_PROBE_ARRAYS = 4
"""Arrays as large as the working set that a probe keeps, all its kernels together."""

# Peaks while a dense layer of 205 MB of weights was built, proven and warmed up, in multiples of those weights:
# PyTorch 4.0, ONNX Runtime 7.2, JAX 8.3, OpenVINO 9.1. A model is written, read and packed, with a copy for each.
_WEIGHT_COPIES: Mapping[str, float] = {"onnxruntime": 7.5, "jax": 8.5, "openvino": 9.5}

# The same for the reference: 3.0 in inference (drawn in float32, computed with in float64). In training 20 with one
# descent with roundings beside the exact one; every other keeps how far two parts of the proof moved, in float64.
_FORWARD_COPIES = 3
_DESCENT_COPIES, _ROUNDED_COPIES = 16, 4


def admit(teams: Sequence[Team], *, proven: bool = True, micro_batches: int = 0) -> list[Team]:
    """Return the teams that fit into free memory together, the first of them in any case.

    Those that do not even fit alone are given their outcome. The others have to wait until there is room. Without
    `proven` nobody insists on the reference, and none is counted where it does not fit: `no_memory_for_proof` tells.
    `micro_batches` is how many an update has at least, where there may be fewer than the spec says. Of ranks on several
    hosts those on this one are counted.
    """
    free, held, second = cpu.free_memory(), 0, 0
    admitted: list[Team] = []
    for each in teams:
        need, probes = _here(each, needed_bytes(each.spec, micro_batches)), _probe_bytes(each)
        if need + probes > free:
            reason = f"not measured: needs about {need + probes >> 20} MiB of memory, {free >> 20} MiB are free"
            each.outcome = Skipped(spec=each.spec, reason=reason, code="memory")
            continue
        provable = proven and not no_memory_for_proof(each)
        reference = reference_bytes(each.spec) if provable and not each.reference.known else 0
        largest = max(second, _second_bytes(each) if provable else 0)  # one team is proven after the other
        if not admitted or _together(held + need + largest, len(admitted) + 1, reference, probes) <= free:
            admitted.append(each)
            held, second = held + need, largest
    return admitted


def together_bytes(spec: Spec, held: int, workers: int) -> int:
    """Return what so many workers that hold so much need where nothing runs yet, with reference and probes."""
    return _together(held + second_bytes(spec), workers, reference_bytes(spec), probe_bytes(spec))


def _together(held: int, workers: int, reference: int, probes: int) -> int:
    """The reference is computed before anything is built: whichever is more."""
    return max(held, reference + workers * _WORKER_BYTES) + probes


def no_memory_for_proof(team: Team) -> str:
    """Return why there is no memory to prove a team that has not been started; nothing if there is.

    A reference that is known needs none.
    """
    free, probes = cpu.free_memory(), _probe_bytes(team)
    if not team.reference.known and (need := reference_bytes(team.spec) + _WORKER_BYTES + probes) > free:
        return f"the reference needs about {need >> 20} MiB of memory, {free >> 20} MiB are free"
    second = _second_bytes(team)
    if second and (need := _here(team, needed_bytes(team.spec)) + second + probes) > free:
        with_second = f"the program and a second one on random values need about {need >> 20} MiB of memory"
        return f"{with_second}, {free >> 20} MiB are free"
    return ""


def _here(team: Team, size: int) -> int:
    """The part of what all ranks hold that is held on this host."""
    return int(size * team.host_share)


def _second_bytes(team: Team) -> int:
    """The same of a second program; that of lone ranks is one rank's, and on this host."""
    size = second_bytes(team.spec)
    return _here(team, size) if team.spec.connected else size


def _probe_bytes(team: Team) -> int:
    """What the probes will need besides what those that are running hold."""
    return max(0, probe_bytes(team.spec) - team.ceiling.held_bytes)


def needed_bytes(spec: Spec, micro_batches: int = 0) -> int:
    """Return a rough upper estimate of the memory of all ranks.

    `micro_batches` is how many of them a pipeline has on their way in an update, where not as many as the spec says.
    """
    copies = max(backend(spec.backend).weight_copies(spec), _WEIGHT_COPIES.get(spec.backend, 0))
    if spec.connected:
        return _connected_bytes(spec, micro_batches or spec.update.accumulation)
    return spec.plan.replicas * (_WORKER_BYTES + task(spec).memory_bytes(spec.mode, spec.ring, copies))


def second_bytes(spec: Spec) -> int:
    """Return what the second program holds, with which a spec whose values are not random is proven on random ones.

    Of lone ranks one has it, while the programs that are measured live.
    """
    return 0 if spec.values == RANDOM else needed_bytes(rank_specs(spec)[0])


def most_micro_batches(spec: Spec, least: int, most: int, host_share: float = 1.0) -> int:
    """Return how many micro-batches an update of ranks that are built for `least` may have for free memory to do.

    Never fewer than `least`, which has room already, nor more than `most`. `host_share` of the ranks run on this host.
    """
    if not spec.connected or most <= least:
        return most
    room = int(cpu.free_memory() / host_share) + needed_bytes(spec, least)
    return bisect.bisect_right(range(most + 1), room, lo=least + 1, key=lambda count: needed_bytes(spec, count)) - 1


def _connected_bytes(spec: Spec, micro_batches: int) -> int:
    """The same for ranks that work together: each has a stage of a network, or all of it."""
    found = task(spec)
    stages = found.graph.cut(() if spec.pipeline_splits == pipelines.AUTO else spec.splits)
    weights = (_RANK_COPIES + len(spec.update.rule.slots)) * found.weight_bytes
    kept = pipelines.in_flight(spec.pipeline_schedule, spec.plan.stages, micro_batches)
    # One stage for now, while its cuts are still to be found, keeps as much as the first of them.
    held = sum(_stage_bytes(spec, each, count) for each, count in zip(stages, kept, strict=False))
    if spec.plan.stages > 1:
        held += _wire_bytes(spec, stages, kept, micro_batches)
    return spec.ranks * _RANK_BYTES + spec.plan.replicas * (weights + held)


def _stage_bytes(spec: Spec, stage: Graph, in_flight: int) -> int:
    """Activations of a stage at their most; those that are computed again are those of one micro-batch."""
    kept = kept_bytes(stage)
    if spec.execution == "recompute":
        too_much = kept > cpu.total_memory() // spec.ranks // pipelines.STAGE_SHARE
        return block_bytes(stage) if too_much else kept
    alone = spec.mode != "train" or spec.plan.stages == 1
    return int(((1 if alone else in_flight) + _GRADIENT_COPIES) * kept)


def _wire_bytes(spec: Spec, stages: Sequence[Graph], in_flight: Sequence[int], micro_batches: int) -> int:
    """What stages receive, with buffers for all micro-batches of a pass, and what they have sent and still keep."""
    received = [sum(4 * math.prod(each.shapes[name]) for name in each.live_inputs) for each in stages]
    if spec.mode != "train":
        return pipelines.MOST_AT_ONCE * sum(received)
    at_once = 1 if pipelines.SCHEDULES[spec.pipeline_schedule].one_at_a_time else micro_batches
    sent = zip(received[1:], in_flight, strict=False)
    return _WIRE_BUFFERS * at_once * sum(received) + sum(size * count for size, count in sent)


def no_memory_for_reference(spec: Spec) -> str:
    """Return why there is no memory for the reference; nothing if there is."""
    need, free = reference_bytes(spec), cpu.free_memory()
    return f"the reference needs about {need >> 20} MiB of memory, {free >> 20} MiB are free" if need > free else ""


def reference_bytes(spec: Spec) -> int:
    """Return a rough upper estimate of what computing the reference takes; nothing for what proves itself."""
    found = task(spec)
    if isinstance(found, ProgramTask):
        return 0
    rows = rows_kept(spec, found.graph)
    share = 1.0 if rows is None else len(rows) / spec.batch_size
    wide = 2 * int(share * found.activation_bytes(spec.mode))
    copies = _FORWARD_COPIES
    if spec.mode == "train":
        copies = _DESCENT_COPIES + _ROUNDED_COPIES * perturbed_runs(found.graph, updates_proven(found.graph))
    return _WORKER_BYTES + copies * found.weight_bytes + wide


def probe_bytes(spec: Spec) -> int:
    """Return a rough upper estimate of what the probes of the ceilings hold; their own arrays are small."""
    moved = min(task(spec).compulsory_bytes(spec.mode), largest_working_set())
    return _PROBES * (_WORKER_BYTES + _PROBE_ARRAYS * moved)
