"""From a plan to ranks, and from the answers of ranks to blocks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from layermark import pipelines
from layermark.backends.base import backend
from layermark.devices.cpu import CPUS, MEMORY_SHARE, total_memory
from layermark.errors import Unsupported, UserError
from layermark.outcome import Block, Diagnostic
from layermark.spec import Loading, Plan, Spec

_ADDED = ("cpu_s", "busy_threads", "voluntary_switches", "involuntary_switches", "minor_faults", "major_faults")
"""What ranks have each for themselves; of anything else the first one's stands for all."""


_LATE_SHARE = 0.05
"""Of a step: a rank that begins later than this after the first is told of."""
_AMPLE_BYTES = 4 << 30
"""Ranks that work together with less memory each than this give back what they do not need."""


def check_plan(spec: Spec, instances: int = 1) -> None:
    """Raise `UserError` for a plan that is not carried out by so many instances."""
    plan = dataclasses.asdict(spec.plan)
    for name, expected in (("instances", instances), ("micro_batches", 1)):
        if plan[name] != expected:
            raise UserError(
                f"plan {name}={plan[name]}: not carried out here; expected {name}={expected} (replicas may be more)"
            )
    if spec.pipeline_splits != pipelines.AUTO and spec.plan.stages != len(spec.splits) + 1:
        raise UserError(
            f"plan stages={spec.plan.stages}: {len(spec.splits)} splits make {len(spec.splits) + 1}; "
            f"name {spec.plan.stages - 1} nodes in --pipeline-splits"
        )


def check_alternation(spec: Spec) -> None:
    """Raise for a spec that cannot take turns with others: for a wrong plan, and for ranks that work together."""
    check_plan(spec)
    if spec.connected:
        reason = "ranks that work together do not take turns with others"
        advice = "measure them with layermark run, and compare the sessions"
        raise Unsupported(f"{reason}; {advice}", code="not_compared")


