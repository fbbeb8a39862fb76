"""Where the time goes in a torch program: torch's own profiler."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import fx
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from layermark import ops
from layermark.backends._trace import Span, write_trace
from layermark.backends.base import OperatorTime, Profile
from layermark.backends.torch.lowering import NODE
from layermark.backends.torch.profile_compiled import Kernels
from layermark.backends.torch.profile_memory import held_over_time
from layermark.graph import Graph

Weights = Mapping[tuple[int, ...], Sequence[str]]

MARK = "layermark node "
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
"""Code of Inductor's: what it does besides calling operators is in its own kernels."""

_BACKWARD = "CompiledFunctionBackward"


class Marked(fx.Interpreter):
    """Runs a module call by call, each under the name of its graph node."""

    def __init__(self, module: fx.GraphModule, nodes: Mapping[str, str]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._nodes = nodes

    def run_node(self, n: fx.Node) -> Any:
        """Run one call under its name."""
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        with record_function(MARK + self._nodes.get(n.name, n.name)):
            return super().run_node(n)


@contextlib.contextmanager
def marked(module: fx.GraphModule) -> Iterator[None]:
    """Let calls of a module be seen under the names of the graph's nodes in a profile, for a while."""
    module.forward = Marked(module, nodes_of_calls(module)).run
    try:
        yield
    finally:
        del module.forward


def nodes_of_calls(module: fx.GraphModule) -> dict[str, str]:
    """Return the names of the graph's nodes by those of the module's calls."""
    return {node.name: node.meta[NODE] for node in module.graph.nodes if NODE in node.meta}


def profile_calls(run: Callable[[int], object], module: fx.GraphModule, folder: Path, batches: int) -> Profile:
    """Profile some batches, and the memory of one; calls of the module have their names."""
    with marked(module):
        run(1)  # what is new to this way of calling is set up before
        found = profiled(lambda: run(batches), folder)
        return found._replace(memory=memory(lambda: run(1), folder))


def profile_compiled(
    run: Callable[[int], object], graph: Graph, kernels: Kernels, folder: Path, batches: int
) -> Profile:
    """Profile some batches of compiled code, and the memory of one.

    Kernels tell their nodes; products, which Inductor calls, are recognised by the shapes of their weights, in the
    graph's order.
    """
    run(1)  # compiles
    found = profiled(lambda: run(batches), folder, _weights(graph), kernels)
    return found._replace(memory=memory(lambda: run(1), folder))


def profiled(
    work: Callable[[], object], folder: Path, weights: Weights | None = None, kernels: Kernels | None = None
) -> Profile:
    """Do the work under the profiler; what an operator calls is part of it."""
    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
    with profile(activities=list(wanted), record_shapes=True) as found:
        began = time.perf_counter()
        work()
        pass_s = time.perf_counter() - began
    rows, spans = _read(list(found.events() or []), weights or {}, kernels or Kernels({}))
    write_trace(spans, folder)
    return Profile(rows, pass_s)


def memory(work: Callable[[], object], folder: Path) -> dict[str, Any]:
    """Do the work once more, with every allocation written down: what is held at the worst moment."""
    path = folder / "memory.json"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    found.export_chrome_trace(str(path))
    return held_over_time(path, MARK)


def _read(events: Sequence[FunctionEvent], weights: Weights, kernels: Kernels) -> tuple[list[OperatorTime], list[Span]]:
    seen = any(kernels.read(each.name) for each in events)
    forward = {each.sequence_nr: mark for each in events if each.sequence_nr >= 0 and (mark := _mark(each))}
    products = _Products(weights)
    found: dict[tuple[str, tuple[str, ...]], tuple[int, float]] = {}
    spans = []
    for each in events:
        operator, microseconds, names = _charged(each, kernels, seen)
        if not names:
            node = _mark(each) or forward.get(each.sequence_nr, "")
            names = (node,) if node else products.nodes(each) if operator else ()
        if operator:
            calls, seconds = found.get((operator, names), (0, 0.0))
            found[operator, names] = (calls + 1, seconds + microseconds / 1e6)
        began, end = each.time_range.start, each.time_range.end
        name = each.name.removeprefix(MARK)
        spans.append(Span(f"thread {each.thread}", name, began * 1e3, (end - began) * 1e3, operator, names))
    return [OperatorTime(operator, *times, names) for (operator, names), times in found.items()], spans


def _weights(graph: Graph) -> Weights:
    """Convolutions, dense and recurrent layers, by the shapes of what their inputs are multiplied with."""
    found: dict[tuple[int, ...], list[str]] = {}
    for node in graph:
        if isinstance(node.op, ops.Conv2d | ops.Dense | ops.Recurrent):
            found.setdefault(tuple(graph.parameters[f"{node.name}/weight"].shape), []).append(node.name)
    return found


class _Products:
    """Which convolution or dense layer an operator of compiled code works for, by the shapes that it reads."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._forwards = {shape: itertools.cycle(nodes) for shape, nodes in weights.items()}
        self._backwards = {shape: itertools.cycle(nodes[::-1]) for shape, nodes in weights.items()}

    def nodes(self, event: FunctionEvent) -> tuple[str, ...]:
        """Return the next node whose weights have the shape of something that is read; backwards, the last one first.

        A plain product may be of either direction, and may make the gradient of weights: then it is that of a set, of
        all nodes with such weights.
        """
        told: Sequence[Any] = event.input_shapes or ()  # annotated as one shape, but holds one of every input
        shapes = [_unpacked(tuple(each)) for each in told if isinstance(each, list)]
        turn = self._backwards if "backward" in event.name else self._forwards
        for shape in shapes:
            if shape in turn and event.name != "aten::mm":
                return (next(turn[shape]),)
        turned = (each[::-1] for each in [*shapes, *_product_of(shapes)] if len(each) == 2)
        return next((tuple(self._weights[each]) for each in (*shapes, *turned) if each in self._weights), ())


def _unpacked(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of weights that oneDNN's recurrent layers hold as layers, directions, inputs, gates and outputs.

    >>> _unpacked((1, 1, 16, 4, 12)), _unpacked((2, 3))
    ((48, 16), (2, 3))
    """
    if len(shape) != 5 or shape[:2] != (1, 1):
        return shape
    _, _, inputs, gates, outputs = shape
    return gates * outputs, inputs


def _product_of(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shapes, this way and turned, of the product of the first two matrices."""
    matrices = [each for each in shapes if len(each) == 2]
    if len(matrices) < 2:
        return []
    (rows, _), (_, columns) = matrices[:2]
    return [(rows, columns), (columns, rows)]


def _charged(event: FunctionEvent, kernels: Kernels, seen: bool) -> tuple[str, float, tuple[str, ...]]:
    """The operator that an event stands for, its time, and its nodes where it is a kernel that tells them.

    An outermost operator counts with all that it calls, and is called by what takes most of the time inside. Where
    Inductor's own kernels are not seen, they are what is left of a compiled region; where they are, that is calling.
    """
    kernel = kernels.read(event.name)
    if kernel is not None:
        operator, names = kernel
        return operator, event.cpu_time_total, names
    if event.name.startswith(_COMPILED):
        return ("", 0.0, ()) if seen else ("compiled kernels", event.self_cpu_time_total, ())
    if not _counts(event) or any(_counts(above) for above in _above(event)):
        return "", 0.0, ()
    return _heaviest(event).name, event.cpu_time_total, ()


def _counts(event: FunctionEvent) -> bool:
    """Whether an event is an operator; what autograd calls a compiled backward pass holds many."""
    return "::" in event.name and not event.name.endswith(_BACKWARD)


def _heaviest(event: FunctionEvent) -> FunctionEvent:
    inside = [event]
    for each in inside:
        inside += each.cpu_children
    return max(inside, key=lambda each: each.self_cpu_time_total)


def _above(event: FunctionEvent) -> Iterator[FunctionEvent]:
    above = event.cpu_parent
    while above is not None:
        yield above
        above = above.cpu_parent


def _mark(event: FunctionEvent) -> str:
    """The node that an event belongs to."""
    for each in (event, *_above(event)):
        if each.name.startswith(MARK):
            return each.name.removeprefix(MARK)
    return ""
