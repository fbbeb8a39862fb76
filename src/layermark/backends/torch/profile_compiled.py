"""Inductor's kernels under the names of the graph's nodes: the network is compiled once more for its profile.

Inductor has options that let the profiler see its kernels (`cpp.enable_kernel_profile`), name kernels after the calls
that they came from (`cpp.descriptive_names`) and show these calls to a pass (`post_grad_custom_post_pass`). Where a
release has no such option, or nothing recognisable comes out, what is compiled stays one row without nodes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

_KERNEL = re.compile(r"^(graph_\d+_)?cpp_fused_")
_TOKEN = re.compile(r"layermark(\d+)end")
_ASSIGNED = re.compile(r"^\s*(\w+) = ", re.MULTILINE)
_OPERATORS_SHOWN = 3


class Kernels:
    """Which calls of a compiled module, and thereby which nodes of the graph, a kernel of Inductor's works for."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        """`nodes` are the names of the graph's nodes by those of the module's calls."""
        self._nodes = nodes
        self._calls: list[tuple[str, str]] = []

    def mark(self, graph: fx.Graph) -> None:
        """Rename the calls of a graph that is about to become kernels, so that names of kernels tell which they are.

        Names of forward and backward graphs are the same otherwise, and run into each other in a kernel's name.
        """
        for call in graph.nodes:
            if call.op == "call_function" and hasattr(call, "_rename"):
                call._rename(f"layermark{len(self._calls)}end")
                self._calls.append((_operator(call), self._node(call)))

    def read(self, event: str) -> tuple[str, tuple[str, ...]] | None:
        """Return what a kernel does and the nodes that it works for; None for an event that is none of these kernels.

        >>> Kernels({}).read("aten::add"), Kernels({}).read("graph_1_cpp_fused_add_0")
        (None, ('cpp_fused_add_0', ()))
        """
        found = _KERNEL.match(event)
        if found is None:
            return None
        calls = [self._calls[int(number)] for number in _TOKEN.findall(event)]
        if not calls:
            return event.removeprefix(found[1] or ""), ()
        operators = list(dict.fromkeys(operator for operator, _ in calls))
        more = ["more"] if len(operators) > _OPERATORS_SHOWN else []
        nodes = tuple(dict.fromkeys(node for _, node in calls if node))
        return "_".join(["cpp_fused", *operators[:_OPERATORS_SHOWN], *more]), nodes

    def _node(self, call: fx.Node) -> str:
        """The graph's node behind a call: its trace has the line of the module's code, which begins with a name."""
        lines = _ASSIGNED.findall(str(call.meta.get("stack_trace") or ""))
        return next((self._nodes[name] for name in lines if name in self._nodes), "")


def _operator(call: fx.Node) -> str:
    name = str(call.target).removeprefix("aten.").removeprefix("prims.")
    return re.sub(r"\W+", "_", name.partition(".")[0])


@contextlib.contextmanager
def kernels_of(nodes: Mapping[str, str]) -> Iterator[Kernels]:
    """Have whatever is compiled inside show its kernels to the profiler, and the returned record tell them apart."""
    import torch._inductor.config as inductor

    found = Kernels(nodes)
    wanted: dict[str, Any] = {
        "cpp.enable_kernel_profile": True,
        "cpp.descriptive_names": "inductor_node",
        "post_grad_custom_post_pass": found.mark,
        # What was compiled before was compiled without these.
        "fx_graph_cache": False,
    }
    known = inductor.get_config_copy() if hasattr(inductor, "get_config_copy") else {}
    with inductor.patch(wanted) if set(wanted) <= set(known) else contextlib.nullcontext():
        yield found