def rank_specs(spec: Spec) -> list[Spec]:
    """Return what each rank of every instance runs, all with an equal share of the threads.

    Replicas that are not connected are independent copies.
    """
    if spec.ranks == 1:
        return [spec]
    threads = max(1, spec.threads // spec.ranks)
    if not spec.connected:
        return [spec.replace(threads=threads, plan=Plan())] * spec.ranks
    short = total_memory() // spec.ranks < _AMPLE_BYTES and spec.allocator == Spec.allocator
    allocator = "return" if short else spec.allocator
    return [spec.replace(threads=threads, loading=_shared_loading(spec), allocator=allocator)] * spec.ranks


def _shared_loading(spec: Spec) -> Loading:
    """Processes that load pictures are shared by the ranks that read some: the first and the last stage of replicas."""
    readers = spec.plan.replicas * min(2, spec.plan.stages)
    requested = spec.loading.loader_workers
    if spec.data != "real" or requested == 0:
        return spec.loading
    workers = min(spec.threads, requested) if requested > 0 else spec.threads
    return dataclasses.replace(spec.loading, loader_workers=max(1, workers // readers))


def shared_threads(spec: Spec) -> list[Diagnostic]:
    """Return a warning where there are more ranks than threads."""
    if spec.ranks <= spec.threads:
        return []
    what = "ranks" if spec.plan.stages > 1 else "copies"
    stages = f" ({spec.plan.stages} stages)" if spec.plan.stages > 1 else ""
    text = f"{spec.ranks} {what}{stages} of one thread each share a budget of {spec.threads}"
    return [Diagnostic("shared_threads", text)]


def refusal(spec: Spec) -> Unsupported | None:
    """Return why a runtime does not carry out a plan, if it does not."""
    found = backend(spec.backend)
    if spec.plan.stages > 1 and not found.pipelines:
        return Unsupported("pipelines run on PyTorch", code="no_pipelines", instead={"backend": "torch"})
    if spec.connected and not found.connects:
        reason = f"{found.name} does not train on several ranks; torch, jax and tensorflow do"
        return Unsupported(reason, code="no_replicas", instead={"backend": "torch"})
    return None


def communication_faults(facts: Mapping[str, Any]) -> list[Diagnostic]:
    """Return what is wrong with replicas by what they tell of each other.

    >>> [each.text for each in communication_faults({"identical": False, "all_reduce": []})]
    ['the replicas have come to different weights or statistics']
    """
    found = []
    if not facts.get("identical", True):
        found.append(Diagnostic("wrong_result", "the replicas have come to different weights or statistics"))
    if wrong := [each["bytes"] for each in facts.get("all_reduce", ()) if not each["right"]]:
        found.append(Diagnostic("wrong_result", f"all-reduce of {wrong[0]} bytes gave a wrong sum"))
    return found


def own_cpus(rank: int, ranks: int, threads: int) -> dict[str, str]:
    """Return the variable that binds a rank to CPUs of its own; nothing for one rank alone or too few CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    if ranks == 1 or ranks * threads > len(cpus):
        return {}
    return {CPUS: ",".join(map(str, cpus[rank * threads : (rank + 1) * threads]))}


def memory_share(ranks: int) -> dict[str, str]:
    """Return the variable that tells several ranks how much memory is meant for each; nothing for one alone."""
    return {MEMORY_SHARE: str(total_memory() // ranks)} if ranks > 1 else {}


def merge_ranks(answers: Sequence[Mapping[str, Any]], one_clock: bool = True) -> Block:
    """Return one step of all ranks: from the first that began to the last that was done.

    Where ranks have clocks of their own, it is as long as the slowest takes.
    """
    blocks = [Block.from_json(each["block"]) for each in answers]
    if len(blocks) == 1:
        return blocks[0]
    times = [block.samples_ns[0] for block in blocks]
    began = min(each["began_ns"] for each in answers)
    ended = max(each["began_ns"] + taken for each, taken in zip(answers, times, strict=True))
    lasted = ended - began if one_clock else max(times)
    added = {name: sum(block.context.get(name, 0.0) for block in blocks) for name in _ADDED}
    return dataclasses.replace(
        blocks[0],
        samples_ns=(lasted,),
        latencies_ns=tuple(each for block in blocks for each in block.latencies_ns),
        context={**blocks[0].context, **added},
        ranks_ns=(tuple(times),),
    )


def begins_late(answers: Sequence[Mapping[str, Any]], step: Block) -> bool:
    """Return whether the last rank began so long after the first that it changes what was measured."""
    began = [each["began_ns"] for each in answers if "began_ns" in each]
    return len(began) > 1 and max(began) - min(began) > _LATE_SHARE * step.samples_ns[0]


def equally_many(answers: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the latencies of all ranks, one rank after the other, of each as many as the one with the fewest has."""
    least = min(len(each["latencies_ns"]) for each in answers)
    return tuple(latency for each in answers for latency in each["latencies_ns"][:least])


def concat_steps(steps: Sequence[Block]) -> Block:
    """Return steps of the same size as the samples of one block."""
    names = [name for name in (*_ADDED, "wall_s", "steal_s") if name in steps[0].context]
    context = dict(steps[0].context) | {name: sum(each.context[name] for each in steps) for name in names}
    if "busy_threads" in context:
        context["busy_threads"] /= len(steps)
    return dataclasses.replace(
        steps[0],
        samples_ns=tuple(each.samples_ns[0] for each in steps),
        latencies_ns=tuple(one for each in steps for one in each.latencies_ns),
        context=context,
        ranks_ns=tuple(each.ranks_ns[0] for each in steps),
    )


VISIBLE = "CUDA_VISIBLE_DEVICES"


def own_device(variables: Mapping[str, str], rank: int) -> dict[str, str]:
    """Return the variable that shows a rank only its own of several GPUs; nothing where one or none is named."""
    names = variables.get(VISIBLE, "").split(",")
    return {VISIBLE: names[rank % len(names)]} if len(names) > 1 else {}
