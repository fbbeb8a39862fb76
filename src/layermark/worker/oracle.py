"""The oracle: what a task gives in float64, computed once in a process of its own and kept in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from layermark import cache, reference, registry
from layermark.backends.base import Arrays, backend
from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.laws import random_generator
from layermark.spec import Spec
from layermark.training.update import Update
from layermark.worker import reference_updates
from layermark.worker.picture_task import fed_task
from layermark.workloads.base import Task, task

ELEMENTS_KEPT = 1 << 20
"""Of a larger output this many elements are compared, at places drawn from the seed."""
_ALL_ROWS_FLOPS = 4e9
_QUICK_FLOPS = 2e10
_MOST_PASSES = 4
_MOST_ACCUMULATED = 2
"""Micro-batches of an update in a proof: how many more make one is a number that the same program counts to."""
ALONE, SEVERAL = "alone", "several"
"""The two parts of a proof of training: one update in a call, and several."""


def rows_kept(spec: Spec, graph: Graph) -> list[int] | None:
    """Which items of a large inference batch are compared (first and last), or None for all of them."""
    if spec.mode != "infer" or spec.batch_size <= 2 or graph.flops("infer") <= _ALL_ROWS_FLOPS:
        return None
    return [0, spec.batch_size - 1]


def checked_inputs(spec: Spec) -> tuple[int, ...]:
    """The inputs of the ring whose outputs are compared: a program that repeats its first answer is found out."""
    return (0, spec.ring - 1)


def places(seed: int, name: str, count: int) -> np.ndarray[Any, Any] | slice:
    """Which elements of a flattened output are compared."""
    if count <= ELEMENTS_KEPT:
        return slice(None)
    return np.sort(random_generator(seed, "places", name).integers(0, count, ELEMENTS_KEPT))


def compute(spec: Spec, path: Path, updates: int = 0) -> None:
    """Write the oracle's answer for a spec; the file appears whole or not at all.

    `updates` is how many of them a proof of training makes in one call, if not the usual number.
    """
    whole = fed_task(spec)
    if spec.mode == "train":
        answer = expected_updates(spec, whole, updates or updates_proven(whole.graph))
    else:
        answer = _forward(spec, whole)
    with cache.whole(path) as part, part.open("wb") as file:
        np.savez(file, **answer)  # type: ignore[arg-type]


def reference_seconds(spec: Spec) -> float:
    """Return about how long the answer of a spec in training takes, from its gradients for one item or two."""
    items = min(2, spec.batch_size)
    part, whole, arrays = task(spec, batch_size=items), task(spec), _differentiating_arrays()
    weights, fed = _wide(part.weights()), _wide(part.drawn(0))
    began = time.perf_counter()
    reference.gradients(part.graph, weights, fed, arrays)
    taken = time.perf_counter() - began
    batches = updates_proven(whole.graph) * proven_update(spec).micro_batches
    return taken * spec.batch_size / items * batches * (1 + perturbed_runs(whole.graph, batches))


def _forward(spec: Spec, whole: Task) -> dict[str, np.ndarray[Any, Any]]:
    rows = rows_kept(spec, whole.graph)
    graph = whole.graph if rows is None else task(spec, batch_size=len(rows)).graph
    weights = _wide(whole.weights())
    answer = {}
    for index in checked_inputs(spec):
        fed = _wide(whole.batch(index))
        if rows is not None:
            fed = {name: np.take(each, rows, graph.inputs[name].batch) for name, each in fed.items()}
        for name, value in reference.evaluate(graph, weights, fed).items():
            flat = np.asarray(value).reshape(-1)
            answer[f"{index}:{name}"] = flat[places(spec.seed, name, flat.size)]
    return answer


def expected_updates(spec: Spec, whole: Task, updates: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return how far everything moves by one update, and by several, and how far roundings change that."""
    update = proven_update(spec)
    batches = updates * update.micro_batches
    numbers = [index if whole.stream else index % spec.ring for index in range(batches)]
    found = reference_updates.Reference(
        graph=whole.graph,
        weights=_wide(whole.weights()),
        batches=[_wide(whole.batch(number)) for number in numbers],
        torch=_differentiating_arrays(),
        update=update,
    )
    exact = found.descend(spec.precision)
    others = [
        found.descend(spec.precision, exact.rates, reference_updates.Blur.of(spec.precision, seed))
        for seed in range(perturbed_runs(whole.graph, batches))
    ]
    return {
        "updates": np.array(updates),
        "micro_batches": np.array(update.micro_batches),
        "losses": np.array(exact.losses),
        "loss_changes": np.max([np.abs(np.subtract(each.losses, exact.losses)) for each in others], axis=0),
        **_moves(spec, ALONE, exact.rates.alone, exact.alone, [each.alone for each in others]),
        **_moves(spec, SEVERAL, exact.rates.several, exact.several, [each.several for each in others]),
    }


def proven_update(spec: Spec) -> Update:
    """Return the update that a proof makes: that of the spec, with as few micro-batches as may be.

    A pipeline needs one for each stage, and each of several ranks that share their updates has as many.
    """
    least, sharers = max(_MOST_ACCUMULATED, len(spec.splits) + 1), spec.sharers
    each = min(least, spec.update.micro_batches // sharers)
    return spec.update.replace(replicas=1, accumulation=sharers * each)


def _moves(spec: Spec, part: str, rate: float, exact: Arrays, others: list[Arrays]) -> dict[str, np.ndarray[Any, Any]]:
    # float32 says how far things move to 6e-8 of the move, a thousandth of the least that is allowed of it and wider.
    kind = "float64" if spec.precision.startswith("64") else "float32"
    moves = {f"{part}:move:{name}": each.astype(kind) for name, each in exact.items()}
    changes = {f"{part}:change:{name}": np.array(by) for name, by in reference_updates.changes(exact, others).items()}
    return {f"{part}:rate": np.array(rate), **moves, **changes}


def perturbed_runs(graph: Graph, batches: int) -> int:
    """How often the reference descends with roundings: as often as is quickly done, since a sign seldom changes."""
    return int(min(_MOST_PASSES, max(1, _QUICK_FLOPS // (batches * graph.flops("train") or 1))))


def updates_proven(graph: Graph) -> int:
    """How many updates one call of the proof makes."""
    return 2 if reference_updates.kinks(graph) or graph.flops("train") > _QUICK_FLOPS else 3


def _differentiating_arrays() -> Any:
    for name in registry.modules("backends"):
        found = backend(name)
        if found.installed and (arrays := found.reference_arrays()) is not None:
            return arrays
    raise Unsupported("training is checked against float64 gradients from PyTorch: pip install 'layermark[torch]'")


def _wide(arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    return {name: each.astype("float64") if each.dtype.kind == "f" else each for name, each in arrays.items()}
