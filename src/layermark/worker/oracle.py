"""The oracle: what a task gives in float64, computed once in a process of its own and kept in a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from layermark import cache, reference, registry
from layermark.backends.base import Arrays, backend
from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.laws import stream
from layermark.spec import Spec
from layermark.worker.feeding import fed_task
from layermark.workloads.base import Task, task

ELEMENTS_KEPT = 1 << 20
"""Of a larger output this many elements are compared, at places drawn from the seed."""
_ALL_ROWS_FLOPS = 4e9
_NOTHING = 1e-9


def rows_kept(spec: Spec, graph: Graph) -> list[int] | None:
    """Which items of a large inference batch are compared (first and last), or None for all of them."""
    if spec.mode != "infer" or spec.batch_size <= 2 or graph.flops("infer") <= _ALL_ROWS_FLOPS:
        return None
    return [0, spec.batch_size - 1]


def checked_inputs(spec: Spec) -> tuple[int, ...]:
    """The inputs of the ring whose outputs are compared: a program that repeats its first answer is found out."""
    return (0,) if spec.mode == "train" else (0, spec.ring - 1)


def places(seed: int, name: str, count: int) -> np.ndarray[Any, Any] | slice:
    """Which elements of a flattened output are compared."""
    if count <= ELEMENTS_KEPT:
        return slice(None)
    return np.sort(stream(seed, "places", name).integers(0, count, ELEMENTS_KEPT))


def compute(spec: Spec, path: Path) -> None:
    """Write the oracle's answer for a spec; the file appears whole or not at all."""
    whole = fed_task(spec)
    answer = _training(spec, whole) if spec.mode == "train" else _forward(spec, whole)
    with cache.whole(path) as part, part.open("wb") as file:
        np.savez(file, **answer)  # type: ignore[arg-type]


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


def _training(spec: Spec, whole: Task) -> dict[str, np.ndarray[Any, Any]]:
    weights, fed = _wide(whole.weights()), _wide(whole.batch(0))
    loss, gradients = reference.gradients(whole.graph, weights, fed, _differentiating_arrays())
    answer = {"0:loss": np.array(loss), "rate": np.array(proving_rate(weights, gradients))}
    return answer | {f"gradient:{name}": each for name, each in gradients.items()}


def proving_rate(weights: Arrays, gradients: Arrays) -> float:
    """A rate, a power of two, at which one step moves every tensor by about as much as it holds.

    A gradient read back as (before - after) / rate is then as exact as the type of the weights allows.
    """
    sizes = {name: _rms(each) for name, each in gradients.items()}
    # A gradient that is nothing but rounding (there are such, in front of norms) would ask for any rate at all.
    least = _NOTHING * max(sizes.values(), default=0.0)
    ratios = [_rms(weights[name]) / each for name, each in sizes.items() if each > least]
    return 2.0 ** math.ceil(math.log2(max([r for r in ratios if r > 0], default=1.0)))


def _rms(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype="float64"))))


def _differentiating_arrays() -> Any:
    for name in registry.modules("backends"):
        found = backend(name)
        if found.installed and (arrays := found.reference_arrays()) is not None:
            return arrays
    raise Unsupported("training is checked against float64 gradients from PyTorch: pip install 'layermark[torch]'")


def _wide(arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    return {name: each.astype("float64") if each.dtype.kind == "f" else each for name, each in arrays.items()}
